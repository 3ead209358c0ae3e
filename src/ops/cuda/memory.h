// Device memory as ops::Memory.
#pragma once

#include <memory>

#include "ops/memory.h"

struct CUstream_st;

namespace winnow::cuda {

/// Copies are ordered with `stream`, which must outlive it. Small arrays are carved from slabs of
/// 64 MiB, because the driver hands memory out in pieces of 2 MiB. Thread-safe.
std::shared_ptr<ops::Memory> make_device_memory(int device, CUstream_st* stream);

}  // namespace winnow::cuda
