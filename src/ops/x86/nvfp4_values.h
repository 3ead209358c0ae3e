// Every value that an NVFP4 cache group can hold, as a float: [scale byte][code], one table for
// each way of reading (formats/cache_codec.h). 16 KiB each, of which a cache's usual scales touch
// little.
#pragma once

#include "formats/cache_codec.h"

namespace winnow::cpu {

/// [256][16], rows aligned to 64 bytes.
const float* nvfp4_values(DequantMode mode);

}  // namespace winnow::cpu
