// e^x on Vec: the operations of ops/fast_exp.h in their order, so the bits are the same. Only the
// constants of that header are used (see the rule in isa.h).
#pragma once

#include "ops/fast_exp.h"

namespace winnow::ops::WINNOW_ISA {

WINNOW_INLINE Vec exp(Vec x) {
  const Vec round = broadcast(kExpRound);
  const Vec shifted = fma(x, broadcast(kExpLog2E), round);
  const Vec n = sub(shifted, round);
  Vec r = fma(n, broadcast(-kExpLn2High), x);
  r = fma(n, broadcast(-kExpLn2Low), r);
  Vec p = broadcast(kExpC6);
  p = fma(p, r, broadcast(kExpC5));
  p = fma(p, r, broadcast(kExpC4));
  p = fma(p, r, broadcast(kExpC3));
  p = fma(p, r, broadcast(kExpC2));
  p = fma(p, r, broadcast(1.0F));
  p = fma(p, r, broadcast(1.0F));
  const Words exponent = add_words(bits_of(shifted), broadcast_word(127));
  const Vec scaled = mul(p, from_bits(shift_left<23>(exponent)));
  const Vec low_cut = select_less(x, broadcast(kExpLowest), zero(), scaled);
  return select_less(broadcast(kExpHighest), x, broadcast(__builtin_inff()), low_cut);
}

}  // namespace winnow::ops::WINNOW_ISA
