#include "engine/testing/fake_runner.h"

#include <algorithm>
#include <limits>
#include <set>

#include "base/assert.h"
#include "base/error.h"

namespace winnow::testing {
namespace {

std::uint64_t mix(std::uint64_t x) {  // splitmix64
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

std::uint64_t adapter_of(const BatchSequence& sequence) {
  return sequence.adapter != nullptr ? sequence.adapter->fingerprint() : 0;
}

}  // namespace

FakeRunner::FakeRunner(const FakeRunnerOptions& options)
    : options_(options),
      slots_(static_cast<std::size_t>(options.num_blocks) *
             static_cast<std::size_t>(options.block_tokens)),
      masks_(static_cast<std::size_t>(options.num_token_masks)) {
  poison_pool();
}

void FakeRunner::poison_pool() {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    slots_[i] = {.key = mix(i), .value = mix(~i), .position = -1};
  }
}

void FakeRunner::run(const Batch& batch, std::span<float> logits) {
  if (before_step) before_step(batch);
  WINNOW_ASSERT(logits.size() == batch.logit_rows.size() * static_cast<std::size_t>(vocab_size()),
                "one row of logits per asked token", logits.size(), batch.logit_rows.size());
  ++num_steps;
  num_tokens += std::ssize(batch.tokens);
  max_batch_tokens = std::max(max_batch_tokens, static_cast<std::int32_t>(batch.tokens.size()));
  if (std::ranges::count(batch.tokens, failing_token) > 0) {
    for (const BatchSequence& sequence : batch.sequences) {
      for (std::int32_t i = 0; i < sequence.num_tokens; ++i) {
        slot(sequence, sequence.first_position + i) = {.key = 13, .value = 13, .position = -1};
      }
    }
    throw Error(ErrorCode::kInternal, "the device has lost its way");
  }
  count_adapters(batch);
  last_sequences_ = batch.sequences;
  for (const BatchSequence& sequence : batch.sequences) write(batch, sequence);
  selections_.clear();
  std::size_t row = 0;
  for (const BatchSequence& sequence : batch.sequences) {
    const std::int32_t end = sequence.first_token + sequence.num_tokens;
    while (row < batch.logit_rows.size() && batch.logit_rows[row] < end) {
      const auto size = static_cast<std::size_t>(vocab_size());
      const std::uint64_t state =
          fill_logits(batch, sequence, batch.logit_rows[row], logits.subspan(row * size, size));
      if (std::ranges::binary_search(batch.selection_rows, static_cast<std::int32_t>(row))) {
        add_selection(state);
      }
      ++row;
    }
  }
  WINNOW_ASSERT(row == batch.logit_rows.size(), "rows are ascending tokens of the batch", row);
}

void FakeRunner::set_token_mask(std::int32_t mask, std::span<const std::uint32_t> banned) {
  ++num_masks_set;
  masks_[static_cast<std::size_t>(mask)].assign(banned.begin(), banned.end());
}

ops::Drawn FakeRunner::draw_from(std::span<const float> logits, const ops::Draw& draw) {
  constexpr float kMasked = -std::numeric_limits<float>::infinity();
  std::vector<float> row(logits.begin(), logits.end());
  RowScan scan = row_kernels().scan(row);
  if (scan.is_bad || scan.max == kMasked) return {.status = ops::DrawStatus::kCorruptLogits};
  for (std::size_t t = 0; draw.mask >= 0 && t < row.size(); ++t) {
    const auto& banned = masks_[static_cast<std::size_t>(draw.mask)];
    if ((banned[t / 32] >> (t % 32) & 1U) != 0) row[t] = kMasked;
  }
  scan = row_kernels().scan(row);
  if (scan.max == kMasked) return {.status = ops::DrawStatus::kNothingAllowed};
  return {.token = draw_token(row, scan, draw, scratch_)};
}

void FakeRunner::run_and_draw(const Batch& batch, const StepOutputs& outputs) {
  const auto size = static_cast<std::size_t>(vocab_size());
  run(batch, outputs.logits);
  for (std::size_t i = 0; i < outputs.draws.size(); ++i) {
    const ops::Draw& draw = outputs.draws[i];
    ++num_draws;
    outputs.drawn[i] =
        draw_from(outputs.logits.subspan(static_cast<std::size_t>(draw.row) * size, size), draw);
  }
  for (std::size_t row = 0; row < outputs.wants_row.size(); ++row) {
    if (outputs.wants_row[row] != 0) continue;
    std::ranges::fill(outputs.logits.subspan(row * size, size),
                      std::numeric_limits<float>::quiet_NaN());
  }
}

void FakeRunner::copy_block(BlockId from, BlockId to) {
  const auto size = static_cast<std::size_t>(block_tokens());
  const auto begin = [&](BlockId block) {
    return slots_.begin() +
           static_cast<std::ptrdiff_t>(static_cast<std::size_t>(block.value) * size);
  };
  std::copy_n(begin(from), size, begin(to));
}

void FakeRunner::commit_context(std::span<const ContextSlice> slices) {
  if (fails_to_commit) throw Error(ErrorCode::kInternal, "the drafter has lost its way");
  auto next = last_sequences_.begin();
  for (const ContextSlice& slice : slices) {
    while (next != last_sequences_.end() && next->first_token != slice.first_row) ++next;
    WINNOW_ASSERT(next != last_sequences_.end(), "slices are of the step, in its order",
                  slice.first_row, slices.size());
    const BatchSequence& sequence = *next++;
    WINNOW_ASSERT(slice.first_row == sequence.first_token &&
                      slice.first_position == sequence.first_position &&
                      slice.num_tokens <= sequence.num_tokens,
                  "slices are of the step", slice.first_row, sequence.first_token);
    for (std::int32_t t = 0; t < sequence.num_tokens; ++t) {
      Slot& written = slot(slice.block_table, slice.first_position + t);
      if (t < slice.num_tokens) {
        written.context = written.value;
      } else {
        written = {.key = 17, .value = 17, .position = -1};
      }
    }
  }
}

void FakeRunner::draft(std::span<const DraftRequest> requests, std::int32_t length) {
  if (fails_to_draft) throw Error(ErrorCode::kInternal, "the drafter has lost its way");
  num_draft_tokens_ = length;
  draft_logits_.resize(requests.size() * static_cast<std::size_t>(length) *
                       static_cast<std::size_t>(vocab_size()));
  drafts_.clear();
  for (const DraftRequest& request : requests) {
    Draft draft{.state = options_.weights, .position = request.position};
    for (std::int32_t position = 0; position < request.position; ++position) {
      const Slot& seen = slot(request.block_table, position);
      num_blind_slots += seen.position != position || seen.context != seen.value ? 1 : 0;
      draft.state = mix(draft.state ^ seen.key) + seen.value;
      draft.history = seen.value;
    }
    drafts_.push_back(draft);
  }
}

void FakeRunner::draft_step(std::int32_t slot, std::span<const TokenId> previous,
                            std::span<float> confidence) {
  const auto size = static_cast<std::size_t>(vocab_size());
  for (std::size_t i = 0; i < drafts_.size(); ++i) {
    Draft& draft = drafts_[i];
    const Slot next = make_slot(previous[i], draft.position++, draft.history);
    draft.state = mix(draft.state ^ next.key) + next.value;
    draft.history = next.value;
    const bool is_right =
        mix(~draft.state) % 100 < static_cast<std::uint64_t>(options_.percent_right);
    if (!confidence.empty()) confidence[i] = is_right ? 0.9F : 0.2F;
    const std::size_t row =
        i * static_cast<std::size_t>(num_draft_tokens_) + static_cast<std::size_t>(slot);
    fill_row(is_right ? draft.state : ~draft.state,
             std::span(draft_logits_).subspan(row * size, size));
  }
}

void FakeRunner::draft_and_draw(std::span<const DraftRequest> requests, std::int32_t length,
                                const BlockDraws& outputs) {
  const std::size_t count = requests.size();
  const auto size = static_cast<std::size_t>(vocab_size());
  std::vector<TokenId> previous;
  for (const DraftRequest& request : requests) previous.push_back(request.anchor);
  draft(requests, length);
  for (std::int32_t slot = 0; slot < length; ++slot) {
    draft_step(slot, previous, {});
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t at = static_cast<std::size_t>(slot) * count + i;
      const auto row = i * static_cast<std::size_t>(length) + static_cast<std::size_t>(slot);
      outputs.drawn[at] =
          draw_from(std::span(draft_logits_).subspan(row * size, size), outputs.draws[at]);
      previous[i] = outputs.drawn[at].token;
      ++num_drawn_drafts;
    }
  }
}

FakeRunner::Slot FakeRunner::make_slot(TokenId token, std::int32_t position,
                                       std::uint64_t history) const {
  const auto id = static_cast<std::uint64_t>(token);
  return {.key = mix(options_.weights ^ id << 32 ^ static_cast<std::uint64_t>(position)),
          .value = mix(history ^ mix(id + options_.weights)),
          .position = position};
}

void FakeRunner::fill_row(std::uint64_t state, std::span<float> row) const {
  for (std::size_t i = 0; i < row.size(); ++i) {
    const auto high = static_cast<float>(mix(state + i) >> 40);  // 24 bits: exact
    row[i] = (high * 0x1p-24F - 0.5F) * options_.logit_range;
  }
}

FakeRunner::Slot& FakeRunner::slot(std::span<const BlockId> block_table, std::int32_t position) {
  const auto entry = static_cast<std::size_t>(position / block_tokens());
  WINNOW_ASSERT(entry < block_table.size(), "the block table covers every position", position,
                block_table.size());
  const BlockId block = block_table[entry];
  WINNOW_ASSERT(block.value >= 0 && block.value < num_blocks(), "blocks are of the pool",
                block.value);
  return slots_[static_cast<std::size_t>(block.value) * static_cast<std::size_t>(block_tokens()) +
                static_cast<std::size_t>(position % block_tokens())];
}

void FakeRunner::write(const Batch& batch, const BatchSequence& sequence) {
  for (std::int32_t i = 0; i < sequence.num_tokens; ++i) {
    const std::int32_t position = sequence.first_position + i;
    const TokenId token =
        batch.tokens[static_cast<std::size_t>(sequence.first_token) + static_cast<std::size_t>(i)];
    const std::uint64_t history = position == 0 ? 0 : slot(sequence, position - 1).value;
    slot(sequence, position) = make_slot(token, position, history);
    slot(sequence, position).adapter = adapter_of(sequence);
  }
}

void FakeRunner::count_adapters(const Batch& batch) {
  std::set<const ModelAdapter*> adapters;
  for (const BatchSequence& sequence : batch.sequences) adapters.insert(sequence.adapter);
  adapters.erase(nullptr);
  max_batch_adapters = std::max(max_batch_adapters, static_cast<std::int32_t>(adapters.size()));
}

std::uint64_t FakeRunner::fill_logits(const Batch& batch, const BatchSequence& sequence,
                                      std::int32_t token, std::span<float> row) {
  if (batch.tokens[static_cast<std::size_t>(token)] == nan_token) {
    std::ranges::fill(row, std::numeric_limits<float>::quiet_NaN());
    return 0;
  }
  const std::int32_t last = sequence.first_position + token - sequence.first_token;
  std::uint64_t state = options_.weights;
  for (std::int32_t position = 0; position <= last; ++position) {
    const Slot& seen = slot(sequence, position);
    const bool is_own = seen.position == position && seen.adapter == adapter_of(sequence);
    num_foreign_slots += is_own ? 0 : 1;
    state = mix(state ^ seen.key) + seen.value;
  }
  // Of every third row, so that drafts of the model alone are worth something.
  const std::uint64_t adapted = mix(state ^ adapter_of(sequence));
  if (sequence.adapter != nullptr && adapted % 3 == 0) state = adapted;
  fill_row(state, row);
  return state;
}

SelectionShape FakeRunner::selection_shape() const {
  return {.layers = {1, 2}, .num_groups = 2, .top_k = 3};
}

void FakeRunner::add_selection(std::uint64_t state) {
  for (std::int64_t i = 0; i < selection_shape().row_size(); ++i) {
    selections_.push_back(
        static_cast<std::int32_t>(mix(state ^ ~static_cast<std::uint64_t>(i)) % 1000));
  }
}

}  // namespace winnow::testing
