#include "formats/dequant_table.h"

#include "formats/e2m1.h"
#include "formats/e4m3.h"

namespace winnow {

namespace {

constexpr DequantTable make_dequant_table() {
  DequantTable table{};
  for (std::size_t s = 0; s < table.size(); ++s) {
    const float scale = decode_e4m3(static_cast<std::uint8_t>(s & 0x7F));
    for (std::size_t m = 0; m < table[s].size(); ++m) {
      // Spelled out because the sign of NaN * 0 is the compiler's choice in a constant expression.
      table[s][m] = (s & 0x7F) == kE4m3NaN
                        ? kE4m3NaN
                        : encode_e4m3(scale * decode_e2m1(static_cast<std::uint8_t>(m)));
    }
  }
  return table;
}

}  // namespace

constinit const DequantTable kDequantTable = make_dequant_table();

}  // namespace winnow
