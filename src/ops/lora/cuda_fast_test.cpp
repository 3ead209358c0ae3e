// Adapters beside the fast kernels: a token gets what its own adapter and its own input say,
// whatever stands beside it.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "ops/testing/compare_bits.h"
#include "ops/testing/fast_check.h"
#include "ops/testing/random_lora.h"
#include "ops/testing/random_mlp.h"

namespace winnow::ops {
namespace {

using testing::bits_equal;
using testing::RandomInputs;

constexpr std::int64_t kTokens = 300;
constexpr std::int64_t kHidden = 256;
constexpr std::int64_t kWidth = 128;

/// Adapter 0 is on every expert and the shared one, 1 on one expert, 2 on the shared one; 3 is on
/// other layers, and 4 was not told of here.
constexpr std::int32_t kAdapters = 5;
bool adds(std::int32_t adapter) { return adapter >= 0 && adapter < 3; }

class MoeCase {
 public:
  explicit MoeCase(std::uint64_t stream)
      : random_(stream),
        router_(QuantScheme::kF32, kExperts, kHidden, random_),
        shared_(QuantScheme::kMxfp8, kHidden, kWidth, random_),
        shared_adapter_(kHidden, kWidth, random_) {
    for (int e = 0; e < kExperts; ++e) {
      experts_.emplace_back(QuantScheme::kNvfp4, kHidden, kWidth, random_);
      adapters_.emplace_back(kHidden, kWidth, random_);
    }
    bias_ = random_.normals(kExperts, 0.1F);
    h_ = random_.normals(kTokens * kHidden, 2.0F);
    before_ = random_.normals(kTokens * kHidden);
  }

  std::string describe() const { return random_.describe(); }
  std::vector<std::int32_t> spread(testing::Spread spread) {
    return testing::adapters_of_rows(spread, kTokens, kAdapters, random_);
  }

  struct Output {
    std::vector<float> y;
    std::vector<std::int32_t> chosen;
    std::vector<float> weights;
  };

  /// Tokens [first, first + count); `adapter_of` (of all tokens) null: without adapters.
  Output run(const Backend& backend, const std::int32_t* adapter_of, std::int64_t first,
             std::int64_t count) const {
    const auto router = backend.pack(std::vector{router_.source()});
    const testing::PackedMlp shared(backend, shared_);
    std::vector<testing::PackedMlp> experts;
    std::vector<MlpWeights> weights;
    for (const testing::RandomMlp& expert : experts_) experts.emplace_back(backend, expert);
    for (const testing::PackedMlp& expert : experts) weights.push_back(expert.weights());
    const testing::PackedMlpAdapter shared_adapter(backend, shared_adapter_);
    std::vector<testing::PackedMlpAdapter> packed;
    std::vector<LoraMlp> all;
    for (const auto& adapter : adapters_) packed.emplace_back(backend, adapter);
    for (const auto& adapter : packed) all.push_back(adapter.view());
    std::vector<LoraMlp> one(kExperts);
    one[kLonely] = all[kLonely];
    const std::array<LoraMoe, 4> views = {LoraMoe{.experts = all, .shared = shared_adapter.view()},
                                          LoraMoe{.experts = one, .shared = {}},
                                          LoraMoe{.experts = {}, .shared = shared_adapter.view()},
                                          LoraMoe{}};
    const std::array<const LoraMoe*, kAdapters> adapters = {&views[0], &views[1], &views[2],
                                                            &views[3], nullptr};
    const LoraRows<LoraMoe> lora{.adapter_of = adapter_of == nullptr ? nullptr : adapter_of + first,
                                 .adapters = adapters};
    Output out{
        .y = {before_.begin() + first * kHidden, before_.begin() + (first + count) * kHidden},
        .chosen = std::vector<std::int32_t>(static_cast<std::size_t>(count * kTopK)),
        .weights = std::vector<float>(static_cast<std::size_t>(count * kTopK))};
    testing::TestContext context;
    backend.moe(context.get(), {.h = h_.data() + first * kHidden,
                                .num_tokens = count,
                                .router = router.get(),
                                .router_bias = bias_.data(),
                                .experts = weights,
                                .shared = shared.weights(),
                                .top_k = kTopK,
                                .routed_scale = 2.0F,
                                .constants = {.alpha = 1.702F, .limit = 7.0F},
                                .y = out.y.data(),
                                .chosen_experts = out.chosen.data(),
                                .chosen_weights = out.weights.data(),
                                .lora = adapter_of == nullptr ? nullptr : &lora});
    return out;
  }

  static constexpr int kExperts = 16;
  static constexpr std::size_t kLonely = 5;
  static constexpr std::int32_t kTopK = 4;

 private:
  RandomInputs random_;
  testing::RandomMatrix router_;
  testing::RandomMlp shared_;
  testing::RandomMlpAdapter shared_adapter_;
  std::vector<testing::RandomMlp> experts_;
  std::vector<testing::RandomMlpAdapter> adapters_;
  std::vector<float> bias_, h_, before_;
};

template <typename T>
std::span<const T> row(const std::vector<T>& values, std::int64_t index, std::int64_t width) {
  return std::span(values).subspan(static_cast<std::size_t>(index * width),
                                   static_cast<std::size_t>(width));
}

TEST(CudaFastLora, ExpertsGiveTokensWithoutAnAdapterTheFastBitsAndOthersTheExactOnes) {
  WINNOW_SKIP_WITHOUT_CUDA();
  const Backend fast = testing::make_hosted_cuda_backend(CudaKernels::kFast);
  const Backend exact = testing::make_hosted_cuda_backend(CudaKernels::kExact);
  MoeCase c(1300);
  SCOPED_TRACE(c.describe());
  const MoeCase::Output base = c.run(fast, nullptr, 0, kTokens);
  for (const testing::Spread spread : testing::kAllSpreads) {
    const std::vector<std::int32_t> adapter_of = c.spread(spread);
    const MoeCase::Output whole = c.run(fast, adapter_of.data(), 0, kTokens);
    const MoeCase::Output reference = c.run(exact, adapter_of.data(), 0, kTokens);
    for (std::int64_t t = 0; t < kTokens; ++t) {
      const std::int32_t adapter = adapter_of[static_cast<std::size_t>(t)];
      const MoeCase::Output& expected = adds(adapter) ? reference : base;
      const auto same = [&](const auto& of, const auto& is, std::int64_t width) {
        return bits_equal(row(of, t, width), row(is, t, width), {1, width});
      };
      ASSERT_TRUE(same(expected.y, whole.y, kHidden)) << "token " << t << " adapter " << adapter;
      ASSERT_TRUE(same(expected.chosen, whole.chosen, MoeCase::kTopK)) << "token " << t;
      ASSERT_TRUE(same(expected.weights, whole.weights, MoeCase::kTopK)) << "token " << t;
    }
    for (const std::int64_t count : {1, 2, 9, 65}) {
      const MoeCase::Output some = c.run(fast, adapter_of.data(), 20, count);
      for (std::int64_t t = 0; t < count; ++t) {
        ASSERT_TRUE(
            bits_equal(row(whole.y, 20 + t, kHidden), row(some.y, t, kHidden), {1, kHidden}))
            << count << " tokens, token " << t;
      }
    }
  }
}

TEST(CudaFastLora, MlpIsNearTheReferenceAndATokenDoesNotDependOnItsBatch) {
  WINNOW_SKIP_WITHOUT_CUDA();
  const Backend fast = testing::make_hosted_cuda_backend(CudaKernels::kFast);
  const Backend exact = testing::make_hosted_cuda_backend(CudaKernels::kExact);
  RandomInputs random(1310);
  SCOPED_TRACE(random.describe());
  const testing::RandomMlp mlp(QuantScheme::kMxfp8, kHidden, kWidth, random);
  const testing::RandomMlpAdapter source(kHidden, kWidth, random);
  const auto h = random.normals(kTokens * kHidden, 2.0F);
  const auto adapter_of = testing::adapters_of_rows(testing::Spread::kRandom, kTokens, 2, random);
  const auto run = [&](const Backend& backend, std::int64_t first, std::int64_t count,
                       bool has_adapters) {
    const testing::PackedMlp weights(backend, mlp);
    const testing::PackedMlpAdapter packed(backend, source);
    const LoraMlp view = packed.view();
    const LoraMlp* const adapters[] = {nullptr, &view};
    const LoraRows<LoraMlp> lora{.adapter_of = adapter_of.data() + first, .adapters = adapters};
    std::vector<float> y = testing::poisoned(count * kHidden);
    testing::TestContext context;
    backend.mlp(context.get(), {.h = h.data() + first * kHidden,
                                .num_tokens = count,
                                .weights = weights.weights(),
                                .constants = {.alpha = 1.702F, .limit = 7.0F},
                                .y = y.data(),
                                .lora = has_adapters ? &lora : nullptr});
    return y;
  };
  const auto whole = run(fast, 0, kTokens, true);
  EXPECT_LT(testing::relative_error(run(exact, 0, kTokens, true), whole), testing::kBf16Error);
  const auto base = run(fast, 0, kTokens, false);
  for (std::int64_t t = 0; t < kTokens; ++t) {
    const bool is_base = adapter_of[static_cast<std::size_t>(t)] < 1;
    ASSERT_EQ(bool{bits_equal(row(base, t, kHidden), row(whole, t, kHidden), {1, kHidden})},
              is_base)
        << "token " << t;
  }
  for (const std::int64_t count : testing::kTokenCounts) {
    const std::int64_t first = std::min<std::int64_t>(11, kTokens - count);
    const auto some = run(fast, first, count, true);
    ASSERT_TRUE(
        bits_equal(std::span(whole).subspan(static_cast<std::size_t>(first * kHidden), some.size()),
                   some, {count, kHidden}))
        << count << " tokens";
  }
}

}  // namespace
}  // namespace winnow::ops
