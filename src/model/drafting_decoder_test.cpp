// Target and drafter on one cache: what the drafter's context is made of when a real step captures
// its streams, however the prompt came in.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "checkpoint/testing/random_checkpoint.h"
#include "checkpoint/testing/temporary_folder.h"
#include "model/dspark_drafter.h"
#include "model/load_decoder.h"
#include "ops/testing/compare_bits.h"
#include "ops/testing/hosted_cuda.h"

namespace winnow {
namespace {

constexpr std::int32_t kPrompt = 61;  // beyond the window of 24, inside a block of 16
constexpr std::int32_t kDraft = 7;
constexpr std::int32_t kVocab = 96;

TokenId token_at(std::int32_t position) { return (position * 29 + 3) % kVocab; }

/// A target with its drafter, as an engine holds them.
class Pair {
 public:
  Pair(const std::filesystem::path& folder, const std::string& backend, bool with_drafter = true) {
    const ModelConfig config = read_model_config(folder);
    const DrafterConfig drafter_config = read_drafter_config(folder, config);
    DecoderOptions options{
        .max_num_batched_tokens = 128, .max_positions = 0, .num_blocks = 16, .num_threads = 2};
    if (with_drafter) {
      options.captured_layers = drafter_config.target_layers;
      options.drafter_cache = drafter_cache_shape(drafter_config, CacheDType::kFp8);
    }
    target_ = load_decoder(folder, backend, options);
    for (std::int32_t b = 0; b < 8; ++b) table_.push_back(BlockId{b * 2 + 1});
    if (!with_drafter) return;
    drafter_ = load_drafter(folder, config, target_.decoder->shared_tables(),
                            target_.decoder->backend(), 256);
  }

  Decoder& decoder() { return *target_.decoder; }
  DsparkDrafter& drafter() { return *drafter_.drafter; }

  /// Tokens [first, first + count) through the target; the context of the first `committed`.
  std::vector<float> run(std::int32_t first, std::int32_t count, std::int32_t committed) {
    Batch batch;
    for (std::int32_t p = first; p < first + count; ++p) batch.tokens.push_back(token_at(p));
    batch.sequences = {
        {.first_token = 0, .num_tokens = count, .first_position = first, .block_table = table_}};
    batch.logit_rows = {count - 1};
    std::vector<float> logits(kVocab);
    decoder().run(batch, logits);
    if (drafter_.drafter == nullptr) return logits;
    const ContextSlice slice{
        .first_row = 0, .num_tokens = committed, .first_position = first, .block_table = table_};
    drafter().insert_context(decoder().op_context(), decoder().captured(), {&slice, 1},
                             decoder().cache_view());
    return logits;
  }

  std::vector<float> draft(std::int32_t position) {
    const DraftRequest request = request_at(position);
    drafter().draft(decoder().op_context(), {&request, 1}, kDraft, decoder().cache_view());
    return logits(0, kDraft);
  }
  /// Of the last draft's slots [first, first + count) of one request.
  std::vector<float> logits(std::int64_t first, std::int64_t count) {
    std::vector<float> rows(static_cast<std::size_t>(count * kVocab));
    decoder().memory()->download(rows.data(), drafter().logits() + first * kVocab,
                                 std::ssize(rows) * std::int64_t{sizeof(float)});
    return rows;
  }
  DraftRequest request_at(std::int32_t position) const {
    return {.anchor = token_at(position), .position = position, .block_table = table_};
  }

 private:
  LoadedModel target_;
  LoadedDrafter drafter_;
  std::vector<BlockId> table_;
};

struct Tested {
  std::string backend;
  DrafterKind kind = DrafterKind::kMinimax;
};

class DraftingDecoder : public ::testing::TestWithParam<Tested> {
 protected:
  DraftingDecoder() {
    RandomCheckpoint options;
    options.drafter = RandomDrafter{};
    if (GetParam().kind == DrafterKind::kQwen3) {
      options.drafter = {
          .kind = DrafterKind::kQwen3, .has_own_tables = true, .linears = MatrixSpelling::kBF16};
    }
    write_random_checkpoint(folder_.path(), options);
  }
  std::string backend() const { return GetParam().backend; }
  TemporaryFolder folder_;
};

std::vector<Tested> all_tested() {
  std::vector<std::string> names{"scalar", "cpu"};
  if (ops::testing::has_cuda_device()) names.insert(names.end(), {"cuda-exact", "cuda"});
  if (const char* const only = std::getenv("WINNOW_TEST_BACKEND")) names = {only};
  std::vector<Tested> all;
  for (const std::string& name : names) {
    for (const DrafterKind kind : {DrafterKind::kMinimax, DrafterKind::kQwen3}) {
      all.push_back({name, kind});
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(, DraftingDecoder, ::testing::ValuesIn(all_tested()),
                         [](const auto& tested) {
                           std::string name = tested.param.backend;
                           std::ranges::replace(name, '-', '_');
                           return name + (tested.param.kind == DrafterKind::kQwen3 ? "_qwen3" : "");
                         });

TEST_P(DraftingDecoder, ChunksOfThePromptGiveTheSameDraft) {
  Pair whole(folder_.path(), backend());
  whole.run(0, kPrompt, kPrompt);
  const auto expected = whole.draft(kPrompt);
  for (const std::int32_t chunk : {1, 7, 16, 50}) {
    Pair chunked(folder_.path(), backend());
    for (std::int32_t p = 0; p < kPrompt; p += chunk) {
      const std::int32_t count = std::min(chunk, kPrompt - p);
      chunked.run(p, count, count);
    }
    EXPECT_TRUE(ops::testing::bits_equal(expected, chunked.draft(kPrompt), {kDraft, kVocab}))
        << chunk;
  }
}

// Spec 3.4: rejected rows leave stale slots behind, and nothing reads them.
TEST_P(DraftingDecoder, RejectedRowsLeaveNoTrace) {
  Pair plain(folder_.path(), backend());
  plain.run(0, kPrompt, kPrompt);
  plain.run(kPrompt, 2, 2);
  const auto expected = plain.draft(kPrompt + 2);

  Pair verifying(folder_.path(), backend());
  verifying.run(0, kPrompt, kPrompt);
  const auto before = verifying.draft(kPrompt);
  verifying.run(kPrompt, 1 + kDraft, 2);  // the anchor and one of seven drafts are committed
  EXPECT_TRUE(ops::testing::bits_equal(expected, verifying.draft(kPrompt + 2), {kDraft, kVocab}));
  EXPECT_TRUE(ops::testing::bits_equal(before, verifying.draft(kPrompt), {kDraft, kVocab}));
}

// Also of recorded blocks: the same counts come again with other anchors, other positions and more
// context, after the pool and the number of requests have changed.
TEST_P(DraftingDecoder, TokensDrawnWithTheBlockAreThoseOfTheChain) {
  Pair pair(folder_.path(), backend());
  pair.run(0, kPrompt, kPrompt);
  pair.decoder().set_drafter(&pair.drafter());
  if (!pair.decoder().can_draw_drafts()) GTEST_SKIP() << "tokens are drawn on the host";
  const auto drawn_for = [&](std::span<const DraftRequest> requests) {
    const std::size_t count = requests.size() * kDraft;
    const std::vector<ops::Draw> draws(count, {.is_greedy = 1});
    std::vector<ops::Drawn> drawn(count, {ops::DrawStatus::kCorruptLogits, -1});
    std::vector<float> confidence(count, -1.0F);
    pair.decoder().draft_and_draw(requests, kDraft,
                                  {.draws = draws, .drawn = drawn, .confidence = confidence});
    return std::pair(drawn, confidence);
  };
  const auto expect_chain = [&](std::int32_t position) {
    const DraftRequest request = pair.request_at(position);
    const DraftRequest other = pair.request_at(position / 2);
    const auto [drawn, confidence] = drawn_for({&request, 1});
    const auto [of_two, confidence_of_two] = drawn_for(std::vector{other, request});
    // More than are drawn together.
    const auto of_many = drawn_for(std::vector(70, request)).first;
    pair.decoder().draft({&request, 1}, kDraft);
    TokenId previous = request.anchor;
    for (std::int32_t slot = 0; slot < kDraft; ++slot) {
      float expected = 0.0F;
      pair.drafter().step(pair.decoder().op_context(), slot, {&previous, 1}, {&expected, 1});
      const std::vector<float> row = pair.logits(slot, 1);
      previous = static_cast<TokenId>(std::ranges::max_element(row) - row.begin());
      const auto i = static_cast<std::size_t>(slot);
      ASSERT_EQ(drawn[i].status, ops::DrawStatus::kOk);
      ASSERT_EQ(drawn[i].token, previous) << "position " << position << ", slot " << slot;
      ASSERT_EQ(of_two[2 * i + 1].token, previous);
      ASSERT_EQ(of_many[70 * i].token, previous);
      ASSERT_EQ(of_many[70 * i + 69].token, previous);
      ASSERT_EQ(confidence[i], expected);
      ASSERT_EQ(confidence_of_two[2 * i + 1], expected);
    }
  };
  for (const std::int32_t position : {kPrompt, 30, 17, 1}) expect_chain(position);
  pair.decoder().allocate_pool(20);
  pair.run(0, kPrompt, kPrompt);
  for (const std::int32_t position : {kPrompt, 48, 20}) expect_chain(position);
}

TEST_P(DraftingDecoder, TheTargetsLogitsAreThoseWithoutADrafter) {
  Pair with(folder_.path(), backend());
  Pair without(folder_.path(), backend(), false);
  for (const auto& [first, count] : {std::pair{0, kPrompt}, {kPrompt, 8}, {kPrompt + 8, 1}}) {
    EXPECT_TRUE(ops::testing::bits_equal(without.run(first, count, 0),
                                         with.run(first, count, count), {kVocab}));
  }
  EXPECT_EQ(with.decoder().cache_layout().bytes_per_token(),
            without.decoder().cache_layout().bytes_per_token() + 2 * 2 * 2 * 32);
  EXPECT_NE(with.decoder().cache_identity(), without.decoder().cache_identity());
}

}  // namespace
}  // namespace winnow
