#include "server/openai/prepare.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <chrono>

#include "base/error.h"
#include "server/api_keys.h"
#include "server/openai/msa_blocks_json.h"
#include "text/tokenizer.h"

namespace winnow::server {
namespace {

constexpr std::size_t kMaxIdLength = 128;
constexpr int kMaxTimeoutMs = 24 * 3600 * 1000;
constexpr std::size_t kMaxListedAdapters = 16;

std::string joined(const std::vector<TextSegment>& segments) {
  std::string out;
  for (const TextSegment& segment : segments) out += segment.text;
  return out;
}

EncodeOptions encode_options(const GenerationFields& fields, const ServingModel& model) {
  return {.add_special_tokens = fields.add_special_tokens,
          .cache = model.token_cache,
          .cache_salt = fields.cache_salt,
          .num_threads = model.num_encode_threads};
}

std::string right_trimmed(std::string text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) {
    text.pop_back();
  }
  return text;
}

/// Cuts the rendered prompt after the last message's own text, so that the model writes on.
void cut_after_final_message(std::vector<TextSegment>& segments, const std::string& content) {
  std::string wanted = content;
  const std::string text = joined(segments);
  std::size_t at = wanted.empty() ? std::string::npos : text.rfind(wanted);
  if (at == std::string::npos) {
    wanted = right_trimmed(wanted);
    at = wanted.empty() ? std::string::npos : text.rfind(wanted);
  }
  if (at == std::string::npos) {
    throw Error(ErrorCode::kInvalidArgument,
                "continue_final_message: the last message has no text to continue", {},
                "continue_final_message");
  }
  std::size_t left = at + wanted.size();
  for (std::size_t i = 0; i < segments.size(); ++i) {
    if (left <= segments[i].text.size()) {
      segments[i].text.resize(left);
      segments.resize(i + 1);
      return;
    }
    left -= segments[i].text.size();
  }
}

void truncate(std::vector<TokenId>& tokens, const GenerationFields& fields,
              const ServingModel& model) {
  if (!fields.truncate_prompt_tokens) return;
  std::int32_t keep = *fields.truncate_prompt_tokens;
  if (keep == -1) keep = model.max_model_len - std::max(1, fields.max_tokens.value_or(1));
  if (keep < 1 || tokens.size() <= static_cast<std::size_t>(keep)) return;
  if (fields.truncate_left) {
    tokens.erase(tokens.begin(), tokens.end() - keep);
  } else {
    tokens.resize(static_cast<std::size_t>(keep));
  }
}

std::int32_t resolve_max_tokens(const GenerationFields& fields, std::size_t num_prompt_tokens,
                                const ServingModel& model) {
  const auto prompt = static_cast<std::int64_t>(num_prompt_tokens);
  const std::int64_t room = model.max_model_len - prompt;
  if (fields.max_tokens) {
    if (*fields.max_tokens > room) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("this model's maximum context length is {} tokens, but {} prompt "
                      "tokens plus max_tokens {} are {}",
                      model.max_model_len, prompt, *fields.max_tokens, prompt + *fields.max_tokens),
          "shorten the prompt or lower max_tokens", "max_tokens");
    }
    return *fields.max_tokens;
  }
  if (room < 1) {
    // The first half is what agents look for before they compact a conversation.
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("prompt is too long: {} tokens > {} maximum (this model's maximum "
                            "context length)",
                            prompt, model.max_model_len),
                "shorten the prompt", "messages");
  }
  std::int64_t limit = room;
  if (fields.default_max_tokens) limit = std::min<std::int64_t>(limit, *fields.default_max_tokens);
  if (model.defaults.max_new_tokens && !fields.default_max_tokens) {
    limit = std::min(limit, std::max<std::int64_t>(1, *model.defaults.max_new_tokens));
  }
  return static_cast<std::int32_t>(limit);
}

/// Each word as it stands alone and after a blank.
std::vector<std::vector<TokenId>> bad_word_tokens(const std::vector<std::string>& words,
                                                  const Tokenizer& tokenizer) {
  std::vector<std::vector<TokenId>> out;
  for (const std::string& word : words) {
    for (const char* prefix : {"", " "}) {
      std::vector<TokenId> tokens = tokenizer.encode(prefix + word);
      if (!tokens.empty() && std::find(out.begin(), out.end(), tokens) == out.end()) {
        out.push_back(std::move(tokens));
      }
    }
  }
  return out;
}

std::optional<Clock::time_point> deadline_of(const GenerationFields& fields,
                                             const HttpRequest& http) {
  auto timeout = fields.timeout;
  const std::string_view header = http.header("x-request-timeout-ms");
  if (!timeout && !header.empty()) {
    int value = 0;
    const auto parsed = std::from_chars(header.data(), header.data() + header.size(), value);
    if (parsed.ec != std::errc() || value < 1 || value > kMaxTimeoutMs) {
      throw Error(ErrorCode::kInvalidArgument,
                  "X-Request-Timeout-Ms: not a number of milliseconds between 1 and 86400000");
    }
    timeout = std::chrono::milliseconds(value);
  }
  if (!timeout) return std::nullopt;
  return Clock::now() + *timeout;
}

std::string fairness_key_of(const GenerationFields& fields, const HttpRequest& http) {
  if (!fields.session.empty()) return "session " + fields.session;
  if (const auto header = http.header("x-session-id"); !header.empty()) {
    return "session " + std::string(header);
  }
  const std::string caller = caller_of(http);
  return caller.empty() ? "" : "key " + caller;
}

/// Of a W3C traceparent, "00-<trace id>-<parent>-<flags>"; empty where there is none.
std::string trace_id_of(const HttpRequest& http) {
  const std::string_view parent = http.header("traceparent");
  const std::string_view id = parent.size() == 55 ? parent.substr(3, 32) : std::string_view();
  const auto is_hex = [](char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0; };
  return std::ranges::all_of(id, is_hex) ? std::string(id) : std::string();
}

bool wants_metrics(const HttpRequest& http) {
  const std::string_view value = http.header("x-return-metrics");
  return value == "true" || value == "1";
}

/// What return_msa_blocks comes to; throws for a model without sparse attention, and for too many.
std::int32_t resolve_block_selections(const GenerationFields& fields, std::size_t num_prompts,
                                      const ServingModel& model) {
  constexpr const char* kName = "return_msa_blocks";
  if (fields.num_block_selections == 0) return 0;
  if (model.msa.layers.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: this model has no sparse attention", kName), {}, kName);
  }
  const std::int64_t num_choices =
      std::int64_t{fields.sampling.n} * static_cast<std::int64_t>(num_prompts);
  const std::int32_t limit = max_block_selections(model.msa, num_choices);
  if (fields.num_block_selections > limit) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: {} tokens of each choice are above the {} that one request may "
                            "ask for here",
                            kName, fields.num_block_selections, limit),
                "true asks for as many as may be", kName);
  }
  return fields.num_block_selections < 0 ? limit : fields.num_block_selections;
}

}  // namespace

PreparedPrompt prepare_chat_prompt(const ChatRequest& request, const ServingModel& model,
                                   const RequestPolicy& policy) {
  if (model.chat_template == nullptr) {
    throw Error(ErrorCode::kInvalidArgument, "the checkpoint has no chat template",
                "start the server with --chat-template, or use /v1/completions");
  }
  std::vector<TextSegment> segments = model.chat_template->render(template_variables(request));
  const Json& last = request.messages.back();
  const std::string last_text = last["content"].get<std::string>();
  if (request.continue_final_message) cut_after_final_message(segments, last_text);
  PreparedPrompt prompt;
  const EncodeOptions options = encode_options(request.generation, model);
  prompt.text = joined(segments);
  prompt.tokens = policy.encode_request_text_as_plain
                      ? model.tokenizer->encode(std::span<const TextSegment>(segments), options)
                      : model.tokenizer->encode(prompt.text, options);
  if (request.echo && last["role"] == policy.response_role) prompt.echoed = last_text;
  return prompt;
}

PreparedPrompt prepare_raw_prompt(const RawPrompt& raw, const GenerationFields& fields,
                                  const ServingModel& model) {
  PreparedPrompt prompt;
  if (const auto* text = std::get_if<std::string>(&raw)) {
    prompt.text = *text;
    prompt.tokens = model.tokenizer->encode(*text, encode_options(fields, model));
  } else {
    prompt.tokens = std::get<std::vector<TokenId>>(raw);
    for (const TokenId token : prompt.tokens) {
      if (token < 0 || token >= model.vocab_size) {
        throw Error(ErrorCode::kInvalidArgument,
                    fmt::format("prompt: token id {} is outside the vocabulary of {}", token,
                                model.vocab_size),
                    {}, "prompt");
      }
    }
    prompt.text = model.tokenizer->decode(prompt.tokens, false);
  }
  if (prompt.tokens.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "prompt: it has no token; the model needs at least one to start from", {},
                "prompt");
  }
  return prompt;
}

void complete_plan(GenerationPlan& plan, const ServingModel& model, const RequestPolicy& policy,
                   const HttpRequest& http) {
  GenerationFields& fields = plan.fields;
  plan.adapter = find_model(fields.model, model);
  std::size_t longest = 0;
  for (PreparedPrompt& prompt : plan.prompts) {
    truncate(prompt.tokens, fields, model);
    longest = std::max(longest, prompt.tokens.size());
  }
  fields.sampling.max_tokens = resolve_max_tokens(fields, longest, model);
  if (fields.sampling.min_tokens > fields.sampling.max_tokens) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("min_tokens: {} is above the {} tokens that fit",
                            fields.sampling.min_tokens, fields.sampling.max_tokens),
                {}, "min_tokens");
  }
  fields.sampling.validate(model.vocab_size, policy.max_logprobs);
  plan.bad_words = bad_word_tokens(fields.bad_words, *model.tokenizer);
  if (fields.sampling.allowed_token_ids.empty()) {
    for (const TokenId token : model.banned_tokens) plan.bad_words.push_back({token});
  }
  fields.num_block_selections = resolve_block_selections(fields, plan.prompts.size(), model);
  if (fields.grammar) {
    plan.token_filter = make_token_filter(*fields.grammar, fields.reasoning, model);
  }
  plan.deadline = deadline_of(fields, http);
  plan.trace_id = trace_id_of(http);
  if (wants_metrics(http)) fields.return_metrics = true;
  plan.fairness_key = fairness_key_of(fields, http);
  plan.cached_tokens_in_usage = policy.prompt_tokens_details;
}

std::string clean_request_id(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool is_plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' ||
                          c == '_' || c == '.' || c == ':';
    if (is_plain && out.size() < kMaxIdLength) out.push_back(c);
  }
  return out;
}

std::string make_response_id(const char* prefix, const GenerationFields& fields,
                             const HttpRequest& http) {
  std::string id = clean_request_id(fields.request_id);
  if (id.empty()) id = http.id;
  if (id.empty()) id = random_hex();
  return prefix + id;
}

std::shared_ptr<const ServedAdapter> find_model(const std::string& name,
                                                const ServingModel& model) {
  if (name.empty() || std::ranges::find(model.names, name) != model.names.end()) return nullptr;
  std::vector<std::string> served = model.names;
  if (model.adapters != nullptr) {
    if (auto adapter = model.adapters->find(name)) return adapter;
    for (const auto& adapter : model.adapters->list()) {
      if (served.size() == model.names.size() + kMaxListedAdapters) break;
      served.push_back(adapter->name);
    }
  }
  throw Error(ErrorCode::kNotFound,
              fmt::format("the model '{}' does not exist; served: {}", name.substr(0, 128),
                          fmt::join(served, ", ")),
              {}, "model");
}

void check_model_name(const std::string& name, const ServingModel& model) {
  (void)find_model(name, model);
}

ReplyHeader make_header(const GenerationFields& fields, const ServingModel& model,
                        const RequestPolicy& policy, std::string id) {
  ReplyHeader header;
  header.id = std::move(id);
  header.created = std::chrono::duration_cast<std::chrono::seconds>(
                       std::chrono::system_clock::now().time_since_epoch())
                       .count();
  header.model = fields.model.empty() ? model.names.front() : fields.model;
  header.fingerprint = model.fingerprint;
  header.role = policy.response_role;
  header.tokenizer = model.tokenizer;
  header.want_logprobs = fields.sampling.logprobs.has_value();
  header.tokens_as_ids = fields.tokens_as_ids;
  header.return_token_ids = fields.return_token_ids;
  if (fields.num_block_selections > 0) header.msa = &model.msa;
  header.include_reasoning = fields.include_reasoning;
  header.return_prompt_text = fields.return_prompt_text;
  header.include_usage = fields.include_usage;
  header.n = fields.sampling.n;
  return header;
}

}  // namespace winnow::server
