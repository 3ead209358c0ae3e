// Counter-based random numbers: Philox4x32-10 (Salmon et al., SC 2011). A draw depends on its key
// and counter alone, so a request's samples do not depend on what else is running.
#pragma once

#include <array>
#include <cstdint>

namespace winnow {

using Philox4 = std::array<std::uint32_t, 4>;

/// Four independent 32-bit draws for (key, counter).
constexpr Philox4 philox4x32(std::uint64_t key, Philox4 counter) {
  std::uint32_t k0 = static_cast<std::uint32_t>(key);
  std::uint32_t k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {
        static_cast<std::uint32_t>(p1 >> 32) ^ counter[1] ^ k0, static_cast<std::uint32_t>(p1),
        static_cast<std::uint32_t>(p0 >> 32) ^ counter[3] ^ k1, static_cast<std::uint32_t>(p0)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return counter;
}

/// Uniform in (0, 1), never 0 or 1: (v + 0.5) / 2^52 with v of 52 bits, exact in a double.
constexpr double uniform_open(std::uint32_t high, std::uint32_t low) {
  const std::uint64_t v = (std::uint64_t{high} << 20) | (low >> 12);
  return (static_cast<double>(v) + 0.5) * 0x1p-52;
}

}  // namespace winnow
