#include "model/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <numeric>

#include "model/check_trace.h"
#include "model/comparison.h"
#include "model/decoder.h"
#include "model/golden.h"
#include "model/load_decoder.h"

namespace winnow {
namespace {

constexpr std::int32_t kMaxCheckedRank = 4096;

/// One sequence in blocks 0, 1, 2, … of a decoder's pool.
class SingleSequence {
 public:
  SingleSequence(Decoder& decoder, std::int64_t max_tokens, const ModelAdapter* adapter)
      : decoder_(decoder), adapter_(adapter) {
    const std::int64_t block_tokens = decoder.block_tokens();
    const auto num_blocks =
        static_cast<std::int32_t>((max_tokens + block_tokens - 1) / block_tokens);
    decoder.allocate_pool(num_blocks);
    for (std::int32_t b = 0; b < num_blocks; ++b) block_table_.push_back({b});
  }

  /// Appends tokens in one step; logits of the rows (indices into `tokens`).
  std::vector<float> step(std::span<const TokenId> tokens, std::vector<std::int32_t> rows) {
    std::vector<float> logits(rows.size() * static_cast<std::size_t>(decoder_.vocab_size()));
    Batch batch{
        .tokens = {tokens.begin(), tokens.end()}, .sequences = {}, .logit_rows = std::move(rows)};
    batch.sequences.push_back({.first_token = 0,
                               .num_tokens = static_cast<std::int32_t>(tokens.size()),
                               .first_position = length_,
                               .block_table = block_table_,
                               .adapter = adapter_});
    decoder_.run(batch, logits);
    length_ += static_cast<std::int32_t>(tokens.size());
    return logits;
  }

  std::int32_t length() const { return length_; }

 private:
  Decoder& decoder_;
  const ModelAdapter* adapter_;
  std::vector<BlockId> block_table_;
  std::int32_t length_ = 0;
};

/// Runs the prompt in chunks; compares the logits of the golden positions.
CheckLine check_prompt(SingleSequence& sequence, const Golden& golden, std::int64_t chunk_tokens,
                       std::int64_t vocab, double tolerance) {
  ValueComparison comparison;
  const std::int64_t num_tokens = std::ssize(golden.prompt);
  for (std::int64_t first = 0; first < num_tokens; first += chunk_tokens) {
    const std::int64_t count = std::min(chunk_tokens, num_tokens - first);
    // The chunk's golden positions, ascending, each with its row of the golden logits.
    std::vector<std::pair<std::int32_t, std::int64_t>> wanted;
    for (std::size_t i = 0; i < golden.positions.size(); ++i) {
      const std::int64_t row = golden.positions[i] - first;
      if (row >= 0 && row < count) {
        wanted.emplace_back(static_cast<std::int32_t>(row), static_cast<std::int64_t>(i));
      }
    }
    std::ranges::sort(wanted);
    // Not std::ranges::unique: clang 14, which fuzzes and lints, cannot read what it returns.
    const auto is_same_row = [](const auto& a, const auto& b) { return a.first == b.first; };
    wanted.erase(std::unique(wanted.begin(), wanted.end(), is_same_row), wanted.end());
    std::vector<std::int32_t> rows;
    rows.reserve(wanted.size());
    for (const auto& entry : wanted) rows.push_back(entry.first);
    const std::vector<float> logits = sequence.step(
        std::span(golden.prompt)
            .subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)),
        rows);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const auto width = static_cast<std::size_t>(vocab);
      comparison.add(std::span(logits).subspan(i * width, width),
                     std::span(golden.logits)
                         .subspan(static_cast<std::size_t>(wanted[i].second) * width, width));
    }
  }
  return comparison.line("logits", tolerance);
}

/// Continues with the cache, token by token. The golden token is fed at each step, so that one near
/// tie does not derail what follows.
std::vector<CheckLine> check_greedy(SingleSequence& sequence, const Golden& golden,
                                    std::int64_t vocab, double tolerance) {
  ValueComparison values;
  ChoiceComparison tokens;
  const auto width = static_cast<std::size_t>(vocab);
  // The first greedy token follows from the prompt's last position, which has run already.
  for (std::size_t i = 1; i < golden.greedy_tokens.size(); ++i) {
    const std::vector<float> logits =
        sequence.step(std::span(golden.greedy_tokens).subspan(i - 1, 1), {0});
    const auto reference = std::span(golden.greedy_logits).subspan(i * width, width);
    values.add(logits, reference);
    const auto best = static_cast<TokenId>(std::ranges::max_element(logits) - logits.begin());
    if (best == golden.greedy_tokens[i]) {
      tokens.add_equal();
      continue;
    }
    const double wanted = reference[static_cast<std::size_t>(golden.greedy_tokens[i])];
    const double gap = std::abs(wanted - double{reference[static_cast<std::size_t>(best)]});
    tokens.add_different(gap <= 2.0 * tolerance * std::abs(wanted));
  }
  return {values.line("greedy logits", tolerance), tokens.line("greedy tokens")};
}

std::string title_of(const Decoder& decoder, const CheckOptions& options) {
  const CacheRowShape& shape = decoder.cache_layout().shape();
  return fmt::format("backend {}, KV cache {}, index cache {}, dequantisation {}, {}",
                     decoder.backend().name, cache_dtype_name(shape.kv_dtype),
                     cache_dtype_name(shape.index_dtype), dequant_mode_name(decoder.dequant_mode()),
                     options.chunk_tokens == 0
                         ? std::string("prompt in one step")
                         : fmt::format("prompt in chunks of {}", options.chunk_tokens));
}

}  // namespace

CheckReport check_model(const std::filesystem::path& folder, const CheckOptions& options) {
  const ModelConfig config = read_model_config(folder);
  const Golden golden =
      read_golden(options.golden.empty() ? folder / "golden.safetensors" : options.golden, config);
  const std::int64_t prompt_tokens = std::ssize(golden.prompt);
  const std::int64_t chunk_tokens = options.chunk_tokens > 0 ? options.chunk_tokens : prompt_tokens;
  const LoadedModel model = load_decoder(
      folder, options.backend,
      {.kv_dtype = options.kv_dtype,
       .index_dtype = options.index_dtype,
       .dequant = options.dequant,
       .max_num_batched_tokens = static_cast<std::int32_t>(std::min(chunk_tokens, prompt_tokens)),
       .num_threads = options.num_threads});
  Decoder& decoder = *model.decoder;

  const auto start = std::chrono::steady_clock::now();
  std::shared_ptr<const ModelAdapter> adapter;
  if (!options.adapter.empty()) {
    adapter = decoder.load_adapter(options.adapter, {.max_rank = kMaxCheckedRank});
  }
  SingleSequence sequence(decoder, prompt_tokens + std::ssize(golden.greedy_tokens), adapter.get());
  CheckTrace trace(golden, options.tolerance);
  decoder.set_trace(&trace);
  const CheckLine logits =
      check_prompt(sequence, golden, chunk_tokens, config.vocab_size, options.tolerance);
  decoder.set_trace(nullptr);
  CheckReport report{.title = title_of(decoder, options), .lines = trace.lines()};
  report.lines.push_back(logits);
  if (!golden.greedy_tokens.empty()) {
    for (CheckLine& line : check_greedy(sequence, golden, config.vocab_size, options.tolerance)) {
      report.lines.push_back(std::move(line));
    }
  }
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  report.passed = std::ranges::all_of(report.lines, &CheckLine::passed);
  return report;
}

std::string CheckReport::text() const {
  std::string out =
      fmt::format("{}\n{:<24}{:>14}{:>14}{:>14}\n", title, "", "max error", "relative", "median");
  for (const CheckLine& line : lines) {
    const char* const verdict = line.passed ? "ok" : "FAILED";
    if (line.is_choice) {
      const std::string ties =
          line.num_ties > 0 ? fmt::format(" ({} near ties)", line.num_ties) : "";
      out += fmt::format(
          "{:<24}{:>42}   {}\n", line.what,
          fmt::format("{} of {} differ{}", line.num_different, line.num_compared, ties), verdict);
    } else {
      out += fmt::format("{:<24}{:>14.3e}{:>14.3e}{:>14.3e}   {}\n", line.what, line.max_error,
                         line.relative_error, line.median_error, verdict);
    }
  }
  out += fmt::format("{} in {:.2f} s\n", passed ? "passed" : "FAILED", seconds);
  return out;
}

}  // namespace winnow
