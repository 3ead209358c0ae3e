// The plain-completion object, which is also the form of its chunks. Source: spec/serving.md 2.5.
#include <utility>

#include "server/openai/logprobs_json.h"
#include "server/openai/msa_blocks_json.h"
#include "server/openai/reply_format.h"
#include "server/sse.h"

namespace winnow::server {
namespace {

class CompletionFormat final : public ReplyFormat {
 public:
  CompletionFormat(ReplyHeader header, std::int32_t num_choices, bool is_echo)
      : header_(std::move(header)),
        is_echo_(is_echo),
        prompts_(static_cast<std::size_t>(num_choices / header_.n)) {
    for (std::int32_t i = 0; i < num_choices; ++i) {
      choices_.emplace_back(*header_.tokenizer, header_.tokens_as_ids);
    }
  }

  void set_prompt(std::int32_t prompt, PromptEcho echo) override {
    prompts_[static_cast<std::size_t>(prompt)] = std::move(echo);
  }

  void stream_delta(std::string& out, ChoiceDelta&& delta,
                    const std::optional<Usage>& usage) override {
    const auto index = static_cast<std::size_t>(delta.choice);
    Choice& choice = choices_[index];
    const PromptEcho& prompt = prompt_of(index);
    const bool is_opening = !std::exchange(choice.is_open, true);
    if (is_opening && is_echo_) {
      delta.text.insert(0, prompt.echoed);
      if (header_.want_logprobs) choice.logprobs.add_prompt(prompt.tokens, prompt.logprobs);
    }
    Json entry;
    entry["index"] = delta.choice;
    entry["text"] = std::move(delta.text);
    entry["logprobs"] = nullptr;
    if (header_.want_logprobs) {
      choice.logprobs.add(delta.tokens);
      if (!choice.logprobs.is_empty()) entry["logprobs"] = choice.logprobs.take();
    }
    entry["finish_reason"] = finish_reason_json(delta.finish_reason);
    const bool is_last = delta.finish_reason != FinishReason::kNone;
    if (is_last) entry["stop_reason"] = stop_reason_json(delta.stop_reason);
    if (header_.return_token_ids) {
      if (is_opening) entry["prompt_token_ids"] = prompt.tokens;
      entry["token_ids"] = token_ids_json(delta.tokens);
    }
    if (header_.msa != nullptr) entry["msa_blocks"] = blocks_of(choice, prompt, delta.tokens);
    if (header_.return_prompt_text && is_opening) entry["prompt_text"] = prompt.text;
    Json event = object();
    event["choices"].push_back(std::move(entry));
    if (is_opening && header_.msa != nullptr) event["msa"] = msa_shape_json(*header_.msa);
    if (is_last && !header_.fingerprint.empty()) event["system_fingerprint"] = header_.fingerprint;
    if (usage) {
      event["usage"] = usage_json(*usage);
    } else if (header_.include_usage) {
      event["usage"] = nullptr;
    }
    append_sse_event(out, dump_json(event));
  }

  void set_metrics(Json metrics) override { metrics_ = std::move(metrics); }

  void stream_end(std::string& out, const Usage& usage) override {
    if (header_.include_usage || !metrics_.is_null()) {
      Json event = object();
      event["usage"] = usage_json(usage);
      if (!metrics_.is_null()) event["metrics"] = metrics_;
      append_sse_event(out, dump_json(event));
    }
    out += kSseDone;
  }

  void collect(ChoiceDelta&& delta) override {
    const auto index = static_cast<std::size_t>(delta.choice);
    Choice& choice = choices_[index];
    if (!std::exchange(choice.is_open, true) && is_echo_) {
      choice.text = prompt_of(index).echoed;
      if (header_.want_logprobs) {
        choice.logprobs.add_prompt(prompt_of(index).tokens, prompt_of(index).logprobs);
      }
    }
    choice.text += delta.text;
    if (header_.want_logprobs) choice.logprobs.add(delta.tokens);
    if (header_.msa != nullptr) {
      for (Json& entry : blocks_of(choice, prompt_of(index), delta.tokens)) {
        choice.msa_blocks.push_back(std::move(entry));
      }
    }
    for (const SampledToken& sampled : delta.tokens) choice.token_ids.push_back(sampled.token);
    choice.finish_reason = delta.finish_reason;
    choice.stop_reason = std::move(delta.stop_reason);
  }

  std::string body(const Usage& usage, const Json& metrics) override {
    Json out = object();
    for (std::size_t i = 0; i < choices_.size(); ++i) out["choices"].push_back(choice_json(i));
    out["usage"] = usage_json(usage);
    out["system_fingerprint"] = header_.fingerprint.empty() ? Json() : Json(header_.fingerprint);
    out["kv_transfer_params"] = nullptr;
    if (header_.msa != nullptr) out["msa"] = msa_shape_json(*header_.msa);
    if (!metrics.is_null()) out["metrics"] = metrics;
    return dump_json(out);
  }

 private:
  struct Choice {
    Choice(const Tokenizer& tokenizer, bool as_ids) : logprobs(tokenizer, as_ids) {}
    bool is_open = false;
    std::string text;
    CompletionLogprobs logprobs;
    Json token_ids = Json::array();
    std::int64_t num_tokens = 0;  // whose kept blocks were reported
    Json msa_blocks = Json::array();
    FinishReason finish_reason = FinishReason::kNone;
    StopReason stop_reason;
  };

  const PromptEcho& prompt_of(std::size_t choice) const {
    return prompts_[choice / static_cast<std::size_t>(header_.n)];
  }

  Json blocks_of(Choice& choice, const PromptEcho& prompt,
                 const std::vector<SampledToken>& tokens) const {
    const std::int64_t position = std::ssize(prompt.tokens) + choice.num_tokens;
    choice.num_tokens += std::ssize(tokens);
    return msa_blocks_json(*header_.tokenizer, tokens, position);
  }

  Json object() const {
    Json out;
    out["id"] = header_.id;
    out["object"] = "text_completion";
    out["created"] = header_.created;
    out["model"] = header_.model;
    out["choices"] = Json::array();
    return out;
  }

  Json choice_json(std::size_t index) {
    Choice& choice = choices_[index];
    const PromptEcho& prompt = prompt_of(index);
    Json out;
    out["index"] = index;
    out["text"] = choice.text;
    out["logprobs"] = header_.want_logprobs ? choice.logprobs.take() : Json();
    out["finish_reason"] = finish_reason_json(choice.finish_reason);
    out["stop_reason"] = stop_reason_json(choice.stop_reason);
    out["prompt_logprobs"] = nullptr;
    if (!prompt.logprobs.empty()) {
      out["prompt_logprobs"] = prompt_logprobs_json(*header_.tokenizer, prompt.logprobs);
    }
    if (header_.return_token_ids) {
      out["token_ids"] = std::move(choice.token_ids);
      out["prompt_token_ids"] = prompt.tokens;
    }
    if (header_.msa != nullptr) out["msa_blocks"] = std::move(choice.msa_blocks);
    if (header_.return_prompt_text) out["prompt_text"] = prompt.text;
    return out;
  }

  ReplyHeader header_;
  bool is_echo_;
  Json metrics_;
  std::vector<PromptEcho> prompts_;
  std::vector<Choice> choices_;
};

}  // namespace

std::unique_ptr<ReplyFormat> make_completion_format(ReplyHeader header, std::int32_t num_choices,
                                                    bool is_echo) {
  return std::make_unique<CompletionFormat>(std::move(header), num_choices, is_echo);
}

}  // namespace winnow::server
