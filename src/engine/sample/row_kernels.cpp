#include "engine/sample/row_kernels.h"

#include <algorithm>
#include <limits>

#include "base/exact_math.h"
#include "base/random.h"

namespace winnow {
namespace {

// The bodies are inlined into one function per instruction set, where the compiler vectorises
// their loops for it.
#define WINNOW_BODY [[gnu::always_inline]] inline

namespace body {

constexpr std::size_t kLanes = 16;
constexpr std::size_t kTile = 256;  // long enough for a vectorised loop, short enough for L1
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

WINNOW_BODY RowScan scan(std::span<const float> logits) {
  std::array<float, kLanes> max;
  std::array<std::int32_t, kLanes> bad{};
  max.fill(kMinusInfinity);
  const std::size_t whole = logits.size() / kLanes * kLanes;
  const float* x = logits.data();
  for (std::size_t i = 0; i < whole; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      max[lane] = x[i + lane] > max[lane] ? x[i + lane] : max[lane];
      bad[lane] |= x[i + lane] <= kLargest ? 0 : 1;
    }
  }
  for (std::size_t i = whole; i < logits.size(); ++i) {
    max[0] = x[i] > max[0] ? x[i] : max[0];
    bad[0] |= x[i] <= kLargest ? 0 : 1;
  }
  RowScan result{.max = *std::ranges::max_element(max),
                 .is_bad = std::ranges::count(bad, 0) != kLanes};
  if (!result.is_bad) {
    result.argmax = static_cast<TokenId>(std::ranges::find(logits, result.max) - logits.begin());
  }
  return result;
}

WINNOW_BODY void fill_weights(const float* logits, std::size_t size, float max,
                              float inverse_temperature, float* weights) {
  for (std::size_t i = 0; i < size; ++i) {
    weights[i] = exp_weight((logits[i] - max) * inverse_temperature);
  }
}

/// Lane l sums the elements i with i mod 16 = l, in order; then the lanes in order.
WINNOW_BODY double sum_weights(std::span<const float> logits, float max,
                               float inverse_temperature) {
  std::array<double, kLanes> sums{};
  std::array<float, kTile> weights;
  for (std::size_t begin = 0; begin < logits.size(); begin += kTile) {
    const std::size_t size = std::min(kTile, logits.size() - begin);
    fill_weights(logits.data() + begin, size, max, inverse_temperature, weights.data());
    const std::size_t whole = size / kLanes * kLanes;
    for (std::size_t i = 0; i < whole; i += kLanes) {
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        sums[lane] += static_cast<double>(weights[i + lane]);
      }
    }
    for (std::size_t i = whole; i < size; ++i) sums[i - whole] += static_cast<double>(weights[i]);
  }
  double total = 0.0;
  for (const double sum : sums) total += sum;
  return total;
}

WINNOW_BODY std::int32_t count_ahead(std::span<const float> logits, TokenId token) {
  const auto at = static_cast<std::size_t>(token);
  const float own = logits[at];
  const float* x = logits.data();
  std::int32_t ahead = 0;
  for (std::size_t i = 0; i < at; ++i) ahead += x[i] >= own ? 1 : 0;
  for (std::size_t i = at + 1; i < logits.size(); ++i) ahead += x[i] > own ? 1 : 0;
  return ahead;
}

/// philox4x32 of base/random.h with one group per vector lane.
WINNOW_BODY void fill_numbers(std::uint64_t seed, std::uint32_t first_group,
                              const std::array<std::uint32_t, 3>& abc, DrawTile& numbers) {
  constexpr std::size_t kGroups = kDrawTile / 4;
  std::array<std::uint32_t, kGroups> c0, c1, c2, c3;
  for (std::size_t g = 0; g < kGroups; ++g) {
    c0[g] = first_group + static_cast<std::uint32_t>(g);
    c1[g] = abc[0];
    c2[g] = abc[1];
    c3[g] = abc[2];
  }
  auto k0 = static_cast<std::uint32_t>(seed);
  auto k1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    for (std::size_t g = 0; g < kGroups; ++g) {
      const std::uint64_t p0 = std::uint64_t{0xD2511F53} * c0[g];
      const std::uint64_t p1 = std::uint64_t{0xCD9E8D57} * c2[g];
      c0[g] = static_cast<std::uint32_t>(p1 >> 32) ^ c1[g] ^ k0;
      c1[g] = static_cast<std::uint32_t>(p1);
      c2[g] = static_cast<std::uint32_t>(p0 >> 32) ^ c3[g] ^ k1;
      c3[g] = static_cast<std::uint32_t>(p0);
    }
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  for (std::size_t g = 0; g < kGroups; ++g) {
    numbers[4 * g] = c0[g];
    numbers[4 * g + 1] = c1[g];
    numbers[4 * g + 2] = c2[g];
    numbers[4 * g + 3] = c3[g];
  }
}

}  // namespace body

// NOLINTBEGIN(bugprone-macro-parentheses): an attribute cannot stand in parentheses.
// One set of functions with the attribute, and the table of them.
#define WINNOW_ROW_KERNELS(isa, attribute)                                                   \
  namespace isa {                                                                            \
  attribute RowScan scan(std::span<const float> logits) { return body::scan(logits); }       \
  attribute double sum_weights(std::span<const float> logits, float max, float inverse) {    \
    return body::sum_weights(logits, max, inverse);                                          \
  }                                                                                          \
  attribute void fill_weights(std::span<const float> logits, float max, float inverse,       \
                              std::span<float> weights) {                                    \
    body::fill_weights(logits.data(), logits.size(), max, inverse, weights.data());          \
  }                                                                                          \
  attribute std::int32_t count_ahead(std::span<const float> logits, TokenId token) {         \
    return body::count_ahead(logits, token);                                                 \
  }                                                                                          \
  attribute void fill_numbers(std::uint64_t seed, std::uint32_t first_group,                 \
                              const std::array<std::uint32_t, 3>& abc, DrawTile& numbers) {  \
    body::fill_numbers(seed, first_group, abc, numbers);                                     \
  }                                                                                          \
  constexpr RowKernels kKernels{scan, sum_weights, fill_weights, count_ahead, fill_numbers}; \
  }

WINNOW_ROW_KERNELS(portable, )
#if defined(__x86_64__)
WINNOW_ROW_KERNELS(avx2, [[gnu::target("avx2")]])
WINNOW_ROW_KERNELS(avx512, [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl")]])
#endif
// NOLINTEND(bugprone-macro-parentheses)

}  // namespace

const RowKernels& row_kernels(CpuIsa isa) {
#if defined(__x86_64__)
  if (isa == CpuIsa::kAvx512) return avx512::kKernels;
  if (isa == CpuIsa::kAvx2) return avx2::kKernels;
#endif
  return portable::kKernels;
}

const RowKernels& row_kernels() {
  static const RowKernels& kBest = row_kernels(detect_machine().best_isa);
  return kBest;
}

}  // namespace winnow
