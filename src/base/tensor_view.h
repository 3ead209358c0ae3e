// A dtype, and an untyped view of row-major data: what crosses folders instead of raw pointers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace winnow {

enum class DType : std::uint8_t {
  kF32,
  kF16,
  kBF16,
  kE4M3,
  kE5M2,
  kU8,
  kI8,
  kI16,
  kU16,
  kI32,
  kU32,
  kI64,
  kU64,
  kF64,
  kBool
};

/// Bytes of one element.
constexpr std::int64_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
    case DType::kU64:
      return 8;
    case DType::kF32:
    case DType::kI32:
    case DType::kU32:
      return 4;
    case DType::kF16:
    case DType::kBF16:
    case DType::kI16:
    case DType::kU16:
      return 2;
    default:
      return 1;
  }
}

/// Spelling of safetensors headers: "F32", "BF16", "F8_E4M3", …
constexpr std::string_view dtype_name(DType dtype) {
  constexpr std::array<std::string_view, 15> kNames = {"F32", "F16", "BF16", "F8_E4M3", "F8_E5M2",
                                                       "U8",  "I8",  "I16",  "U16",     "I32",
                                                       "U32", "I64", "U64",  "F64",     "BOOL"};
  return kNames[static_cast<std::size_t>(dtype)];
}

/// Contiguous row-major data of `shape`; does not own it.
struct TensorView {
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;

  std::int64_t num_elements() const {
    std::int64_t n = 1;
    for (const std::int64_t extent : shape) n *= extent;
    return n;
  }
  std::int64_t num_bytes() const { return num_elements() * dtype_bytes(dtype); }
};

}  // namespace winnow
