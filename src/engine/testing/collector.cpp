#include "engine/testing/collector.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "base/random.h"

namespace winnow::testing {
namespace {

void record(Collected& collected, OutputUpdate&& update) {
  const auto fail = [&](const char* what) {
    if (collected.fault.empty())
      collected.fault = fmt::format("choice {}: {}", update.choice, what);
  };
  if (collected.num_done > 0) fail("an update after on_done");
  ChoiceOutput& choice = collected.choices.at(static_cast<std::size_t>(update.choice));
  if (choice.finish_reason != FinishReason::kNone) fail("an update after the final one");
  if (update.tokens.empty() && update.finish_reason == FinishReason::kNone) fail("empty update");
  for (SampledToken& token : update.tokens) {
    choice.tokens.push_back(token.token);
    choice.logprobs.push_back(std::move(token.logprobs));
    choice.kept_blocks.push_back(std::move(token.kept_blocks));
  }
  if (!update.prompt_logprobs.empty()) {
    if (!collected.prompt_logprobs.empty()) fail("prompt logprobs came twice");
    collected.prompt_logprobs = std::move(update.prompt_logprobs);
  }
  if (update.finish_reason == FinishReason::kNone) return;
  choice.finish_reason = update.finish_reason;
  choice.stop_token = update.stop_token;
  choice.error_code = update.error_code;
  choice.error = std::move(update.error);
  ++choice.num_final_updates;
}

std::string difference(const TokenLogprob& a, const TokenLogprob& b) {
  if (a.token == b.token && a.rank == b.rank &&
      std::bit_cast<std::uint32_t>(a.logprob) == std::bit_cast<std::uint32_t>(b.logprob)) {
    return {};
  }
  return fmt::format("({}, {} = {:08x}, rank {}) against ({}, {} = {:08x}, rank {})", a.token,
                     a.logprob, std::bit_cast<std::uint32_t>(a.logprob), a.rank, b.token, b.logprob,
                     std::bit_cast<std::uint32_t>(b.logprob), b.rank);
}

std::string difference(const std::vector<TokenLogprob>& a, const std::vector<TokenLogprob>& b) {
  if (a.size() != b.size()) return fmt::format("{} entries against {}", a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::string text = difference(a[i], b[i]); !text.empty()) return text;
  }
  return {};
}

std::string difference(const std::vector<std::optional<PositionLogprobs>>& a,
                       const std::vector<std::optional<PositionLogprobs>>& b) {
  if (a.size() != b.size()) return fmt::format("{} positions against {}", a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].has_value() != b[i].has_value()) return fmt::format("position {}: one is empty", i);
    if (!a[i]) continue;
    std::string text = difference(a[i]->chosen, b[i]->chosen);
    if (text.empty()) text = difference(a[i]->top, b[i]->top);
    if (text.empty()) text = difference(a[i]->listed, b[i]->listed);
    if (!text.empty()) return fmt::format("position {}: {}", i, text);
  }
  return {};
}

}  // namespace

std::string Collected::check() const {
  if (!fault.empty()) return fault;
  if (num_done != 1) return fmt::format("on_done came {} times", num_done);
  std::int64_t num_tokens = 0;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (choices[i].num_final_updates != 1) {
      return fmt::format("choice {}: {} final updates", i, choices[i].num_final_updates);
    }
    num_tokens += std::ssize(choices[i].tokens);
  }
  if (stats.num_output_tokens != num_tokens) {
    return fmt::format("{} tokens came, the stats say {}", num_tokens, stats.num_output_tokens);
  }
  return {};
}

void collect(GenerationRequest& request, const std::shared_ptr<Collected>& collected) {
  collected->choices.resize(static_cast<std::size_t>(request.sampling.n));
  request.on_update = [collected](OutputUpdate&& update) { record(*collected, std::move(update)); };
  request.on_done = [collected](const RequestStats& stats) {
    collected->stats = stats;
    ++collected->num_done;
  };
}

std::string first_difference(const Collected& a, const Collected& b) {
  if (a.choices.size() != b.choices.size()) return "numbers of choices";
  for (std::size_t i = 0; i < a.choices.size(); ++i) {
    const ChoiceOutput& x = a.choices[i];
    const ChoiceOutput& y = b.choices[i];
    for (std::size_t j = 0; j < std::min(x.tokens.size(), y.tokens.size()); ++j) {
      if (x.tokens[j] != y.tokens[j]) {
        return fmt::format("choice {} token {}: {} against {}", i, j, x.tokens[j], y.tokens[j]);
      }
    }
    if (x.tokens.size() != y.tokens.size()) {
      return fmt::format("choice {}: {} tokens against {}", i, x.tokens.size(), y.tokens.size());
    }
    if (x.finish_reason != y.finish_reason || x.stop_token != y.stop_token) {
      return fmt::format("choice {}: finish reason {} against {}", i,
                         static_cast<int>(x.finish_reason), static_cast<int>(y.finish_reason));
    }
    if (const std::string text = difference(x.logprobs, y.logprobs); !text.empty()) {
      return fmt::format("choice {} logprobs, {}", i, text);
    }
    const auto kept = std::ranges::mismatch(x.kept_blocks, y.kept_blocks);
    if (kept.in1 != x.kept_blocks.end()) {
      return fmt::format("choice {} token {}: other blocks were kept", i,
                         kept.in1 - x.kept_blocks.begin());
    }
  }
  if (const std::string text = difference(a.prompt_logprobs, b.prompt_logprobs); !text.empty()) {
    return "prompt logprobs, " + text;
  }
  return {};
}

std::vector<TokenId> make_prompt(std::uint64_t seed, std::int32_t length, TokenId first,
                                 std::int32_t range) {
  std::vector<TokenId> prompt(static_cast<std::size_t>(length));
  for (std::size_t i = 0; i < prompt.size(); ++i) {
    const std::uint32_t draw = philox4x32(seed, {static_cast<std::uint32_t>(i), 7, 0, 0})[0];
    prompt[i] = first + static_cast<TokenId>(draw % static_cast<std::uint32_t>(range));
  }
  return prompt;
}

}  // namespace winnow::testing
