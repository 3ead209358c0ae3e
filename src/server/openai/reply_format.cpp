#include "server/openai/reply_format.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <openssl/rand.h>

#include <array>

#include "base/error.h"
#include "server/sse.h"

namespace winnow::server {

Json usage_json(const Usage& usage) {
  Json out;
  out["prompt_tokens"] = usage.prompt_tokens;
  out["total_tokens"] = usage.prompt_tokens + usage.completion_tokens;
  out["completion_tokens"] = usage.completion_tokens;
  out["prompt_tokens_details"] = nullptr;
  if (usage.cached_tokens) {
    out["prompt_tokens_details"] = Json{{"cached_tokens", *usage.cached_tokens}};
  }
  if (usage.reasoning_tokens) {
    out["completion_tokens_details"] = Json{{"reasoning_tokens", *usage.reasoning_tokens}};
  }
  return out;
}

void ReplyFormat::stream_failure(std::string& out, const HttpResponse& failure) {
  append_sse_event(out, failure.body);
  out += kSseDone;
}

std::string ReplyFormat::keep_alive() const { return std::string(kSseComment); }

std::string dump_json(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string random_hex() {
  std::array<unsigned char, 16> bytes{};
  if (RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) != 1) {
    throw Error(ErrorCode::kInternal, "no random numbers are to be had");
  }
  return fmt::format("{:02x}", fmt::join(bytes, ""));
}

Json stop_reason_json(const StopReason& reason) {
  if (const auto* text = std::get_if<std::string>(&reason)) return *text;
  if (const auto* token = std::get_if<TokenId>(&reason)) return *token;
  return nullptr;
}

Json finish_reason_json(FinishReason reason, bool has_calls) {
  if (reason == FinishReason::kNone) return nullptr;
  if (has_calls && reason == FinishReason::kStop) return "tool_calls";
  return finish_reason_name(reason);
}

Json token_ids_json(const std::vector<SampledToken>& tokens) {
  Json out = Json::array();
  for (const SampledToken& sampled : tokens) out.push_back(sampled.token);
  return out;
}

}  // namespace winnow::server
