// The KV pool as operations see it: rows of one block each, laid out by formats/cache_row.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "formats/cache_codec.h"
#include "formats/cache_row.h"

namespace winnow::ops {

/// Whether queries against a plane of `dtype` are cast to E4M3 (scale 1, saturating) first.
constexpr bool casts_query(CacheDType dtype, DequantMode mode) {
  return mode == DequantMode::kE4M3 && (dtype == CacheDType::kNvfp4 || dtype == CacheDType::kFp8);
}

struct CacheView {
  std::byte* pool = nullptr;  // row b starts at pool + b * layout->row_bytes(), 64-bit arithmetic
  const CacheRowLayout* layout = nullptr;
  DequantMode mode = DequantMode::kE4M3;  // how NVFP4 planes are read, and Q is cast
};

}  // namespace winnow::ops
