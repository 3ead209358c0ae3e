// The `e4m3` dequantisation mode as a table: e4m3(scale * magnitude) for every scale byte.
// Source: spec/model.md 4.3, which gives the SHA-256 that dequant_table_test.cpp checks. The table
// equals the rounding, saturating FP4 multiply of newer GPUs, so all paths agree to the bit.
#pragma once

#include <array>
#include <cstdint>

namespace winnow {

using DequantTable = std::array<std::array<std::uint8_t, 8>, 256>;

/// kDequantTable[s][m] = e4m3(decode_e4m3(s & 0x7F) * decode_e2m1(m)), saturated at 448 (0x7E);
/// rows 0x7F and 0xFF are 0x7F (NaN). The sign of the element is applied by XOR with 0x80.
extern const DequantTable kDequantTable;

}  // namespace winnow
