#include "formats/cache_codec.h"

#include <fmt/format.h>

#include <cstring>

#include "base/assert.h"
#include "base/error.h"
#include "formats/nvfp4_cache.h"

namespace winnow {

std::string_view dequant_mode_name(DequantMode mode) {
  return mode == DequantMode::kE4M3 ? "e4m3" : "exact";
}

DequantMode parse_dequant_mode(std::string_view name) {
  if (name == "e4m3") return DequantMode::kE4M3;
  if (name == "exact") return DequantMode::kExact;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("dequantisation mode '{}' is not one of e4m3, exact", name));
}

void encode_cache_vector(CacheDType dtype, std::span<const float> x, std::byte* data,
                         std::byte* scales, const BulkCodecs& codecs) {
  const auto n = static_cast<std::int64_t>(x.size());
  switch (dtype) {
    case CacheDType::kF32:
      std::memcpy(data, x.data(), x.size_bytes());
      return;
    case CacheDType::kBF16:
      codecs.encode_bf16(x.data(), reinterpret_cast<std::uint16_t*>(data), n);
      return;
    case CacheDType::kFp8:
      codecs.encode_e4m3(x.data(), reinterpret_cast<std::uint8_t*>(data), n);
      return;
    case CacheDType::kNvfp4:
      WINNOW_ASSERT(n % kNvfp4Group == 0, "whole groups", n);
      codecs.quantize_nvfp4_cache(x.data(), reinterpret_cast<std::uint8_t*>(data),
                                  reinterpret_cast<std::uint8_t*>(scales), n);
      return;
  }
}

void decode_cache_vector(CacheDType dtype, DequantMode mode, const std::byte* data,
                         const std::byte* scales, std::span<float> out, const BulkCodecs& codecs) {
  const auto n = static_cast<std::int64_t>(out.size());
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(data);
  switch (dtype) {
    case CacheDType::kF32:
      std::memcpy(out.data(), data, out.size_bytes());
      return;
    case CacheDType::kBF16:
      codecs.decode_bf16(reinterpret_cast<const std::uint16_t*>(data), out.data(), n);
      return;
    case CacheDType::kFp8:
      codecs.decode_e4m3(bytes, out.data(), n);
      return;
    case CacheDType::kNvfp4: {
      WINNOW_ASSERT(n % kNvfp4Group == 0, "whole groups", n);
      const auto* scale_bytes = reinterpret_cast<const std::uint8_t*>(scales);
      if (mode == DequantMode::kExact) {
        codecs.dequantize_nvfp4_exact(bytes, scale_bytes, out.data(), n);
      } else {
        codecs.dequantize_nvfp4_e4m3_to_float(bytes, scale_bytes, out.data(), n);
      }
      return;
    }
  }
}

}  // namespace winnow
