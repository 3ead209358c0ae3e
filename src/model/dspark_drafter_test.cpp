// The drafter against tests/golden/nano-drafter and nano-drafter-qwen3, which
// train/drafter_reference.py made in float64 from the specification alone; and what must not change
// its bits.
#include "model/dspark_drafter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <numeric>

#include "base/error.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_writer.h"
#include "checkpoint/testing/temporary_folder.h"
#include "checkpoint/weights.h"
#include "formats/bulk_codecs.h"
#include "formats/cache_codec.h"
#include "ops/testing/backends.h"
#include "ops/testing/compare_bits.h"
#include "ops/testing/random_inputs.h"

namespace winnow {
namespace {

namespace fs = std::filesystem;

const fs::path kGolden = fs::path(WINNOW_SOURCE_DIR) / "tests/golden";

/// A target, the folder that holds dspark/, and where the reference's outputs are.
struct Trio {
  fs::path target, drafter, golden;
  std::int64_t max_positions = 0;
};
const Trio kNano = {.target = kGolden / "nano-text",
                    .drafter = kGolden / "nano-drafter",
                    .golden = kGolden / "nano-drafter",
                    .max_positions = 256};
const Trio kTrained = {.target = kGolden / "../../models/winnow-tiny",
                       .drafter = kGolden / "../../models/winnow-tiny",
                       .golden = kGolden / "tiny-drafter",
                       .max_positions = 512};
/// Of Qwen3 layers.
const Trio kQwen3 = {.target = kGolden / "nano-text",
                     .drafter = kGolden / "nano-drafter-qwen3",
                     .golden = kGolden / "nano-drafter-qwen3",
                     .max_positions = 256};
constexpr std::int32_t kBlockTokens = 16;
constexpr std::int32_t kRows = 64;
constexpr std::int64_t kVocab = 512;

/// Tensors of golden.safetensors.
class GoldenFile {
 public:
  explicit GoldenFile(const fs::path& folder) : file_(folder / "golden.safetensors") {}
  std::span<const float> floats(const char* name) const { return values<float>(name); }
  std::span<const std::int32_t> integers(const char* name) const {
    return values<std::int32_t>(name);
  }

 private:
  template <typename T>
  std::span<const T> values(const char* name) const {
    const TensorView view = file_.view(name);
    return {reinterpret_cast<const T*>(view.data),
            static_cast<std::size_t>(view.num_bytes()) / sizeof(T)};
  }
  SafetensorsFile file_;
};

/// The target's tables and the drafter on one backend, with a pool whose slots are NaN until they
/// are written.
class Fixture {
 public:
  Fixture(const ops::Backend& backend, CacheDType dtype, const Trio& trio = kNano)
      : golden_(trio.golden),
        config_(read_model_config(trio.target)),
        checkpoint_(trio.target),
        target_(pack_weights(checkpoint_, load_weights(checkpoint_, config_), backend)),
        loaded_(load_drafter(trio.drafter, config_, target_.shared_tables(), backend,
                             trio.max_positions)),
        layout_({.num_layers = 1,
                 .index_layers = {},
                 .num_kv_heads = 1,
                 .head_dim = 16,
                 .index_head_dim = 16,
                 .block_tokens = kBlockTokens,
                 .kv_dtype = CacheDType::kBF16,
                 .index_dtype = CacheDType::kBF16,
                 .drafter = drafter().cache_shape(dtype)}),
        pool_(layout_.row_bytes() * kRows, "test pool") {
    clear();
    // Blocks of all sequences, none in order.
    std::vector<std::int32_t> rows(kRows);
    for (std::int32_t i = 0; i < kRows; ++i) rows[static_cast<std::size_t>(i)] = i * 37 % kRows;
    auto next = rows.begin();
    for (const std::int32_t length : golden_.integers("context_length")) {
      std::vector<BlockId>& table = tables_.emplace_back();
      for (std::int32_t p = 0; p < length; p += kBlockTokens) table.push_back(BlockId{*next++});
    }
    const std::span<const float> streams = golden_.floats("streams");
    const std::size_t num_streams = drafter().target_layers().size();
    for (std::size_t i = 0; i < num_streams; ++i) {
      streams_.push_back(streams.data() + i * streams.size() / num_streams);
    }
  }

  const GoldenFile& golden() const { return golden_; }
  DsparkDrafter& drafter() { return *loaded_.drafter; }
  ops::CacheView cache() const {
    return {.pool = pool_.data(), .layout = &layout_, .mode = DequantMode::kExact};
  }
  std::span<std::byte> bytes() const {
    return {pool_.data(), static_cast<std::size_t>(pool_.size())};
  }
  void clear() { ops::testing::poison(bytes()); }

  /// The golden contexts, in slices of up to `chunk` tokens, a call each; the first `skip` of a
  /// context that are older than what its window reaches are left out.
  void insert(const ops::OpContext& context, std::int32_t chunk, bool skip_old = false) {
    std::int32_t first_row = 0;
    const auto lengths = golden_.integers("context_length");
    for (std::size_t s = 0; s < lengths.size(); ++s) {
      std::int32_t p = skip_old ? std::max(lengths[s] - drafter().window() + 1, 0) : 0;
      for (; p < lengths[s]; p += chunk) {
        const ContextSlice slice{.first_row = first_row + p,
                                 .num_tokens = std::min(chunk, lengths[s] - p),
                                 .first_position = p,
                                 .block_table = tables_[s]};
        drafter().insert_context(context, streams_, {&slice, 1}, cache());
      }
      first_row += lengths[s];
    }
  }
  void insert_all(const ops::OpContext& context) {
    std::vector<ContextSlice> slices;
    std::int32_t first_row = 0;
    const auto lengths = golden_.integers("context_length");
    for (std::size_t s = 0; s < lengths.size(); ++s) {
      slices.push_back({.first_row = first_row,
                        .num_tokens = lengths[s],
                        .first_position = 0,
                        .block_table = tables_[s]});
      first_row += lengths[s];
    }
    drafter().insert_context(context, streams_, slices, cache());
  }

  std::vector<DraftRequest> requests() const {
    std::vector<DraftRequest> all;
    const auto lengths = golden_.integers("context_length");
    for (std::size_t s = 0; s < lengths.size(); ++s) {
      all.push_back({.anchor = golden_.integers("anchor")[s],
                     .position = lengths[s],
                     .block_table = tables_[s]});
    }
    return all;
  }

  /// K or V of one token of sequence `s`: [kv heads][head_dim].
  std::vector<float> stored(std::size_t s, std::int32_t position, int layer, bool is_key) const {
    std::vector<float> out;
    const std::int64_t row = tables_[s][static_cast<std::size_t>(position / kBlockTokens)].value;
    for (int head = 0; head < 2; ++head) {
      const CachePlane plane =
          is_key ? layout_.drafter_k(layer, head) : layout_.drafter_v(layer, head);
      std::vector<float> x(static_cast<std::size_t>(plane.dim));
      decode_cache_vector(
          plane.dtype, DequantMode::kExact,
          plane.data(pool_.data() + row * layout_.row_bytes(), position % kBlockTokens), nullptr, x,
          kScalarCodecs);
      out.insert(out.end(), x.begin(), x.end());
    }
    return out;
  }

 private:
  GoldenFile golden_;
  ModelConfig config_;
  Checkpoint checkpoint_;
  PackedWeights target_;
  LoadedDrafter loaded_;
  CacheRowLayout layout_;
  Buffer pool_;
  std::vector<std::vector<BlockId>> tables_;
  std::vector<const float*> streams_;
};

void for_each_drafting_backend(
    const std::function<void(const ops::Backend&, const ops::OpContext&)>& check) {
  ops::testing::for_each_backend([&](const ops::Backend& backend, const ops::OpContext& context) {
    if (backend.draft_attention != nullptr) check(backend, context);
  });
}

/// Largest |actual - expected| over the largest |expected|.
double error_of(std::span<const float> expected, std::span<const float> actual) {
  EXPECT_EQ(expected.size(), actual.size());
  double worst = 0, largest = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double difference = std::fabs(double{expected[i]} - double{actual[i]});
    if (std::isnan(difference)) return difference;
    worst = std::max(worst, difference);
    largest = std::max(largest, std::fabs(double{expected[i]}));
  }
  return worst / largest;
}

constexpr double kTolerance = 1e-4;

class DsparkDrafterReference : public ::testing::TestWithParam<const Trio*> {};
INSTANTIATE_TEST_SUITE_P(, DsparkDrafterReference, ::testing::Values(&kNano, &kTrained, &kQwen3),
                         [](const auto& tested) {
                           return std::string(tested.param == &kNano      ? "random"
                                              : tested.param == &kTrained ? "trained"
                                                                          : "qwen3");
                         });

TEST_P(DsparkDrafterReference, HasTheSameContext) {
  for_each_drafting_backend([](const ops::Backend& backend, const ops::OpContext& context) {
    Fixture fixture(backend, CacheDType::kF32, *GetParam());
    fixture.insert_all(context);
    std::vector<float> keys, values;
    const auto lengths = fixture.golden().integers("context_length");
    for (std::size_t s = 0; s < lengths.size(); ++s) {
      for (std::int32_t p = 0; p < lengths[s]; ++p) {
        for (int layer = 0; layer < 2; ++layer) {
          const auto k = fixture.stored(s, p, layer, true);
          const auto v = fixture.stored(s, p, layer, false);
          keys.insert(keys.end(), k.begin(), k.end());
          values.insert(values.end(), v.begin(), v.end());
        }
      }
    }
    EXPECT_LE(error_of(fixture.golden().floats("context_k"), keys), kTolerance);
    EXPECT_LE(error_of(fixture.golden().floats("context_v"), values), kTolerance);
  });
}

TEST_P(DsparkDrafterReference, HasTheSameDraft) {
  for_each_drafting_backend([](const ops::Backend& backend, const ops::OpContext& context) {
    Fixture fixture(backend, CacheDType::kF32, *GetParam());
    DsparkDrafter& drafter = fixture.drafter();
    const GoldenFile& golden = fixture.golden();
    fixture.insert_all(context);
    const auto requests = fixture.requests();
    const std::size_t count = requests.size();
    const std::int32_t num_tokens = drafter.max_draft_tokens();
    const auto block = static_cast<std::size_t>(num_tokens);
    drafter.draft(context, requests, num_tokens, fixture.cache());
    const std::size_t vocab = golden.floats("logits").size() / count / block;
    const std::span logits(drafter.logits(), count * block * vocab);
    EXPECT_LE(error_of(golden.floats("hidden"), {drafter.hidden(), golden.floats("hidden").size()}),
              kTolerance);
    EXPECT_LE(error_of(golden.floats("logits"), logits), kTolerance);

    // Left to right, each slot after the reference's token before it; ours must be the same.
    std::vector<TokenId> previous(golden.integers("anchor").begin(),
                                  golden.integers("anchor").end());
    std::vector<float> confidence(count);
    for (std::int32_t slot = 0; slot < num_tokens; ++slot) {
      drafter.step(context, slot, previous, confidence);
      for (std::size_t s = 0; s < count; ++s) {
        const std::size_t at = s * block + static_cast<std::size_t>(slot);
        const auto row = logits.subspan(at * vocab, vocab);
        EXPECT_NEAR(confidence[s], golden.floats("confidence")[at], kTolerance) << s << " " << slot;
        previous[s] = static_cast<TokenId>(std::max_element(row.begin(), row.end()) - row.begin());
        EXPECT_EQ(previous[s], golden.integers("tokens")[at]) << s << " " << slot;
      }
    }
    EXPECT_LE(error_of(golden.floats("biased"), logits), kTolerance);
  });
}

/// Bits do not ask what weights are worth: the random drafters, one of each kind.
class DsparkDrafterBits : public ::testing::TestWithParam<const Trio*> {};
INSTANTIATE_TEST_SUITE_P(, DsparkDrafterBits, ::testing::Values(&kNano, &kQwen3),
                         [](const auto& tested) {
                           return std::string(tested.param == &kNano ? "minimax" : "qwen3");
                         });

// Spec 11 item 2: prefix reuse and preemption rely on it.
TEST_P(DsparkDrafterBits, ContextInAnyChunksIsTheSameBytes) {
  ops::testing::TestContext reference(1);
  for (const CacheDType dtype : {CacheDType::kFp8, CacheDType::kBF16}) {
    Fixture expected(ops::make_scalar_backend(), dtype, *GetParam());
    expected.insert_all(reference.get());
    for_each_drafting_backend([&](const ops::Backend& backend, const ops::OpContext& context) {
      Fixture fixture(backend, dtype, *GetParam());
      for (const std::int32_t chunk : {1, 7, 128}) {
        fixture.clear();
        fixture.insert(context, chunk);
        EXPECT_TRUE(ops::testing::bits_equal(expected.bytes(), fixture.bytes(),
                                             {std::ssize(expected.bytes())}));
      }
    });
  }
}

TEST_P(DsparkDrafterBits, ARequestAloneGivesTheSameBits) {
  ops::testing::TestContext reference(1);
  for (const std::int32_t num_tokens : {1, 3, 5}) {
    Fixture expected(ops::make_scalar_backend(), CacheDType::kFp8, *GetParam());
    expected.insert_all(reference.get());
    const auto requests = expected.requests();
    expected.drafter().draft(reference.get(), requests, num_tokens, expected.cache());
    const auto size = static_cast<std::size_t>(num_tokens) * kVocab;
    const std::vector<float> all(expected.drafter().logits(),
                                 expected.drafter().logits() + requests.size() * size);
    for_each_drafting_backend([&](const ops::Backend& backend, const ops::OpContext& context) {
      Fixture fixture(backend, CacheDType::kFp8, *GetParam());
      // What the window cannot reach was never written: it must not be read.
      fixture.insert(context, 5, true);
      for (std::size_t s = 0; s < requests.size(); ++s) {
        fixture.drafter().draft(context, {&requests[s], 1}, num_tokens, fixture.cache());
        EXPECT_TRUE(ops::testing::bits_equal(std::span(all).subspan(s * size, size),
                                             {fixture.drafter().logits(), size},
                                             {num_tokens, kVocab}));
      }
    });
  }
}

/// The Qwen3 golden drafter with an embedding and an lm_head of its own: the target's, times a
/// power of two, whose products are exact.
void write_with_own_tables(const fs::path& folder, float embed_factor, float head_factor) {
  constexpr std::int64_t kWidth = 128;
  const Checkpoint target(kQwen3.target);
  const ModelWeights weights = load_weights(target, read_model_config(kQwen3.target));
  const WeightMatrix* const sources[] = {&weights.embed, &weights.lm_head};
  const float factors[] = {embed_factor, head_factor};
  const SafetensorsFile file(kQwen3.drafter / "dspark/model.safetensors");
  std::vector<SafetensorsWriter::Tensor> tensors;
  for (const StoredTensor& stored : file.tensors()) {
    tensors.push_back({stored.name, stored.dtype, stored.shape});
  }
  for (const char* name : {"embed_tokens.weight", "lm_head.weight"}) {
    tensors.push_back({name, DType::kF32, {kVocab, kWidth}});
  }
  fs::copy_file(kQwen3.drafter / "dspark/config.json", folder / "config.json",
                fs::copy_options::overwrite_existing);
  SafetensorsWriter writer(folder / "model.safetensors", tensors);
  for (const StoredTensor& stored : file.tensors()) {
    const TensorView view = file.view(stored);
    writer.append(stored.name, {view.data, static_cast<std::size_t>(view.num_bytes())});
  }
  for (std::size_t i = 0; i < 2; ++i) {
    std::vector<float> values(kVocab * kWidth);
    dequantize_rows(*sources[i], 0, kVocab, values.data());
    for (float& value : values) value *= factors[i];
    writer.append(tensors[tensors.size() - 2 + i].name, std::as_bytes(std::span(values)));
  }
  writer.finish();
}

TEST(DsparkDrafter, TablesOfItsOwnAreUsed) {
  const TemporaryFolder folder;
  Trio own = kQwen3;
  own.drafter = folder.path();
  const auto logits_of = [](Fixture& fixture, const ops::OpContext& context) {
    fixture.insert_all(context);
    const auto requests = fixture.requests();
    fixture.drafter().draft(context, requests, 5, fixture.cache());
    return std::vector<float>(
        fixture.drafter().logits(),
        fixture.drafter().logits() + requests.size() * 5 * static_cast<std::size_t>(kVocab));
  };
  for_each_drafting_backend([&](const ops::Backend& backend, const ops::OpContext& context) {
    Fixture shared(backend, CacheDType::kF32, kQwen3);
    const std::vector<float> expected = logits_of(shared, context);
    write_with_own_tables(folder.path(), 1.0F, 2.0F);
    Fixture own_head(backend, CacheDType::kF32, own);
    std::vector<float> doubled = logits_of(own_head, context);
    for (float& logit : doubled) logit /= 2;
    EXPECT_TRUE(ops::testing::bits_equal(expected, doubled, {std::ssize(expected)}));
    write_with_own_tables(folder.path(), 4.0F, 1.0F);
    Fixture own_embedding(backend, CacheDType::kF32, own);
    EXPECT_NE(expected, logits_of(own_embedding, context));
    EXPECT_GE(own_embedding.drafter().weight_bytes(), shared.drafter().weight_bytes());
  });
}

// The bias is of the request's own previous token, and of its slot alone.
TEST(DsparkDrafter, AStepTouchesItsSlotAlone) {
  ops::testing::TestContext context(1);
  Fixture fixture(ops::make_scalar_backend(), CacheDType::kF32);
  fixture.insert_all(context.get());
  const auto requests = fixture.requests();
  DsparkDrafter& drafter = fixture.drafter();
  drafter.draft(context.get(), requests, 3, fixture.cache());
  const auto size = requests.size() * 3 * static_cast<std::size_t>(kVocab);
  const std::vector<float> before(drafter.logits(), drafter.logits() + size);
  std::vector<TokenId> previous(requests.size());
  std::iota(previous.begin(), previous.end(), 40);
  drafter.step(context.get(), 1, previous, {});
  for (std::size_t i = 0; i < size; ++i) {
    if (i / kVocab % 3 == 1) continue;
    ASSERT_EQ(drafter.logits()[i], before[i]) << i;
  }
  EXPECT_NE(drafter.logits()[kVocab], before[kVocab]);
}

TEST(DsparkDrafter, WhatDoesNotFitIsRefused) {
  ops::testing::TestContext context(1);
  Fixture fixture(ops::make_scalar_backend(), CacheDType::kF32);
  DsparkDrafter& drafter = fixture.drafter();
  const auto is_refused = [&](DraftRequest request, std::int32_t num_tokens) {
    try {
      drafter.draft(context.get(), {&request, 1}, num_tokens, fixture.cache());
      return false;
    } catch (const Error& error) {
      return error.code() == ErrorCode::kInternal;
    }
  };
  EXPECT_FALSE(is_refused({.anchor = 5, .position = 0, .block_table = {}}, 7));
  EXPECT_TRUE(is_refused({.anchor = 5, .position = 0, .block_table = {}}, 8));
  EXPECT_TRUE(is_refused({.anchor = 5, .position = 0, .block_table = {}}, 0));
  EXPECT_TRUE(is_refused({.anchor = 512, .position = 0, .block_table = {}}, 7));
  EXPECT_TRUE(is_refused({.anchor = 5, .position = 1, .block_table = {}}, 7));
  EXPECT_TRUE(is_refused({.anchor = 5, .position = 250, .block_table = {}}, 7));
  EXPECT_THROW(drafter.cache_shape(CacheDType::kNvfp4), Error);
  EXPECT_EQ(drafter.max_draft_tokens(), 7);
  EXPECT_EQ(drafter.window(), 24);

  ops::Backend without = ops::make_scalar_backend();
  without.draft_attention = nullptr;
  EXPECT_THROW(Fixture(without, CacheDType::kF32), Error);
}

}  // namespace
}  // namespace winnow
