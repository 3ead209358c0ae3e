// How a generation is written: the form of one API, streamed or whole. Called in order by
// GenerationReply on one strand.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/choice_output.h"
#include "server/http_message.h"
#include "server/json_fields.h"
#include "server/openai/generation_fields.h"

namespace winnow::server {

struct Usage {
  std::int64_t prompt_tokens = 0;
  std::int64_t completion_tokens = 0;
  std::optional<std::int64_t> reasoning_tokens;  // absent: thinking is not split off
  std::optional<std::int64_t> cached_tokens;     // known at the end; absent: not reported
};

Json usage_json(const Usage& usage);

/// What every chunk and the whole body repeat, and what the request asked to see.
struct ReplyHeader {
  std::string id;
  std::int64_t created = 0;
  std::string model;
  std::string fingerprint;
  std::string role = "assistant";
  const Tokenizer* tokenizer = nullptr;
  bool want_logprobs = false;
  bool tokens_as_ids = false;
  bool return_token_ids = false;
  const MsaShape* msa = nullptr;  // kept blocks are reported; null: they are not
  bool return_prompt_text = false;
  bool include_usage = false;
  bool include_reasoning = true;
  std::int32_t n = 1;
};

struct PromptEcho {
  std::vector<TokenId> tokens;
  std::string text;    // for prompt_text and for echo
  std::string echoed;  // text put before the answer; empty: none
  std::vector<std::optional<PositionLogprobs>> logprobs;
};

class ReplyFormat {
 public:
  virtual ~ReplyFormat() = default;
  /// Before anything of that prompt is written.
  virtual void set_prompt(std::int32_t prompt, PromptEcho echo) = 0;
  /// Streaming: what goes out with the head, before the first token. `usage` knows the prompt only.
  virtual void stream_open(std::string&, const Usage&) {}
  /// Streaming: events for this delta (and, before the first of a choice, its opening). `usage`:
  /// the counts so far, when the request wants them with each event.
  virtual void stream_delta(std::string& out, ChoiceDelta&& delta,
                            const std::optional<Usage>& usage) = 0;
  /// Streaming, before stream_end(): times of the request, which it may tell.
  virtual void set_metrics(Json /*metrics*/) {}
  /// Streaming: what follows the last delta, with the usage of the whole request.
  virtual void stream_end(std::string& out, const Usage& usage) = 0;
  /// Streaming: the end of a stream that cannot go on. `failure` is in OpenAI's form, as an event
  /// and [DONE].
  virtual void stream_failure(std::string& out, const HttpResponse& failure);
  /// A failure before the first byte, in this API's form.
  virtual HttpResponse failure(HttpResponse failure) { return failure; }
  /// What a silent stream sends now and then.
  virtual std::string keep_alive() const;
  /// Whole: takes a delta; body() at the end. `metrics` may be null.
  virtual void collect(ChoiceDelta&& delta) = 0;
  virtual std::string body(const Usage& usage, const Json& metrics) = 0;
};

/// `num_choices` over all prompts.
std::unique_ptr<ReplyFormat> make_chat_format(ReplyHeader header, std::int32_t num_choices);
std::unique_ptr<ReplyFormat> make_completion_format(ReplyHeader header, std::int32_t num_choices,
                                                    bool is_echo);

// Shared by the two forms.
std::string dump_json(const Json& value);
std::string random_hex();  // 32 digits that nobody can guess
Json stop_reason_json(const StopReason& reason);
/// `has_calls`: a reply that ends by itself after tool calls says so.
Json finish_reason_json(FinishReason reason, bool has_calls = false);
Json token_ids_json(const std::vector<SampledToken>& tokens);

}  // namespace winnow::server
