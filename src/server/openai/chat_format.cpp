// The chat-completion object and its chunks. Source: spec/serving.md 2.3, 2.4.
#include <algorithm>
#include <iterator>
#include <utility>

#include "server/openai/logprobs_json.h"
#include "server/openai/msa_blocks_json.h"
#include "server/openai/reply_format.h"
#include "server/sse.h"

namespace winnow::server {
namespace {

Json call_json(const std::string& name, const std::string& arguments) {
  Json entry;
  entry["id"] = "call_" + random_hex().substr(0, 24);
  entry["type"] = "function";
  entry["function"] = Json{{"name", name}, {"arguments", arguments}};
  return entry;
}

/// One entry for each call that there is news of: its beginning has an id and a name.
Json call_deltas_json(const std::vector<ToolCallDelta>& deltas) {
  Json out = Json::array();
  for (const ToolCallDelta& delta : deltas) {
    if (!out.empty() && out.back()["index"] == delta.index) {
      auto& arguments = out.back()["function"]["arguments"].get_ref<std::string&>();
      arguments += delta.arguments;
      continue;
    }
    Json entry{{"index", delta.index}};
    if (delta.name.empty()) {
      entry["function"] = Json{{"arguments", delta.arguments}};
    } else {
      entry.update(call_json(delta.name, delta.arguments));
    }
    out.push_back(std::move(entry));
  }
  return out;
}

class ChatFormat final : public ReplyFormat {
 public:
  ChatFormat(ReplyHeader header, std::int32_t num_choices)
      : header_(std::move(header)), choices_(static_cast<std::size_t>(num_choices)) {}

  void set_prompt(std::int32_t, PromptEcho echo) override { prompt_ = std::move(echo); }

  void stream_delta(std::string& out, ChoiceDelta&& delta,
                    const std::optional<Usage>& usage) override {
    Choice& choice = choices_[static_cast<std::size_t>(delta.choice)];
    if (!std::exchange(choice.is_open, true)) open_choice(out, delta.choice, usage);

    Json entry;
    entry["index"] = delta.choice;
    entry["delta"] = Json::object();
    if (!delta.reasoning.empty() && header_.include_reasoning) {
      // Both names: `reasoning` is vLLM's, `reasoning_content` what older clients read.
      entry["delta"]["reasoning"] = delta.reasoning;
      entry["delta"]["reasoning_content"] = std::move(delta.reasoning);
    }
    if (!delta.text.empty()) entry["delta"]["content"] = std::move(delta.text);
    if (!delta.call_deltas.empty()) {
      entry["delta"]["tool_calls"] = call_deltas_json(delta.call_deltas);
    }
    choice.num_calls += delta.calls.size();
    entry["logprobs"] = nullptr;
    if (header_.want_logprobs && !delta.tokens.empty()) {
      entry["logprobs"] = logprobs_of(delta.tokens);
    }
    entry["finish_reason"] = finish_reason_json(delta.finish_reason, choice.num_calls > 0);
    const bool is_last = delta.finish_reason != FinishReason::kNone;
    if (is_last) entry["stop_reason"] = stop_reason_json(delta.stop_reason);
    if (header_.return_token_ids) entry["token_ids"] = token_ids_json(delta.tokens);
    if (header_.msa != nullptr) entry["msa_blocks"] = blocks_of(choice, delta.tokens);
    Json event = chunk(usage);
    if (is_last && !header_.fingerprint.empty()) event["system_fingerprint"] = header_.fingerprint;
    event["choices"].push_back(std::move(entry));
    append_sse_event(out, dump_json(event));
  }

  void set_metrics(Json metrics) override { metrics_ = std::move(metrics); }

  void stream_end(std::string& out, const Usage& usage) override {
    if (header_.include_usage || !metrics_.is_null()) {
      Json event = chunk(usage);
      if (!metrics_.is_null()) event["metrics"] = metrics_;
      append_sse_event(out, dump_json(event));
    }
    out += kSseDone;
  }

  void collect(ChoiceDelta&& delta) override {
    Choice& choice = choices_[static_cast<std::size_t>(delta.choice)];
    choice.reasoning += delta.reasoning;
    choice.text += delta.text;
    std::ranges::move(delta.calls, std::back_inserter(choice.calls));
    if (header_.want_logprobs) {
      for (Json& entry : chat_logprobs(*header_.tokenizer, delta.tokens, header_.tokens_as_ids)) {
        choice.logprobs.push_back(std::move(entry));
      }
    }
    if (header_.msa != nullptr) {
      for (Json& entry : blocks_of(choice, delta.tokens)) {
        choice.msa_blocks.push_back(std::move(entry));
      }
    }
    if (header_.return_token_ids) {
      for (const SampledToken& sampled : delta.tokens) choice.token_ids.push_back(sampled.token);
    }
    choice.finish_reason = delta.finish_reason;
    choice.stop_reason = std::move(delta.stop_reason);
  }

  std::string body(const Usage& usage, const Json& metrics) override {
    Json out;
    out["id"] = header_.id;
    out["object"] = "chat.completion";
    out["created"] = header_.created;
    out["model"] = header_.model;
    out["choices"] = Json::array();
    for (std::size_t i = 0; i < choices_.size(); ++i) out["choices"].push_back(choice_json(i));
    out["usage"] = usage_json(usage);
    out["system_fingerprint"] = header_.fingerprint.empty() ? Json() : Json(header_.fingerprint);
    out["service_tier"] = nullptr;
    out["prompt_logprobs"] = nullptr;
    if (!prompt_.logprobs.empty()) {
      out["prompt_logprobs"] = prompt_logprobs_json(*header_.tokenizer, prompt_.logprobs);
    }
    out["prompt_token_ids"] = header_.return_token_ids ? Json(prompt_.tokens) : Json();
    if (header_.return_prompt_text) out["prompt_text"] = prompt_.text;
    if (header_.msa != nullptr) out["msa"] = msa_shape_json(*header_.msa);
    out["kv_transfer_params"] = nullptr;
    if (!metrics.is_null()) out["metrics"] = metrics;
    return dump_json(out);
  }

 private:
  struct Choice {
    bool is_open = false;
    std::string reasoning;
    std::string text;
    std::vector<ToolCall> calls;
    std::size_t num_calls = 0;    // complete, of a stream
    std::int64_t num_tokens = 0;  // whose kept blocks were reported
    Json msa_blocks = Json::array();
    Json logprobs = Json::array();
    Json token_ids = Json::array();
    FinishReason finish_reason = FinishReason::kNone;
    StopReason stop_reason;
  };

  Json chunk(const std::optional<Usage>& usage) const {
    Json out;
    out["id"] = header_.id;
    out["object"] = "chat.completion.chunk";
    out["created"] = header_.created;
    out["model"] = header_.model;
    out["choices"] = Json::array();
    if (usage) {
      out["usage"] = usage_json(*usage);
    } else if (header_.include_usage) {
      out["usage"] = nullptr;
    }
    return out;
  }

  void open_choice(std::string& out, std::int32_t index, const std::optional<Usage>& usage) const {
    Json entry;
    entry["index"] = index;
    entry["delta"] = Json{{"role", header_.role}, {"content", prompt_.echoed}};
    entry["logprobs"] = nullptr;
    entry["finish_reason"] = nullptr;
    Json event = chunk(usage);
    event["choices"].push_back(std::move(entry));
    if (header_.return_token_ids) event["prompt_token_ids"] = prompt_.tokens;
    if (header_.return_prompt_text) event["prompt_text"] = prompt_.text;
    if (header_.msa != nullptr) event["msa"] = msa_shape_json(*header_.msa);
    append_sse_event(out, dump_json(event));
  }

  Json blocks_of(Choice& choice, const std::vector<SampledToken>& tokens) const {
    const std::int64_t position = std::ssize(prompt_.tokens) + choice.num_tokens;
    choice.num_tokens += std::ssize(tokens);
    return msa_blocks_json(*header_.tokenizer, tokens, position);
  }

  Json logprobs_of(const std::vector<SampledToken>& tokens) const {
    return Json{{"content", chat_logprobs(*header_.tokenizer, tokens, header_.tokens_as_ids)}};
  }

  Json choice_json(std::size_t index) {
    Choice& choice = choices_[index];
    Json message;
    message["role"] = header_.role;
    const std::string content = prompt_.echoed + choice.text;
    const bool has_reasoning = header_.include_reasoning && !choice.reasoning.empty();
    const bool has_other = !choice.reasoning.empty() || !choice.calls.empty();
    message["content"] = content.empty() && has_other ? Json() : Json(content);
    message["reasoning"] = has_reasoning ? Json(choice.reasoning) : Json();
    message["reasoning_content"] = message["reasoning"];
    for (const ToolCall& call : choice.calls) {
      message["tool_calls"].push_back(call_json(call.name, call.arguments));
    }
    message["refusal"] = nullptr;
    message["annotations"] = nullptr;
    message["audio"] = nullptr;
    message["function_call"] = nullptr;
    Json out;
    out["index"] = index;
    out["message"] = std::move(message);
    out["logprobs"] = nullptr;
    if (header_.want_logprobs) out["logprobs"] = Json{{"content", std::move(choice.logprobs)}};
    out["finish_reason"] = finish_reason_json(choice.finish_reason, !choice.calls.empty());
    out["stop_reason"] = stop_reason_json(choice.stop_reason);
    out["token_ids"] = header_.return_token_ids ? std::move(choice.token_ids) : Json();
    if (header_.msa != nullptr) out["msa_blocks"] = std::move(choice.msa_blocks);
    return out;
  }

  ReplyHeader header_;
  PromptEcho prompt_;
  Json metrics_;
  std::vector<Choice> choices_;
};

}  // namespace

std::unique_ptr<ReplyFormat> make_chat_format(ReplyHeader header, std::int32_t num_choices) {
  return std::make_unique<ChatFormat>(std::move(header), num_choices);
}

}  // namespace winnow::server
