#include "ops/x86/nvfp4_values.h"

#include <array>

#include "formats/dequant_table.h"
#include "formats/e2m1.h"
#include "formats/e4m3.h"

namespace winnow::cpu {
namespace {

struct alignas(64) Table {
  std::array<std::array<float, 16>, 256> rows;
};

Table make_table(DequantMode mode) {
  Table table{};
  for (std::size_t scale = 0; scale < 256; ++scale) {
    for (std::size_t code = 0; code < 16; ++code) {
      const auto sign = static_cast<std::uint8_t>((code & 8U) << 4U);
      table.rows[scale][code] =
          mode == DequantMode::kE4M3
              ? kE4m3Values[kDequantTable[scale][code & 7U] ^ sign]
              : decode_e2m1(static_cast<std::uint8_t>(code)) * kE4m3Values[scale & 0x7FU];
    }
  }
  return table;
}

}  // namespace

const float* nvfp4_values(DequantMode mode) {
  static const Table kRounded = make_table(DequantMode::kE4M3);
  static const Table kExact = make_table(DequantMode::kExact);
  return (mode == DequantMode::kE4M3 ? kRounded : kExact).rows[0].data();
}

}  // namespace winnow::cpu
