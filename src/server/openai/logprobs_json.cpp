#include "server/openai/logprobs_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "text/tokenizer.h"

namespace winnow::server {
namespace {

/// Well-formed UTF-8: decode() replaces what is not.
std::string decoded(const Tokenizer& tokenizer, TokenId token) {
  return tokenizer.decode(std::span<const TokenId>(&token, 1), false);
}

Json bytes_json(const Tokenizer& tokenizer, TokenId token) {
  Json out = Json::array();
  for (const char c : tokenizer.token_bytes(token)) {
    out.push_back(static_cast<int>(static_cast<unsigned char>(c)));
  }
  return out;
}

Json chat_entry(const Tokenizer& tokenizer, const TokenLogprob& value, bool as_id) {
  Json entry;
  entry["token"] = token_text(tokenizer, value.token, as_id);
  entry["logprob"] = json_logprob(value.logprob);
  entry["bytes"] = bytes_json(tokenizer, value.token);
  return entry;
}

std::int64_t count_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; });
}

}  // namespace

double json_logprob(float logprob) {
  if (std::isnan(logprob)) return kLogprobFloor;
  return std::max(static_cast<double>(logprob), kLogprobFloor);
}

std::string token_text(const Tokenizer& tokenizer, TokenId token, bool as_id) {
  if (as_id) return fmt::format("token_id:{}", token);
  return decoded(tokenizer, token);
}

Json chat_logprobs(const Tokenizer& tokenizer, const std::vector<SampledToken>& tokens,
                   bool as_id) {
  Json out = Json::array();
  for (const SampledToken& sampled : tokens) {
    if (!sampled.logprobs) continue;
    Json entry = chat_entry(tokenizer, sampled.logprobs->chosen, as_id);
    Json top = Json::array();
    for (const TokenLogprob& value : sampled.logprobs->top) {
      top.push_back(chat_entry(tokenizer, value, as_id));
    }
    for (const TokenLogprob& value : sampled.logprobs->listed) {
      top.push_back(chat_entry(tokenizer, value, as_id));
    }
    entry["top_logprobs"] = std::move(top);
    out.push_back(std::move(entry));
  }
  return out;
}

Json prompt_logprobs_json(const Tokenizer& tokenizer,
                          const std::vector<std::optional<PositionLogprobs>>& positions) {
  Json out = Json::array();
  for (const auto& position : positions) {
    if (!position) {
      out.push_back(nullptr);
      continue;
    }
    Json entry = Json::object();
    const auto add = [&](const TokenLogprob& value) {
      Json& one = entry[std::to_string(value.token)];
      one["logprob"] = json_logprob(value.logprob);
      one["rank"] = value.rank;
      one["decoded_token"] = decoded(tokenizer, value.token);
    };
    add(position->chosen);
    for (const TokenLogprob& value : position->top) add(value);
    out.push_back(std::move(entry));
  }
  return out;
}

CompletionLogprobs::CompletionLogprobs(const Tokenizer& tokenizer, bool as_id)
    : tokenizer_(tokenizer), as_id_(as_id) {}

void CompletionLogprobs::add_prompt(const std::vector<TokenId>& prompt,
                                    const std::vector<std::optional<PositionLogprobs>>& positions) {
  for (std::size_t i = 0; i < prompt.size(); ++i) {
    const bool is_known = i < positions.size() && positions[i].has_value();
    add_one(prompt[i], is_known ? &*positions[i] : nullptr);
  }
}

void CompletionLogprobs::add(const std::vector<SampledToken>& tokens) {
  for (const SampledToken& sampled : tokens) {
    add_one(sampled.token, sampled.logprobs ? &*sampled.logprobs : nullptr);
  }
}

void CompletionLogprobs::add_one(TokenId token, const PositionLogprobs* position) {
  tokens_.push_back(token_text(tokenizer_, token, as_id_));
  offsets_.push_back(offset_);
  offset_ += count_characters(tokenizer_.token_bytes(token));
  if (position == nullptr) {
    values_.push_back(nullptr);
    tops_.push_back(nullptr);
    return;
  }
  values_.push_back(json_logprob(position->chosen.logprob));
  Json top = Json::object();
  for (const TokenLogprob& value : position->top) {
    top[token_text(tokenizer_, value.token, as_id_)] = json_logprob(value.logprob);
  }
  top[token_text(tokenizer_, token, as_id_)] = json_logprob(position->chosen.logprob);
  tops_.push_back(std::move(top));
}

Json CompletionLogprobs::take() {
  Json out;
  out["text_offset"] = std::move(offsets_);
  out["token_logprobs"] = std::move(values_);
  out["tokens"] = std::move(tokens_);
  out["top_logprobs"] = std::move(tops_);
  offsets_ = values_ = tokens_ = tops_ = Json::array();
  return out;
}

}  // namespace winnow::server
