// What would fit where a checkpoint's context does not: told instead of a bare "out of memory".
#pragma once

#include <string>

#include "engine/pool_size.h"
#include "formats/cache_row.h"

namespace winnow::cli {

/// Lines for the user, one change each, with the numbers that would work: the longest context as
/// things are, each smaller cache type and what it reaches, the share of memory that would do.
/// `request` is one that plan_pool_size() refuses for want of room.
std::string fit_advice(const PoolSizeRequest& request, const CacheRowShape& cache);

}  // namespace winnow::cli
