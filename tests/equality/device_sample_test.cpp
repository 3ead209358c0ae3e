// A token drawn on a device is the one that the engine's sampler draws from the same row: random
// rows of every kind that is treated apart, under every mix of parameters.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "engine/sample/device_draw.h"
#include "engine/sample/sampler.h"
#include "ops/cuda/backend.h"
#include "ops/op_context.h"
#include "ops/testing/hosted_cuda.h"
#include "ops/testing/random_inputs.h"

namespace winnow::testing {
namespace {

using ops::testing::RandomInputs;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <typename T>
T pick(RandomInputs& random, const std::vector<T>& values) {
  return values[static_cast<std::size_t>(random.below(std::ssize(values)))];
}

enum class RowKind {
  kNormal,
  kPeaked,
  kFlat,       // all within 1e-3: top-p then keeps nearly everything
  kCoarse,     // a dozen different values: most tokens are ties
  kEqual,      // one value
  kZeros,      // 0 and -0
  kMasked,     // nine of ten at -inf
  kHuge,       // up to the largest float
  kTiny,       // subnormal differences
  kAscending,  // the last token is the best
  kNan,
  kInfinite,
  kNothing,  // all at -inf
  kNumKinds,
};

std::vector<float> make_row(RandomInputs& random, RowKind kind, std::int32_t size) {
  std::vector<float> row = random.normals(size, 2.5F);
  for (std::int32_t i = 0; i < size; ++i) {
    float& x = row[static_cast<std::size_t>(i)];
    switch (kind) {
      case RowKind::kPeaked:
        x *= 3.0F;
        break;
      case RowKind::kFlat:
        x = 4.0F + x * 1e-4F;
        break;
      case RowKind::kCoarse:
        x = static_cast<float>(static_cast<int>(x));
        break;
      case RowKind::kEqual:
        x = -3.25F;
        break;
      case RowKind::kZeros:
        x = x > 0.0F ? 0.0F : -0.0F;
        break;
      case RowKind::kMasked:
        x = random.below(10) == 0 ? x : -kInfinity;
        break;
      case RowKind::kHuge:
        x *= 1e37F;
        break;
      case RowKind::kTiny:
        x *= 1e-40F;
        break;
      case RowKind::kAscending:
        x = static_cast<float>(i) * 1e-4F;
        break;
      case RowKind::kNothing:
        x = -kInfinity;
        break;
      default:
        break;
    }
  }
  float& one = row[static_cast<std::size_t>(random.below(size))];
  if (kind == RowKind::kNan) one = std::numeric_limits<float>::quiet_NaN();
  if (kind == RowKind::kInfinite) one = kInfinity;
  return row;
}

SamplingParams make_params(RandomInputs& random, std::int32_t vocab_size) {
  SamplingParams params;
  params.temperature = pick<float>(random, {0.0F, 0.05F, 0.3F, 0.7F, 1.0F, 1.0F, 1.0F, 1.7F, 5.0F});
  params.top_k = pick<std::int32_t>(random, {0, 0, -1, 1, 2, 20, 40, 40, 100, 192, 193, 1000, 30000,
                                             vocab_size - 1, vocab_size, vocab_size + 1});
  params.top_p =
      pick<float>(random, {1.0F, 1.0F, 0.999999F, 0.99F, 0.95F, 0.95F, 0.5F, 0.05F, 1e-6F});
  params.min_p = pick<float>(random, {0.0F, 0.0F, 0.0F, 0.01F, 0.2F, 1.0F});
  params.seed = static_cast<std::int64_t>(random.bits()) << 20 | random.bits();
  if (random.below(3) == 0) {
    const std::int64_t count = random.below(4) == 0 ? vocab_size : random.below(80) + 1;
    for (std::int64_t i = 0; i < count; ++i) {
      params.bad_words.push_back({static_cast<TokenId>(random.below(vocab_size))});
    }
  }
  if (random.below(8) == 0) {
    params.min_tokens = 8;
    params.stop_token_ids = {static_cast<TokenId>(random.below(vocab_size))};
  }
  return params;
}

/// Rows of one vocabulary size and a few draws from each, run in one call.
class DeviceDraws {
 public:
  DeviceDraws(RandomInputs& random, std::int32_t vocab_size, std::int32_t num_rows)
      : vocab_size_(vocab_size), words_(static_cast<std::size_t>(ops::mask_words(vocab_size))) {
    std::vector<TokenId> context(1 + static_cast<std::size_t>(random.below(5000)), 7);
    for (std::int32_t row = 0; row < num_rows; ++row) {
      const auto kind = static_cast<RowKind>(
          random.below(2) == 0 ? 0 : random.below(static_cast<int>(RowKind::kNumKinds)));
      rows_.push_back(make_row(random, kind, vocab_size));
      for (int i = 0; i < 3; ++i) add_draw(random, row, kind, context);
    }
    draws_.insert(draws_.begin() + random.below(std::ssize(draws_)), ops::Draw{});  // padding
  }

  void check(const ops::Backend& backend, const ops::OpContext& context) const {
    std::vector<float> logits;
    for (const auto& row : rows_) logits.insert(logits.end(), row.begin(), row.end());
    const ops::Array<float> device_logits(backend.memory, std::span<const float>(logits), "logits");
    const ops::Array<ops::Draw> device_draws(backend.memory, std::span<const ops::Draw>(draws_),
                                             "draws");
    const ops::Array<std::uint32_t> masks(backend.memory, std::span<const std::uint32_t>(masks_),
                                          "masks");
    const ops::Array<ops::Drawn> drawn(backend.staging, std::ssize(draws_), "drawn");
    backend.sample(context, {.logits = device_logits.data(),
                             .vocab_size = vocab_size_,
                             .first_row = kFirstRow,
                             .draws = device_draws.data(),
                             .num_draws = static_cast<std::int32_t>(draws_.size()),
                             .masks = masks.data(),
                             .out = drawn.data()});
    backend.memory->finish();
    std::size_t next = 0;
    for (std::size_t i = 0; i < draws_.size(); ++i) {
      if (draws_[i].row < 0) continue;
      const Expected& expected = expected_[next++];
      const Sample sample = sample_of(drawn.data()[i]);
      EXPECT_EQ(sample.status, expected.sample.status) << expected.name;
      if (expected.sample.status != SampleStatus::kOk) continue;
      EXPECT_EQ(sample.token, expected.sample.token) << expected.name;
    }
    EXPECT_EQ(next, expected_.size());
  }

 private:
  static constexpr std::int32_t kFirstRow = 11;

  struct Expected {
    Sample sample;
    std::string name;
  };

  void add_draw(RandomInputs& random, std::int32_t row, RowKind kind,
                const std::vector<TokenId>& context) {
    const SamplingParams params = make_params(random, vocab_size_);
    const SampleRules rules(params, {}, 1);
    const auto choice = static_cast<std::uint32_t>(random.below(4));
    SampleState state(rules, choice, {}, nullptr);
    const auto num_output = static_cast<std::int32_t>(random.below(16));
    auto plan = plan_draw(rules, choice, context, num_output);
    ASSERT_TRUE(plan);
    plan->draw.row = kFirstRow + row;
    if (plan->banned_ids != nullptr) {
      plan->draw.mask = static_cast<std::int32_t>(masks_.size() / words_);
      masks_.resize(masks_.size() + words_);
      for (const TokenId id : *plan->banned_ids) {
        masks_[masks_.size() - words_ + static_cast<std::size_t>(id) / 32] |= 1U << (id % 32);
      }
    }
    draws_.push_back(plan->draw);
    expected_.push_back(
        {.sample = sample_token(rows_.back(), rules, state, context, num_output, scratch_),
         .name = fmt::format("vocab {}, row kind {}, T {}, top_k {}, top_p {}, min_p {}, mask {}",
                             vocab_size_, static_cast<int>(kind), params.temperature, params.top_k,
                             params.top_p, params.min_p, plan->draw.mask)});
  }

  std::int32_t vocab_size_;
  std::size_t words_;
  std::vector<std::vector<float>> rows_;
  std::vector<ops::Draw> draws_;
  std::vector<Expected> expected_;  // of the draws that are not padding
  std::vector<std::uint32_t> masks_;
  SampleScratch scratch_;
};

class DeviceSample : public ::testing::TestWithParam<std::int32_t> {};

TEST_P(DeviceSample, DrawsTheTokenOfTheHostSampler) {
  if (!ops::testing::has_cuda_device()) GTEST_SKIP() << "no device";
  const std::int32_t vocab_size = GetParam();
  static const ops::Backend kBackend = ops::make_cuda_backend(0, ops::CudaKernels::kExact);
  const ops::OpContext context{.cuda = kBackend.cuda.get()};
  RandomInputs random(static_cast<std::uint64_t>(vocab_size));
  SCOPED_TRACE(random.describe());
  const std::int32_t num_rounds = vocab_size > 20000 ? 3 : 12;
  for (std::int32_t round = 0; round < num_rounds && !HasFailure(); ++round) {
    const DeviceDraws draws(random, vocab_size, vocab_size > 20000 ? 16 : 48);
    draws.check(kBackend, context);
  }
}

// Fewer tokens than CTAs, odd rows, M3's vocabulary, the largest that is taken.
INSTANTIATE_TEST_SUITE_P(Vocabularies, DeviceSample,
                         ::testing::Values(1, 2, 3, 5, 64, 65, 300, 1024, 4099, 32000, 200064,
                                           ops::kMaxSampleVocab));

}  // namespace
}  // namespace winnow::testing
