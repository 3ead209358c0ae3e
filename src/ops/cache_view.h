// The KV pool as operations see it: rows of one block each, laid out by formats/cache_row.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "formats/cache_codec.h"
#include "formats/cache_row.h"

namespace winnow::ops {

struct CacheView {
  std::byte* pool = nullptr;  // row b starts at pool + b * layout->row_bytes(), 64-bit arithmetic
  const CacheRowLayout* layout = nullptr;
  DequantMode mode = DequantMode::kE4M3;  // how NVFP4 and FP8 planes are read, and Q is cast
};

}  // namespace winnow::ops
