#include "server/anthropic/messages_format.h"

#include <utility>

#include "server/anthropic/error_form.h"
#include "server/sse.h"
#include "server/thinking_seal.h"

namespace winnow::server {
namespace {

// What no JSON has in any place: closes a call that was given up, which a lenient client would
// otherwise run with the members it knows so far.
constexpr const char* kNoJson = "\x01";

constexpr const char* kPing = "event: ping\ndata: {\"type\":\"ping\"}\n\n";

/// Cached tokens are not part of input_tokens in this API.
Json usage_object(const Usage& usage) {
  const std::int64_t cached = usage.cached_tokens.value_or(0);
  Json out;
  out["input_tokens"] = usage.prompt_tokens - cached;
  out["cache_creation_input_tokens"] = 0;
  out["cache_read_input_tokens"] = cached;
  out["output_tokens"] = usage.completion_tokens;
  if (usage.reasoning_tokens) {
    out["output_tokens_details"] = {{"thinking_tokens", *usage.reasoning_tokens}};
  }
  return out;
}

class MessagesFormat final : public ReplyFormat {
 public:
  explicit MessagesFormat(MessagesFormatOptions options) : options_(std::move(options)) {}

  void set_prompt(std::int32_t, PromptEcho) override {}

  void stream_open(std::string& out, const Usage& usage) override {
    Json message = message_object(usage);
    message["content"] = Json::array();
    message["stop_reason"] = nullptr;
    message["stop_sequence"] = nullptr;
    send(out, {{"type", "message_start"}, {"message", std::move(message)}});
    out += kPing;
  }

  void stream_delta(std::string& out, ChoiceDelta&& delta, const std::optional<Usage>&) override {
    if (!delta.reasoning.empty()) {
      open(out, Block::kThinking, {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}});
      thinking_ += delta.reasoning;
      if (options_.shows_thinking) {
        send_delta(out, {{"type", "thinking_delta"}, {"thinking", std::move(delta.reasoning)}});
      }
    }
    auto piece = delta.call_deltas.begin();
    const auto last = delta.call_deltas.end();
    // Text comes after the open call, before all others.
    for (; piece != last && is_open_call(*piece); ++piece) add_call_piece(out, std::move(*piece));
    if (!delta.text.empty()) {
      open(out, Block::kText, {{"type", "text"}, {"text", ""}});
      send_delta(out, {{"type", "text_delta"}, {"text", std::move(delta.text)}});
    }
    for (; piece != last; ++piece) add_call_piece(out, std::move(*piece));
    if (delta.finish_reason != FinishReason::kNone) {
      close(out, /*is_cut=*/delta.finish_reason != FinishReason::kStop);
      set_end(delta);
    }
  }

  void stream_end(std::string& out, const Usage& usage) override {
    Json delta = end_fields();
    Json event{
        {"type", "message_delta"}, {"delta", std::move(delta)}, {"usage", usage_object(usage)}};
    add_context_management(event);
    send(out, event);
    send(out, {{"type", "message_stop"}});
  }

  void stream_failure(std::string& out, const HttpResponse& failure) override {
    append_named_sse_event(out, "error", anthropic_error_body(failure));
  }
  HttpResponse failure(HttpResponse failure) override { return anthropic_error(failure); }
  std::string keep_alive() const override { return kPing; }

  void collect(ChoiceDelta&& delta) override {
    if (!delta.reasoning.empty()) {
      const std::string seal = seal_thinking(delta.reasoning);
      if (!options_.shows_thinking) delta.reasoning.clear();
      content_.push_back(
          {{"type", "thinking"}, {"thinking", std::move(delta.reasoning)}, {"signature", seal}});
    }
    if (!delta.text.empty()) content_.push_back({{"type", "text"}, {"text", delta.text}});
    for (const ToolCall& call : delta.calls) {
      content_.push_back(tool_use(call.name, Json::parse(call.arguments, nullptr, false)));
      has_calls_ = true;
    }
    set_end(delta);
  }

  std::string body(const Usage& usage, const Json&) override {
    Json out = message_object(usage);
    const Json counted = std::exchange(out["usage"], nullptr);
    out.erase("usage");
    out["content"] = std::move(content_);
    out.update(end_fields());
    out["usage"] = counted;
    add_context_management(out);
    return dump_json(out);
  }

 private:
  enum class Block { kNone, kThinking, kText, kCall };

  static void send(std::string& out, const Json& event) {
    append_named_sse_event(out, event["type"].get_ref<const std::string&>(), dump_json(event));
  }

  void send_delta(std::string& out, Json delta) const {
    send(out, {{"type", "content_block_delta"}, {"index", index_}, {"delta", std::move(delta)}});
  }

  /// Goes on with a block of that kind, or starts one.
  void open(std::string& out, Block kind, Json block) {
    if (open_ == kind) return;
    close(out);
    open_ = kind;
    ++index_;
    send(out,
         {{"type", "content_block_start"}, {"index", index_}, {"content_block", std::move(block)}});
  }

  bool is_open_call(const ToolCallDelta& piece) const {
    return open_ == Block::kCall && piece.index == call_index_;
  }

  void add_call_piece(std::string& out, ToolCallDelta&& piece) {
    if (!is_open_call(piece)) {
      close(out);
      open(out, Block::kCall, tool_use(piece.name, Json::object()));
      call_index_ = piece.index;
      is_call_complete_ = false;
    }
    if (!piece.arguments.empty()) {
      send_delta(out, {{"type", "input_json_delta"}, {"partial_json", std::move(piece.arguments)}});
    }
    if (!piece.is_complete) return;
    has_calls_ = true;
    is_call_complete_ = true;
    close(out);
  }

  /// `is_cut`: the reply is, and stop_reason says so.
  void close(std::string& out, bool is_cut = false) {
    if (open_ == Block::kNone) return;
    if (open_ == Block::kCall && !is_call_complete_ && !is_cut) {
      send_delta(out, {{"type", "input_json_delta"}, {"partial_json", kNoJson}});
    }
    if (open_ == Block::kThinking) {
      send_delta(out, {{"type", "signature_delta"},
                       {"signature", seal_thinking(std::exchange(thinking_, {}))}});
    }
    open_ = Block::kNone;
    send(out, {{"type", "content_block_stop"}, {"index", index_}});
  }

  static Json tool_use(const std::string& name, Json input) {
    return {{"type", "tool_use"},
            {"id", "toolu_" + random_hex().substr(0, 24)},
            {"name", name},
            {"input", std::move(input)}};
  }

  Json message_object(const Usage& usage) const {
    Json out;
    out["id"] = options_.id;
    out["type"] = "message";
    out["role"] = "assistant";
    out["model"] = options_.model;
    out["usage"] = usage_object(usage);
    return out;
  }

  void add_context_management(Json& out) const {
    if (options_.has_context_management) {
      out["context_management"] = {{"applied_edits", Json::array()}};
    }
  }

  void set_end(const ChoiceDelta& delta) {
    finish_reason_ = delta.finish_reason;
    stop_reason_ = delta.stop_reason;
  }

  Json end_fields() const {
    Json out{{"stop_reason", "end_turn"}, {"stop_sequence", nullptr}};
    if (const auto* text = std::get_if<std::string>(&stop_reason_)) {
      out["stop_reason"] = "stop_sequence";
      out["stop_sequence"] = *text;
    } else if (finish_reason_ == FinishReason::kLength) {
      out["stop_reason"] =
          options_.is_cut_by_context ? "model_context_window_exceeded" : "max_tokens";
    } else if (finish_reason_ == FinishReason::kAbort) {
      out["stop_reason"] = "max_tokens";  // the request's time limit: cut off as well
    } else if (has_calls_) {
      out["stop_reason"] = "tool_use";
    }
    return out;
  }

  MessagesFormatOptions options_;
  Block open_ = Block::kNone;
  int index_ = -1;
  std::string thinking_;  // of the open block
  int call_index_ = -1;   // of the open call, as its pieces have it
  bool is_call_complete_ = false;
  bool has_calls_ = false;
  Json content_ = Json::array();
  FinishReason finish_reason_ = FinishReason::kNone;
  StopReason stop_reason_;
};

}  // namespace

std::unique_ptr<ReplyFormat> make_messages_format(MessagesFormatOptions options) {
  return std::make_unique<MessagesFormat>(std::move(options));
}

}  // namespace winnow::server
