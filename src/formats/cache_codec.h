// One vector of a cache plane: floats in, stored bytes out, and back. The numerics contract: what
// attention and the indexer read is always decode(encode(x)). Source: spec/model.md 4.2 to 4.4.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "formats/bulk_codecs.h"
#include "formats/cache_row.h"

namespace winnow {

/// How NVFP4 values are read (design.md section 4). kE4M3: code * scale rounded to E4M3, what
/// M3.1 was trained with; queries are then cast to E4M3 too (by the attention kernel). kExact: the
/// product as it is. Other cache dtypes read the same in both.
enum class DequantMode : std::uint8_t { kE4M3, kExact };

/// "e4m3", "exact".
std::string_view dequant_mode_name(DequantMode mode);
/// Throws Error{kInvalidArgument} that lists the names.
DequantMode parse_dequant_mode(std::string_view name);

/// x -> `data` (cache_data_bytes) and, for nvfp4, `scales` (cache_scale_bytes; else unused):
/// fp32 as it is; bf16 nearest-even; fp8 = E4M3, scale 1, saturating at 448; nvfp4 as
/// formats/nvfp4_cache.h. A group of x that holds a NaN is stored as NaN, infinities saturate
/// (fp32 and bf16 keep them): the fault then shows in the logits instead of as a plausible value.
void encode_cache_vector(CacheDType dtype, std::span<const float> x, std::byte* data,
                         std::byte* scales, const BulkCodecs& codecs);

/// The values that a reader in `mode` sees.
void decode_cache_vector(CacheDType dtype, DequantMode mode, const std::byte* data,
                         const std::byte* scales, std::span<float> out, const BulkCodecs& codecs);

}  // namespace winnow
