#include "engine/speculate/measure_costs.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <vector>

#include "base/assert.h"
#include "model/model_runner.h"

namespace winnow {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr int kWarmups = 2;  // at least: a device records a step the second time
constexpr int kFewest = 3;   // of the first size, which pays for making threads, too
constexpr int kMaxRepeats = 6;
constexpr double kRepeatShare = 0.03;    // of the time: what the repeats of one size may take
constexpr std::int32_t kMaxRows = 512;   // beyond, times grow with the rows
constexpr std::int32_t kContext = 1024;  // at whose end the cost of a context is measured
constexpr double kBytesPerSecond = 1e9;  // "bytes" are nanoseconds where all is measured
constexpr std::int32_t kDraftWindow = 4096;

class CostMeter {
 public:
  CostMeter(ModelRunner& runner, const MeasureLimits& limits)
      : runner_(runner),
        limits_(limits),
        start_(SteadyClock::now()),
        max_rows_(std::min(limits.max_tokens, kMaxRows)) {}

  StepCosts measure() {
    StepCosts costs{.bytes_per_second = kBytesPerSecond};
    const std::int32_t block = 1 + limits_.num_drafts;
    for (std::int32_t count = 1;; count *= 2) {
      const bool has_time = elapsed() < limits_.seconds;
      const bool is_first = count == 1;
      if (!is_first && !has_time) break;
      bool is_any = false;
      if (const std::int32_t n = sequences_within(count, 1); n == count) {
        add(costs.step_times, count, [&] { run(n, 1, 0); });
        measure_commits(costs.step_times.back(), costs);
        measure_drafts(count, costs);
        is_any = true;
      }
      // Two sizes an octave, the smallest being a sequence with one draft.
      for (const std::int32_t rows : {2 * count, 3 * count}) {
        const std::int32_t length = std::min(rows, block);
        const std::int32_t n = rows / length;
        if (rows > max_rows_ || sequences_within(n, length) < n) continue;
        add(costs.verify_times, n * length, [&] { run(n, length, 0); });
        is_any = true;
      }
      if (!is_any) break;
    }
    settle_slots(costs);
    measure_context(costs);
    for (auto* times :
         {&costs.step_times, &costs.verify_times, &costs.draft_times, &costs.context_times}) {
      tidy(*times);
    }
    costs.validate();
    return costs;
  }

 private:
  struct Slots {
    std::int32_t num_requests = 0;
    double seconds = 0;  // of one
  };

  double elapsed() const {
    return std::chrono::duration<double>(SteadyClock::now() - start_).count();
  }

  std::int32_t blocks_of(std::int32_t num_tokens) const {
    return (num_tokens + runner_.block_tokens() - 1) / runner_.block_tokens();
  }

  /// How many sequences of `num_tokens` each a step can hold, at most `wanted`.
  std::int32_t sequences_within(std::int32_t wanted, std::int32_t num_tokens) const {
    return std::min({wanted, limits_.max_sequences, max_rows_ / num_tokens,
                     runner_.num_blocks() / blocks_of(num_tokens)});
  }

  /// `num_sequences` slices of `length` tokens from `first_position` on, a row of logits for each.
  void run(std::int32_t num_sequences, std::int32_t length, std::int32_t first_position) {
    const std::int32_t blocks = blocks_of(first_position + length);
    tables_.resize(static_cast<std::size_t>(num_sequences));
    batch_.tokens.clear();
    batch_.sequences.clear();
    batch_.logit_rows.clear();
    for (std::int32_t s = 0; s < num_sequences; ++s) {
      auto& table = tables_[static_cast<std::size_t>(s)];
      table.clear();
      for (std::int32_t b = 0; b < blocks; ++b) table.push_back(BlockId{s * blocks + b});
      batch_.sequences.push_back({.first_token = s * length,
                                  .num_tokens = length,
                                  .first_position = first_position,
                                  .block_table = table});
      for (std::int32_t t = 0; t < length; ++t) {
        batch_.logit_rows.push_back(static_cast<std::int32_t>(batch_.tokens.size()));
        batch_.tokens.push_back(next_token());
      }
    }
    run_batch();
  }

  void run_and_commit() {
    run_batch();
    commit();
  }

  void run_batch() {
    logits_.resize(batch_.logit_rows.size() * static_cast<std::size_t>(runner_.vocab_size()));
    runner_.run(batch_, logits_);
  }

  /// The drafter's context of the last batch.
  void commit() {
    slices_.clear();
    for (const BatchSequence& sequence : batch_.sequences) {
      slices_.push_back({.first_row = sequence.first_token,
                         .num_tokens = sequence.num_tokens,
                         .first_position = sequence.first_position,
                         .block_table = sequence.block_table});
    }
    runner_.commit_context(slices_);
  }

  /// Any tokens, so that experts are chosen as variously as they come.
  TokenId next_token() {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<TokenId>((state_ >> 33) % static_cast<std::uint64_t>(runner_.vocab_size()));
  }

  /// Least of a few times: what others do on the machine only ever adds.
  template <typename Work>
  double least_seconds(const Work& work) {
    return least_seconds(work, [] {});
  }
  /// `before` each time, which is not timed.
  template <typename Work, typename Before>
  double least_seconds(const Work& work, const Before& before) {
    double least = std::numeric_limits<double>::infinity();
    double spent = 0;
    const int fewest = is_any_measured_ ? kWarmups : kWarmups + kFewest;
    is_any_measured_ = true;
    for (int i = 0; i < kWarmups + kMaxRepeats; ++i) {
      const auto first = SteadyClock::now();
      before();
      const auto begin = SteadyClock::now();
      work();
      const auto end = SteadyClock::now();
      const double seconds = std::chrono::duration<double>(end - begin).count();
      spent += std::chrono::duration<double>(end - first).count();
      least = std::min(least, seconds);
      if (i + 1 >= fewest && spent > limits_.seconds * kRepeatShare) break;
    }
    return least;
  }

  template <typename Work>
  void add(std::vector<MeasuredTime>& times, std::int32_t count, const Work& work) {
    if (!times.empty() && times.back().count >= count) return;
    times.push_back({.count = count, .seconds = least_seconds(work)});
  }

  /// Each time after the last batch's step: again and again by itself a drafter of a few megabytes
  /// would stay in the caches that the target takes from it.
  double draft_seconds(std::int32_t num_requests, std::int32_t position, std::int32_t num_slots) {
    requests_.clear();
    previous_.assign(static_cast<std::size_t>(num_requests), 0);
    for (std::int32_t r = 0; r < num_requests; ++r) {
      requests_.push_back({.anchor = next_token(),
                           .position = position,
                           .block_table = tables_[static_cast<std::size_t>(r)]});
    }
    if (runner_.can_draw_drafts()) {  // as the proposer does where tokens are enough
      const std::vector<ops::Draw> draws(requests_.size() * static_cast<std::size_t>(num_slots),
                                         {.is_greedy = 1});
      std::vector<ops::Drawn> drawn(draws.size());
      return least_seconds(
          [&] { runner_.draft_and_draw(requests_, num_slots, {.draws = draws, .drawn = drawn}); },
          [&] { run_and_commit(); });
    }
    return least_seconds(
        [&] {
          runner_.draft(requests_, limits_.num_drafts);
          for (std::int32_t slot = 0; slot < num_slots; ++slot) {
            runner_.draft_step(slot, previous_, {});
            (void)runner_.draft_logits();
          }
        },
        [&] { run_and_commit(); });
  }

  /// After `step`, of so many sequences with a token each. A device works while the host goes on:
  /// what a few commits delay the step behind them is what they take.
  void measure_commits(const MeasuredTime& step, StepCosts& costs) {
    constexpr int kCommits = 4;
    const double seconds = least_seconds([&] {
      for (int i = 0; i < kCommits; ++i) commit();
      run_batch();
    });
    commit();
    costs.context_times.push_back(
        {.count = step.count, .seconds = std::max(seconds - step.seconds, 0.0) / kCommits});
  }

  /// After a step of `num_requests` sequences with a token each.
  void measure_drafts(std::int32_t num_requests, StepCosts& costs) {
    const double whole = draft_seconds(num_requests, 1, limits_.num_drafts);
    const double one = limits_.num_drafts > 1 ? draft_seconds(num_requests, 1, 1) : whole;
    const double slot =
        limits_.num_drafts > 1 ? std::max(whole - one, 0.0) / (limits_.num_drafts - 1) : 0.0;
    slots_.push_back({.num_requests = num_requests, .seconds = slot});
    costs.draft_times.push_back({.count = num_requests, .seconds = std::max(one - slot, 0.0)});
  }

  /// A slot's time as a constant and a part that grows with the sequences.
  void settle_slots(StepCosts& costs) const {
    const Slots& first = slots_.front();
    const Slots& last = slots_.back();
    if (last.num_requests > first.num_requests) {
      costs.draft_row_seconds =
          std::max((last.seconds - first.seconds) / (last.num_requests - first.num_requests), 0.0);
    }
    costs.draft_slot_seconds = std::max(first.seconds - costs.draft_row_seconds, 0.0);
  }

  /// What a context adds to a row, to each further row, and to a draft: where computing one is
  /// affordable.
  void measure_context(StepCosts& costs) {
    const std::int32_t block = 1 + limits_.num_drafts;
    const std::int64_t pool_tokens = std::int64_t{runner_.num_blocks()} * runner_.block_tokens();
    const auto context = static_cast<std::int32_t>(
        std::min<std::int64_t>({kContext, limits_.max_model_len - block, pool_tokens - block}));
    const MeasuredTime& largest =
        costs.verify_times.empty() ? costs.step_times.back() : costs.verify_times.back();
    if (context <= block || block > max_rows_) return;
    if (largest.seconds / largest.count * context > limits_.seconds) return;
    const double plain_before = least_seconds([&] { run(1, 1, 0); });
    const double verify_before = least_seconds([&] { run(1, block, 0); });
    commit();
    const double draft_before = draft_seconds(1, 1, limits_.num_drafts);
    prefill(context);
    const double plain = least_seconds([&] { run(1, 1, context); }) - plain_before;
    const double verify = least_seconds([&] { run(1, block, context); }) - verify_before;
    commit();
    const double draft = draft_seconds(1, context, limits_.num_drafts) - draft_before;
    const double tokens = context;
    costs.kv_token_bytes = std::max(plain, 0.0) / tokens * kBytesPerSecond;
    costs.row_kv_token_bytes = std::max(verify - std::max(plain, 0.0), 0.0) / tokens /
                               limits_.num_drafts * kBytesPerSecond;
    costs.draft_kv_token_bytes = std::max(draft, 0.0) / tokens * kBytesPerSecond;
    costs.draft_window = kDraftWindow;
  }

  /// Positions [0, num_tokens) of the sequence that run(1, …) continues.
  void prefill(std::int32_t num_tokens) {
    tables_.resize(1);
    tables_.front().clear();
    for (std::int32_t b = 0; b < blocks_of(num_tokens); ++b) {
      tables_.front().push_back(BlockId{b});
    }
    for (std::int32_t first = 0; first < num_tokens; first += limits_.max_tokens) {
      const std::int32_t count = std::min(limits_.max_tokens, num_tokens - first);
      batch_.tokens.clear();
      for (std::int32_t t = 0; t < count; ++t) batch_.tokens.push_back(next_token());
      batch_.sequences.assign(1, {.first_token = 0,
                                  .num_tokens = count,
                                  .first_position = first,
                                  .block_table = tables_.front()});
      batch_.logit_rows.clear();
      run_batch();
      commit();
    }
  }

  /// More never takes less.
  static void tidy(std::vector<MeasuredTime>& times) {
    std::ranges::sort(times, {}, &MeasuredTime::count);
    for (std::size_t i = 1; i < times.size(); ++i) {
      times[i].seconds = std::max(times[i].seconds, times[i - 1].seconds);
    }
  }

  ModelRunner& runner_;
  const MeasureLimits& limits_;
  SteadyClock::time_point start_;
  std::int32_t max_rows_;
  bool is_any_measured_ = false;
  std::uint64_t state_ = 1;
  Batch batch_;
  std::vector<std::vector<BlockId>> tables_;  // of the batch's sequences
  std::vector<float> logits_;
  std::vector<ContextSlice> slices_;
  std::vector<DraftRequest> requests_;
  std::vector<TokenId> previous_;
  std::vector<Slots> slots_;
};

}  // namespace

StepCosts measure_step_costs(ModelRunner& runner, const MeasureLimits& limits) {
  WINNOW_ASSERT(limits.num_drafts > 0 && limits.num_drafts <= runner.max_draft_tokens(),
                "a drafter to measure", limits.num_drafts, runner.max_draft_tokens());
  return CostMeter(runner, limits).measure();
}

}  // namespace winnow
