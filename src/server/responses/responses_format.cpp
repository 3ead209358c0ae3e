#include "server/responses/responses_format.h"

#include <chrono>
#include <utility>

#include "server/openai/logprobs_json.h"
#include "server/sse.h"
#include "server/thinking_seal.h"

namespace winnow::server {
namespace {

Json usage_object(const Usage& usage) {
  Json out;
  out["input_tokens"] = usage.prompt_tokens;
  out["input_tokens_details"] = {{"cached_tokens", usage.cached_tokens.value_or(0)}};
  out["output_tokens"] = usage.completion_tokens;
  out["output_tokens_details"] = {{"reasoning_tokens", usage.reasoning_tokens.value_or(0)}};
  out["total_tokens"] = usage.prompt_tokens + usage.completion_tokens;
  return out;
}

/// One object for a whole answer and for a stream: items are built as their parts come, and in a
/// stream each step is an event.
class ResponsesFormat final : public ReplyFormat {
 public:
  explicit ResponsesFormat(ResponsesFormatOptions options) : options_(std::move(options)) {}
  ~ResponsesFormat() override {
    if (!has_ended_ && options_.on_dropped) options_.on_dropped();
  }

  void set_prompt(std::int32_t, PromptEcho) override {}

  void stream_open(std::string& out, const Usage&) override {
    is_stream_ = true;
    const Json response = running_response(options_.response, "in_progress");
    send(out, "response.created", {{"response", response}});
    send(out, "response.in_progress", {{"response", response}});
  }

  void stream_delta(std::string& out, ChoiceDelta&& delta, const std::optional<Usage>&) override {
    add(out, std::move(delta));
  }

  void stream_end(std::string& out, const Usage& usage) override {
    const Json response = end(usage);
    const std::string& status = response["status"].get_ref<const std::string&>();
    send(out, status == "completed" ? "response.completed" : "response.incomplete",
         {{"response", response}});
  }

  void stream_failure(std::string& out, const HttpResponse& failure) override {
    send(out, "response.failed", {{"response", failed(failure)}});
  }
  HttpResponse failure(HttpResponse failure) override {
    failed(failure);
    return failure;
  }

  void collect(ChoiceDelta&& delta) override {
    std::string no_stream;
    add(no_stream, std::move(delta));
  }

  std::string body(const Usage& usage, const Json& metrics) override {
    Json response = end(usage);
    if (!metrics.is_null()) response["metrics"] = metrics;
    return dump_json(response);
  }

 private:
  enum class Item { kNone, kReasoning, kMessage, kCall };

  /// `event` without type and number.
  void send(std::string& out, const char* type, Json event) {
    if (!is_stream_) return;
    Json whole;
    whole["type"] = type;
    whole["sequence_number"] = sequence_number_++;
    whole.update(event);
    append_named_sse_event(out, type, dump_json(whole));
  }

  void add(std::string& out, ChoiceDelta&& delta) {
    if (!delta.reasoning.empty()) {
      open(out, Item::kReasoning);
      text_ += delta.reasoning;
      send_part(out, "response.reasoning_text.delta", {{"delta", std::move(delta.reasoning)}});
    }
    // Of a stream: text comes after the open call, before all others.
    auto piece = delta.call_deltas.begin();
    const auto last = delta.call_deltas.end();
    for (; piece != last && is_open_call(*piece); ++piece) add_call_piece(out, std::move(*piece));
    if (!delta.text.empty()) {
      open(out, Item::kMessage);
      text_ += delta.text;
      Json event{{"delta", std::move(delta.text)}, {"logprobs", Json::array()}};
      if (options_.want_logprobs) {
        event["logprobs"] = chat_logprobs(*options_.tokenizer, delta.tokens, false);
        for (const Json& one : event["logprobs"]) logprobs_.push_back(one);
      }
      send_part(out, "response.output_text.delta", std::move(event));
    }
    for (; piece != last; ++piece) add_call_piece(out, std::move(*piece));
    for (ToolCall& call : delta.calls) {
      if (is_stream_) break;  // they came in pieces
      add_call_piece(out, {.index = ++call_index_,
                           .name = std::move(call.name),
                           .arguments = std::move(call.arguments),
                           .is_complete = true});
    }
    if (delta.finish_reason == FinishReason::kNone) return;
    finish_reason_ = delta.finish_reason;
    close(out, finish_reason_ == FinishReason::kStop ? "completed" : "incomplete");
  }

  void send_part(std::string& out, const char* type, Json more) {
    Json event{{"item_id", item_["id"]}, {"output_index", output_.size()}, {"content_index", 0}};
    event.update(more);
    send(out, type, std::move(event));
  }

  Json part(bool is_done) const {
    if (open_ == Item::kReasoning) {
      return {{"type", "reasoning_text"}, {"text", is_done ? text_ : std::string()}};
    }
    Json out{{"type", "output_text"},
             {"text", is_done ? text_ : std::string()},
             {"annotations", Json::array()},
             {"logprobs", Json::array()}};
    if (is_done) out["logprobs"] = logprobs_;
    return out;
  }

  /// Goes on with an item of that kind, or starts one.
  void open(std::string& out, Item kind) {
    if (open_ == kind) return;
    close(out, "completed");
    open_ = kind;
    if (kind == Item::kReasoning) {
      item_ = {{"type", "reasoning"},
               {"id", "rs_" + random_hex()},
               {"summary", Json::array()},
               {"content", Json::array()},
               {"status", "in_progress"}};
    } else {
      item_ = {{"type", "message"},
               {"id", "msg_" + random_hex()},
               {"role", "assistant"},
               {"status", "in_progress"},
               {"content", Json::array()}};
    }
    send(out, "response.output_item.added", {{"output_index", output_.size()}, {"item", item_}});
    send_part(out, "response.content_part.added", {{"part", part(false)}});
  }

  void close(std::string& out, const char* status) {
    if (open_ == Item::kNone) return;
    if (open_ == Item::kCall) return close_call(out, "incomplete");
    const Json whole = part(true);
    if (open_ == Item::kReasoning) {
      send_part(out, "response.reasoning_text.done", {{"text", text_}});
      if (options_.seals_reasoning) item_["encrypted_content"] = seal_thinking(text_);
    } else {
      send_part(out, "response.output_text.done",
                {{"text", text_}, {"logprobs", whole["logprobs"]}});
    }
    send_part(out, "response.content_part.done", {{"part", whole}});
    item_["content"].push_back(whole);
    item_["status"] = status;
    end_item(out);
    text_.clear();
    logprobs_ = Json::array();
    open_ = Item::kNone;
  }

  void end_item(std::string& out) {
    send(out, "response.output_item.done", {{"output_index", output_.size()}, {"item", item_}});
    output_.push_back(std::move(item_));
  }

  bool is_open_call(const ToolCallDelta& piece) const {
    return open_ == Item::kCall && piece.index == call_index_;
  }

  void add_call_piece(std::string& out, ToolCallDelta&& piece) {
    if (!is_open_call(piece)) {
      close(out, "completed");
      open_ = Item::kCall;
      call_index_ = piece.index;
      item_ = {{"type", "function_call"},
               {"id", "fc_" + random_hex()},
               {"call_id", "call_" + random_hex().substr(0, 24)},
               {"name", piece.name},
               {"arguments", ""},
               {"status", "in_progress"}};
      send(out, "response.output_item.added", {{"output_index", output_.size()}, {"item", item_}});
    }
    if (!piece.arguments.empty()) {
      text_ += piece.arguments;
      send(out, "response.function_call_arguments.delta",
           {{"item_id", item_["id"]},
            {"output_index", output_.size()},
            {"delta", std::move(piece.arguments)}});
    }
    if (piece.is_complete) close_call(out, "completed");
  }

  void close_call(std::string& out, const char* status) {
    send(out, "response.function_call_arguments.done",
         {{"item_id", item_["id"]},
          {"output_index", output_.size()},
          {"name", item_["name"]},
          {"arguments", text_}});
    item_["arguments"] = std::exchange(text_, {});
    item_["status"] = status;
    end_item(out);
    open_ = Item::kNone;
  }

  Json end(const Usage& usage) {
    Json response = options_.response;
    const char* status = "completed";
    response["error"] = nullptr;
    response["incomplete_details"] = nullptr;
    if (finish_reason_ == FinishReason::kLength) {
      status = "incomplete";
      response["incomplete_details"] = {{"reason", "max_output_tokens"}};
    } else if (finish_reason_ == FinishReason::kAbort) {
      status = "cancelled";
    }
    response["status"] = status;
    response["completed_at"] = seconds_now();
    response["output"] = std::move(output_);
    response["usage"] = usage_object(usage);
    note_end(response);
    return response;
  }

  Json failed(const HttpResponse& failure) {
    const Json given = Json::parse(failure.body, nullptr, false);
    Json response = running_response(options_.response, "failed");
    response["error"] = {{"code", "server_error"}, {"message", "the request failed"}};
    if (given.is_object() && given.contains("error") && given["error"].contains("message")) {
      response["error"]["message"] = given["error"]["message"];
    }
    response["output"] = std::move(output_);
    note_end(response);
    return response;
  }

  void note_end(const Json& response) {
    if (std::exchange(has_ended_, true)) return;
    if (options_.on_end) options_.on_end(response);
  }

  static std::int64_t seconds_now() {
    return std::chrono::duration_cast<std::chrono::seconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
  }

  ResponsesFormatOptions options_;
  bool is_stream_ = false;
  bool has_ended_ = false;
  std::int64_t sequence_number_ = 0;
  Item open_ = Item::kNone;
  Json item_;
  std::string text_;     // of the open item
  int call_index_ = -1;  // of the last call, as its pieces have it
  Json logprobs_ = Json::array();
  Json output_ = Json::array();
  FinishReason finish_reason_ = FinishReason::kNone;
};

}  // namespace

std::unique_ptr<ReplyFormat> make_responses_format(ResponsesFormatOptions options) {
  return std::make_unique<ResponsesFormat>(std::move(options));
}

Json running_response(const Json& response, const char* status) {
  Json out = response;
  out["status"] = status;
  out["error"] = nullptr;
  out["incomplete_details"] = nullptr;
  out["output"] = Json::array();
  out["usage"] = nullptr;
  return out;
}

}  // namespace winnow::server
