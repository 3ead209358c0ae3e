// Adapters in every operation that takes them: each backend against the reference, tokens against
// themselves alone and without adapters, and the reference against the formula.
#include "ops/lora/lora.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "ops/testing/backends.h"
#include "ops/testing/compare_bits.h"
#include "ops/testing/random_lora.h"
#include "ops/testing/random_mlp.h"

namespace winnow::ops {
namespace {

using testing::bits_equal;
using testing::PackedLoraSite;
using testing::RandomInputs;
using testing::RandomLoraSite;

constexpr std::int32_t kAdapters =
    4;  // the last one adds nothing, the one before has an empty site

/// The rows of a projection with some adapters.
class SiteCase {
 public:
  SiteCase(std::int64_t num_rows, std::int64_t inputs, std::int64_t outputs, testing::Spread spread,
           std::uint64_t stream)
      : num_rows_(num_rows), inputs_(inputs), outputs_(outputs), random_(stream) {
    for (int i = 0; i < kAdapters - 2; ++i) {
      sites_.push_back(testing::random_lora_site(inputs, outputs, random_));
    }
    adapter_of_ = testing::adapters_of_rows(spread, num_rows, kAdapters, random_);
    x_ = random_.normals(num_rows * inputs);
    before_ = random_.normals(num_rows * outputs);
  }

  std::string describe() const { return random_.describe(); }
  std::int64_t num_rows() const { return num_rows_; }
  std::int64_t outputs() const { return outputs_; }
  const std::vector<float>& before() const { return before_; }
  bool is_base(std::int64_t row) const {
    const std::int32_t adapter = adapter_of_[static_cast<std::size_t>(row)];
    return adapter < 0 || adapter >= kAdapters - 2;
  }

  /// Rows [first, first + count).
  std::vector<float> run(const Backend& backend, const OpContext& context, std::int64_t first,
                         std::int64_t count) const {
    std::vector<PackedLoraSite> packed;
    for (const RandomLoraSite& site : sites_) packed.emplace_back(backend, site);
    std::array<LoraSite, kAdapters - 1> views;
    for (std::size_t i = 0; i < packed.size(); ++i) views[i] = packed[i].view();
    std::array<const LoraSite*, kAdapters> adapters{};
    for (std::size_t i = 0; i < views.size(); ++i) adapters[i] = &views[i];
    std::vector<float> y(before_.begin() + first * outputs_,
                         before_.begin() + (first + count) * outputs_);
    backend.lora(context, {.rows = {.adapter_of = adapter_of_.data() + first, .adapters = adapters},
                           .num_rows = count,
                           .x = x_.data() + first * inputs_,
                           .x_stride = inputs_,
                           .y = y.data(),
                           .y_stride = outputs_});
    return y;
  }

  std::vector<double> formula(std::int64_t row) const {
    std::vector<double> y(before_.begin() + row * outputs_, before_.begin() + (row + 1) * outputs_);
    if (is_base(row)) return y;
    const RandomLoraSite& site =
        sites_[static_cast<std::size_t>(adapter_of_[static_cast<std::size_t>(row)])];
    for (std::size_t i = 0; i < site.parts.size(); ++i) {
      const std::vector<double> added = site.formula(i, x_.data() + row * inputs_, inputs_);
      for (std::size_t n = 0; n < added.size(); ++n) {
        y[static_cast<std::size_t>(site.parts[i].first_row) + n] += added[n];
      }
    }
    return y;
  }

 private:
  std::int64_t num_rows_, inputs_, outputs_;
  RandomInputs random_;
  std::vector<RandomLoraSite> sites_;
  std::vector<std::int32_t> adapter_of_;
  std::vector<float> x_, before_;
};

TEST(Lora, EveryBackendEqualsTheReferenceAndEachRowAlone) {
  testing::TestContext reference(1);
  testing::for_each_backend([&](const Backend& backend, const OpContext& context) {
    std::uint64_t stream = 700;
    for (const testing::Spread spread : testing::kAllSpreads) {
      for (const std::int64_t num_rows : {0, 1, 2, 13, 70, 300}) {
        const SiteCase c(num_rows, num_rows == 13 ? 1000 : 96, 80, spread, ++stream);
        SCOPED_TRACE(c.describe());
        const auto expected = c.run(make_scalar_backend(), reference.get(), 0, num_rows);
        const auto actual = c.run(backend, context, 0, num_rows);
        ASSERT_TRUE(bits_equal(expected, actual, {num_rows, c.outputs()}));
        for (std::int64_t row = 0; row < num_rows; row += 29) {
          const auto first = row * c.outputs();
          const std::span alone(expected.data() + first, static_cast<std::size_t>(c.outputs()));
          ASSERT_TRUE(bits_equal(alone, c.run(backend, context, row, 1), {1, c.outputs()}));
          const std::span before(c.before().data() + first, alone.size());
          if (c.is_base(row)) {
            ASSERT_TRUE(bits_equal(before, alone, {1, c.outputs()}));
          }
        }
      }
    }
  });
}

/// Some sites over `num_rows` rows that take turns, by each backend and by the reference.
void expect_equal_in_turns(const std::vector<RandomLoraSite>& sites, std::int64_t num_rows,
                           std::int64_t inputs, std::int64_t outputs, RandomInputs& random) {
  const auto x = random.normals(num_rows * inputs);
  const auto before = random.normals(num_rows * outputs);
  const auto adapter_of = testing::adapters_of_rows(
      testing::Spread::kAlternating, num_rows, static_cast<std::int32_t>(sites.size()), random);
  const auto run = [&](const Backend& backend, const OpContext& context) {
    std::vector<PackedLoraSite> packed;
    std::vector<LoraSite> views;
    std::vector<const LoraSite*> adapters;
    for (const RandomLoraSite& site : sites) packed.emplace_back(backend, site);
    for (const PackedLoraSite& site : packed) views.push_back(site.view());
    for (const LoraSite& site : views) adapters.push_back(&site);
    std::vector<float> y = before;
    backend.lora(context, {.rows = {.adapter_of = adapter_of.data(), .adapters = adapters},
                           .num_rows = num_rows,
                           .x = x.data(),
                           .x_stride = inputs,
                           .y = y.data(),
                           .y_stride = outputs});
    return y;
  };
  testing::TestContext reference(1);
  const auto expected = run(make_scalar_backend(), reference.get());
  testing::for_each_backend([&](const Backend& backend, const OpContext& context) {
    ASSERT_TRUE(bits_equal(expected, run(backend, context), {num_rows, outputs}));
  });
}

// More than travel with one launch on a device.
TEST(Lora, AStepOfManyAdaptersEqualsTheReference) {
  RandomInputs random(690);
  SCOPED_TRACE(random.describe());
  std::vector<RandomLoraSite> sites;
  for (int i = 0; i < 140; ++i) sites.push_back(testing::random_lora_site(40, 36, random));
  expect_equal_in_turns(sites, 300, 40, 36, random);
}

TEST(Lora, RanksOfHundredsEqualTheReference) {
  RandomInputs random(691);
  SCOPED_TRACE(random.describe());
  std::vector<RandomLoraSite::Part> parts;
  for (std::int64_t i = 0; i < 5; ++i) {
    parts.push_back({.first_row = i * 20,
                     .num_rows = 20,
                     .rank = 700 - i,
                     .scheme = i % 2 == 0 ? QuantScheme::kBF16 : QuantScheme::kF32});
  }
  const std::vector<RandomLoraSite> sites{{72, parts, random}, {72, {parts[1]}, random}};
  expect_equal_in_turns(sites, 70, 72, 100, random);
}

TEST(Lora, ReferenceIsNearTheFormula) {
  const SiteCase c(40, 256, 64, testing::Spread::kRandom, 740);
  SCOPED_TRACE(c.describe());
  testing::TestContext context;
  const auto y = c.run(make_scalar_backend(), context.get(), 0, c.num_rows());
  for (std::int64_t row = 0; row < c.num_rows(); ++row) {
    const std::vector<double> expected = c.formula(row);
    for (std::size_t n = 0; n < expected.size(); ++n) {
      ASSERT_NEAR(y[static_cast<std::size_t>(row * c.outputs()) + n], expected[n], 1e-4)
          << "row " << row << " output " << n;
    }
  }
}

/// A layer of experts: adapter 0 on every expert and the shared one, adapter 1 on one expert alone,
/// adapter 2 on the shared one alone, adapter 3 on nothing.
class MoeCase {
 public:
  MoeCase(QuantScheme scheme, std::int64_t num_tokens, testing::Spread spread, std::uint64_t stream)
      : num_tokens_(num_tokens),
        random_(stream),
        router_(QuantScheme::kF32, kExperts, kHidden, random_),
        shared_(QuantScheme::kMxfp8, kHidden, kShared, random_),
        shared_adapter_(kHidden, kShared, random_) {
    for (int e = 0; e < kExperts; ++e) {
      experts_.emplace_back(scheme, kHidden, kWidth, random_);
      adapters_.emplace_back(kHidden, kWidth, random_);
    }
    adapter_of_ = testing::adapters_of_rows(spread, num_tokens, kAdapters, random_);
    bias_ = random_.normals(kExperts, 0.3F);
    h_ = random_.normals(num_tokens * kHidden, 2.0F);
    before_ = random_.normals(num_tokens * kHidden);
  }

  std::string describe() const { return random_.describe(); }
  std::int64_t num_tokens() const { return num_tokens_; }
  bool is_base(std::int64_t token) const {
    const std::int32_t adapter = adapter_of_[static_cast<std::size_t>(token)];
    return adapter < 0 || adapter == kAdapters - 1;
  }
  std::int32_t adapter_of(std::int64_t token) const {
    return adapter_of_[static_cast<std::size_t>(token)];
  }
  std::size_t first_token_of(std::int32_t adapter) const {
    const auto found = std::find(adapter_of_.begin(), adapter_of_.end(), adapter);
    return static_cast<std::size_t>(found - adapter_of_.begin());
  }
  /// The expert of adapter 1.
  std::int32_t lonely() const { return lonely_; }
  void set_lonely(std::int32_t expert) { lonely_ = expert; }

  struct Output {
    std::vector<float> y;
    std::vector<std::int32_t> experts;
  };

  Output run(const Backend& backend, const OpContext& context, std::int64_t first,
             std::int64_t count, bool has_adapters = true) const {
    const auto router = backend.pack(std::vector{router_.source()});
    const testing::PackedMlp shared(backend, shared_);
    std::vector<testing::PackedMlp> experts;
    std::vector<MlpWeights> weights;
    for (const testing::RandomMlp& expert : experts_) experts.emplace_back(backend, expert);
    for (const testing::PackedMlp& expert : experts) weights.push_back(expert.weights());

    const testing::PackedMlpAdapter shared_adapter(backend, shared_adapter_);
    std::vector<testing::PackedMlpAdapter> packed;
    for (const testing::RandomMlpAdapter& adapter : adapters_)
      packed.emplace_back(backend, adapter);
    std::vector<LoraMlp> all;
    for (const testing::PackedMlpAdapter& adapter : packed) all.push_back(adapter.view());
    std::vector<LoraMlp> one(kExperts);
    const auto lonely = static_cast<std::size_t>(lonely_);
    one[lonely] = packed[lonely].view();
    const LoraMoe on_all{.experts = all, .shared = shared_adapter.view()};
    const LoraMoe on_one{.experts = one, .shared = {}};
    const LoraMoe on_shared{.experts = {}, .shared = shared_adapter.view()};
    const std::array<const LoraMoe*, kAdapters> adapters = {&on_all, &on_one, &on_shared, nullptr};
    const LoraRows<LoraMoe> lora{.adapter_of = adapter_of_.data() + first, .adapters = adapters};

    Output out{
        .y = {before_.begin() + first * kHidden, before_.begin() + (first + count) * kHidden},
        .experts = std::vector<std::int32_t>(static_cast<std::size_t>(count * kTopK), -7)};
    backend.moe(context, {.h = h_.data() + first * kHidden,
                          .num_tokens = count,
                          .router = router.get(),
                          .router_bias = bias_.data(),
                          .experts = weights,
                          .shared = shared.weights(),
                          .top_k = kTopK,
                          .routed_scale = 2.0F,
                          .constants = {.alpha = 1.702F, .limit = 7.0F},
                          .y = out.y.data(),
                          .chosen_experts = out.experts.data(),
                          .lora = has_adapters ? &lora : nullptr});
    return out;
  }

  static constexpr int kExperts = 6;
  static constexpr int kTopK = 2;
  static constexpr std::int64_t kHidden = 64;
  static constexpr std::int64_t kWidth = 32;
  static constexpr std::int64_t kShared = 96;

 private:
  std::int64_t num_tokens_;
  std::int32_t lonely_ = 3;
  RandomInputs random_;
  testing::RandomMatrix router_;
  testing::RandomMlp shared_;
  testing::RandomMlpAdapter shared_adapter_;
  std::vector<testing::RandomMlp> experts_;
  std::vector<testing::RandomMlpAdapter> adapters_;
  std::vector<std::int32_t> adapter_of_;
  std::vector<float> bias_, h_, before_;
};

TEST(Lora, ExpertsEqualTheReferenceAndEachTokenAlone) {
  testing::TestContext reference(1);
  testing::for_each_backend([&](const Backend& backend, const OpContext& context) {
    std::uint64_t stream = 760;
    for (const QuantScheme scheme : testing::kAllSchemes) {
      for (const testing::Spread spread : testing::kAllSpreads) {
        for (const std::int64_t num_tokens : {1, 40}) {
          const MoeCase c(scheme, num_tokens, spread, ++stream);
          SCOPED_TRACE(c.describe());
          const auto expected = c.run(make_scalar_backend(), reference.get(), 0, num_tokens);
          const auto actual = c.run(backend, context, 0, num_tokens);
          ASSERT_TRUE(bits_equal(expected.y, actual.y, {num_tokens, MoeCase::kHidden}));
          const auto base = c.run(backend, context, 0, num_tokens, false);
          for (std::int64_t t = 0; t < num_tokens; t += 11) {
            const auto row = [&](const MoeCase::Output& out) {
              return std::span(out.y).subspan(static_cast<std::size_t>(t * MoeCase::kHidden),
                                              MoeCase::kHidden);
            };
            ASSERT_TRUE(
                bits_equal(row(expected), c.run(backend, context, t, 1).y, {1, MoeCase::kHidden}));
            if (c.is_base(t)) {
              ASSERT_TRUE(bits_equal(row(base), row(actual), {1, MoeCase::kHidden}));
            }
          }
        }
      }
    }
  });
}

// Fault G1: an adapter that is non-zero for one expert only.
TEST(Lora, AnAdapterOfOneExpertChangesTheTokensThatChoseIt) {
  testing::for_each_backend([&](const Backend& backend, const OpContext& context) {
    MoeCase c(QuantScheme::kNvfp4, 90, testing::Spread::kRandom, 830);
    SCOPED_TRACE(c.describe());
    const auto base = c.run(backend, context, 0, c.num_tokens(), false);
    c.set_lonely(base.experts[c.first_token_of(1) * MoeCase::kTopK]);
    const auto adapted = c.run(backend, context, 0, c.num_tokens());
    int num_changed = 0;
    for (std::int64_t t = 0; t < c.num_tokens(); ++t) {
      if (c.adapter_of(t) != 1) continue;
      const auto* const chosen = adapted.experts.data() + t * MoeCase::kTopK;
      const bool is_chosen =
          std::find(chosen, chosen + MoeCase::kTopK, c.lonely()) != chosen + MoeCase::kTopK;
      const auto first = adapted.y.begin() + t * MoeCase::kHidden;
      const bool is_equal =
          std::equal(first, first + MoeCase::kHidden, base.y.begin() + t * MoeCase::kHidden);
      EXPECT_EQ(is_equal, !is_chosen) << "token " << t;
      num_changed += is_equal ? 0 : 1;
    }
    EXPECT_GT(num_changed, 0);
  });
}

TEST(Lora, MlpEqualsTheReferenceInPlaceAndAdding) {
  testing::TestContext reference(1);
  testing::for_each_backend([&](const Backend& backend, const OpContext& context) {
    std::uint64_t stream = 840;
    for (const QuantScheme scheme : testing::kAllSchemes) {
      for (const testing::Spread spread : testing::kAllSpreads) {
        for (const std::int64_t num_tokens : {1, scheme == QuantScheme::kBF16 ? 270 : 40}) {
          RandomInputs random(++stream);
          SCOPED_TRACE(random.describe());
          const testing::RandomMlp mlp(scheme, 64, 96, random);
          const testing::RandomMlpAdapter source(64, 96, random);
          const auto h = random.normals(num_tokens * 64, 2.0F);
          const auto before = random.normals(num_tokens * 64);
          const auto adapter_of = testing::adapters_of_rows(spread, num_tokens, 2, random);
          const auto run = [&](const Backend& with, const OpContext& on, bool accumulate) {
            const testing::PackedMlp weights(with, mlp);
            const testing::PackedMlpAdapter packed(with, source);
            const LoraMlp view = packed.view();
            const LoraMlp* const adapters[] = {nullptr, &view};
            const LoraRows<LoraMlp> lora{.adapter_of = adapter_of.data(), .adapters = adapters};
            std::vector<float> y = accumulate ? before : testing::poisoned(num_tokens * 64);
            with.mlp(on, {.h = h.data(),
                          .num_tokens = num_tokens,
                          .weights = weights.weights(),
                          .constants = {.alpha = 1.702F, .limit = 7.0F},
                          .y = y.data(),
                          .accumulate = accumulate,
                          .lora = &lora});
            return y;
          };
          for (const bool accumulate : {false, true}) {
            ASSERT_TRUE(bits_equal(run(make_scalar_backend(), reference.get(), accumulate),
                                   run(backend, context, accumulate), {num_tokens, 64}));
          }
        }
      }
    }
  });
}

}  // namespace
}  // namespace winnow::ops
