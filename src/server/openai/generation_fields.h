// The fields that chat and plain completions share. Source: spec/serving.md 2.2, 2.5;
// serving-fields.md 2.2. Every documented field is honoured or refused by name.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/sampling_params.h"
#include "server/choice_output.h"
#include "server/generation.h"
#include "server/json_fields.h"
#include "server/openai/speculation_json.h"
#include "server/openai/structured_output.h"

namespace winnow::server {

/// What the server's flags say about requests.
struct RequestPolicy {
  std::int32_t max_logprobs = 20;  // -1: the vocabulary
  std::string logprobs_mode = "raw_logprobs";
  std::int32_t stream_interval = 1;
  bool is_priority_scheduling = false;
  bool trust_request_chat_template = false;
  bool return_tokens_as_token_ids = false;
  bool force_include_usage = false;
  bool prompt_tokens_details = true;
  bool per_request_metrics = false;
  DraftReport draft_report = DraftReport::kNone;  // kSummary at least where times are asked for
  std::string response_role = "assistant";
  Json default_chat_template_kwargs = Json::object();
  bool split_reasoning = true;               // chat replies: thinking goes into its own field
  bool parse_tool_calls = true;              // chat replies: calls go into tool_calls
  bool encode_request_text_as_plain = true;  // marker strings in messages stay ordinary text
};

struct GenerationFields {
  std::string model;  // as asked; empty: the served one
  SamplingParams sampling;
  std::optional<std::int32_t> max_tokens;
  std::optional<std::int32_t> default_max_tokens;  // when max_tokens is absent: cut to what fits
  std::vector<std::string> stop;
  std::vector<std::string> bad_words;
  bool include_stop_string = false;
  bool skip_special_tokens = true;
  std::optional<ReasoningParser::State> reasoning;  // chat: where a reply begins; none: not split
  bool include_reasoning = true;
  std::shared_ptr<const ToolSchemas> tools;  // chat: calls of these are parsed; null: none is
  bool parallel_tool_calls = true;
  std::optional<AnswerGrammar> grammar;  // of the reply, after its thinking

  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  std::int32_t stream_interval = 1;

  bool return_token_ids = false;
  /// Tokens of each choice whose kept blocks are wanted; -1: as many as may be, 0: none.
  std::int32_t num_block_selections = 0;
  bool tokens_as_ids = false;  // "token_id:N" in logprobs
  bool return_prompt_text = false;
  bool return_metrics = false;
  DraftReport draft_report = DraftReport::kNone;

  std::optional<std::int32_t> truncate_prompt_tokens;  // -1: the model's length
  bool truncate_left = true;
  bool add_special_tokens = false;

  std::int32_t priority = 0;
  std::string cache_salt;
  std::string session;     // for fairness: session_id, or user
  std::string request_id;  // replaces the random part of the response id
  std::optional<std::chrono::milliseconds> timeout;
};

/// Reads and checks the shared fields; throws Error naming the field. Ranges of `sampling` that
/// need no context are checked here, the rest by SamplingParams::validate.
GenerationFields read_generation_fields(Fields& fields, const RequestPolicy& policy,
                                        const GenerationDefaults& defaults);

/// How the replies to a request become text.
TextOptions text_options(const GenerationFields& fields);

/// Logs members nobody reads, once per name for the life of the process.
void warn_unknown_fields(const Fields& fields, const char* route);

}  // namespace winnow::server
