#include "server/openai/generation_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <mutex>
#include <set>

#include "base/error.h"
#include "base/log.h"

namespace winnow::server {
namespace {

constexpr std::int64_t kMaxChoices = 128;
constexpr std::size_t kMaxStopStrings = 64;
constexpr std::size_t kMaxStopBytes = 16U << 10;  // of all together
constexpr std::size_t kMaxBadWords = 1024;
constexpr std::size_t kMaxListedTokens = 200'064;  // the vocabulary of M3
constexpr std::int64_t kMaxTokenId = INT32_MAX;
constexpr double kGreedyBelow = 1e-5;  // temperatures under this are 0 in vLLM
constexpr std::size_t kMaxSaltLength = 128;
constexpr std::size_t kMaxWarnedNames = 256;

void check_range(const Fields& fields, const char* name, double value, double low, double high) {
  if (!(value >= low && value <= high)) {
    fields.fail(name, fmt::format("{} is not between {} and {}", value, low, high));
  }
}

void read_sampling(Fields& fields, const GenerationDefaults& defaults, SamplingParams& out) {
  const double temperature =
      fields.number("temperature").value_or(defaults.temperature.value_or(1.0));
  if (temperature < 0 || temperature > 1e6) {
    fields.fail("temperature", fmt::format("{} is not between 0 and 1000000", temperature));
  }
  out.temperature = temperature < kGreedyBelow ? 0.0F : static_cast<float>(temperature);

  const double top_p = fields.number("top_p").value_or(defaults.top_p.value_or(1.0));
  if (!(top_p > 0 && top_p <= 1)) fields.fail("top_p", fmt::format("{} is not in (0, 1]", top_p));
  out.top_p = static_cast<float>(top_p);
  const std::int64_t top_k = fields.integer("top_k").value_or(defaults.top_k.value_or(0));
  if (top_k < -1 || top_k > kMaxTokenId) {
    fields.fail("top_k", fmt::format("{} is not -1, 0 (both: off) or a positive number", top_k));
  }
  out.top_k = static_cast<std::int32_t>(std::max<std::int64_t>(top_k, 0));
  const double min_p = fields.number("min_p").value_or(defaults.min_p.value_or(0.0));
  check_range(fields, "min_p", min_p, 0, 1);
  out.min_p = static_cast<float>(min_p);

  const double repetition =
      fields.number("repetition_penalty").value_or(defaults.repetition_penalty.value_or(1.0));
  if (!(repetition > 0 && repetition <= 1e6)) {
    fields.fail("repetition_penalty", fmt::format("{} is not above 0", repetition));
  }
  out.repetition_penalty = static_cast<float>(repetition);
  const double presence = fields.number("presence_penalty").value_or(0.0);
  check_range(fields, "presence_penalty", presence, -2, 2);
  out.presence_penalty = static_cast<float>(presence);
  const double frequency = fields.number("frequency_penalty").value_or(0.0);
  check_range(fields, "frequency_penalty", frequency, -2, 2);
  out.frequency_penalty = static_cast<float>(frequency);

  out.seed = fields.integer("seed");
  if (out.seed == -1) out.seed.reset();  // vLLM: no seed
  out.n = static_cast<std::int32_t>(fields.integer_in("n", 1, kMaxChoices).value_or(1));
}

std::vector<TokenId> token_list(const Fields& fields, const char* name,
                                const std::vector<std::int64_t>& ids) {
  if (ids.size() > kMaxListedTokens) fields.fail(name, "the list is longer than the vocabulary");
  std::vector<TokenId> out;
  out.reserve(ids.size());
  for (const std::int64_t id : ids) {
    if (id < 0 || id > kMaxTokenId) fields.fail(name, fmt::format("{} is not a token id", id));
    out.push_back(static_cast<TokenId>(id));
  }
  return out;
}

void read_logit_bias(Fields& fields, SamplingParams& out) {
  const Json* bias = fields.object("logit_bias");
  if (bias == nullptr) return;
  if (bias->size() > kMaxListedTokens) {
    fields.fail("logit_bias", "there are more entries than the vocabulary has tokens");
  }
  for (const auto& [key, value] : bias->items()) {
    TokenId id = 0;
    const auto parsed = std::from_chars(key.data(), key.data() + key.size(), id);
    if (parsed.ec != std::errc() || parsed.ptr != key.data() + key.size() || id < 0) {
      fields.fail("logit_bias", fmt::format("key '{}' is not a token id", key));
    }
    if (!value.is_number()) {
      fields.fail("logit_bias",
                  fmt::format("the value of '{}', {}, is not a number", key, describe(value)));
    }
    out.logit_bias.emplace_back(id,
                                static_cast<float>(std::clamp(value.get<double>(), -100.0, 100.0)));
  }
}

void read_limits(Fields& fields, GenerationFields& out) {
  const auto new_style = fields.integer_in("max_completion_tokens", 0, kMaxTokenId);
  const auto old_style = fields.integer_in("max_tokens", 0, kMaxTokenId);
  const auto chosen = new_style ? new_style : old_style;
  if (chosen) out.max_tokens = static_cast<std::int32_t>(*chosen);
  SamplingParams& sampling = out.sampling;
  sampling.min_tokens =
      static_cast<std::int32_t>(fields.integer_in("min_tokens", 0, kMaxTokenId).value_or(0));
  if (out.max_tokens && sampling.min_tokens > *out.max_tokens) {
    fields.fail("min_tokens",
                fmt::format("{} is above max_tokens {}", sampling.min_tokens, *out.max_tokens));
  }
  sampling.ignore_eos = fields.boolean("ignore_eos").value_or(false);
  if (const auto ids = fields.integers("stop_token_ids")) {
    sampling.stop_token_ids = token_list(fields, "stop_token_ids", *ids);
  }
  if (const auto ids = fields.integers("allowed_token_ids")) {
    if (ids->empty()) fields.fail("allowed_token_ids", "the list is empty: nothing may be said");
    sampling.allowed_token_ids = token_list(fields, "allowed_token_ids", *ids);
  }
  out.stop = fields.strings("stop").value_or(std::vector<std::string>{});
  std::size_t num_bytes = 0;
  for (const std::string& stop : out.stop) {
    if (stop.empty()) fields.fail("stop", "a stop string is empty");
    num_bytes += stop.size();
  }
  if (out.stop.size() > kMaxStopStrings || num_bytes > kMaxStopBytes) {
    fields.fail("stop",
                fmt::format("more than {} strings or {} bytes", kMaxStopStrings, kMaxStopBytes));
  }
  out.include_stop_string = fields.boolean("include_stop_str_in_output").value_or(false);
  out.bad_words = fields.strings("bad_words").value_or(std::vector<std::string>{});
  if (out.bad_words.size() > kMaxBadWords) fields.fail("bad_words", "more than 1024 words");
  for (const std::string& word : out.bad_words) {
    if (word.empty()) fields.fail("bad_words", "a word is empty");
  }
}

void read_streaming(Fields& fields, const RequestPolicy& policy, GenerationFields& out) {
  out.stream = fields.boolean("stream").value_or(false);
  if (const Json* options = fields.object("stream_options")) {
    if (!out.stream) fields.fail("stream_options", "only allowed together with stream: true");
    Fields inner(*options, "stream_options");
    out.include_usage = inner.boolean("include_usage").value_or(false);
    out.continuous_usage = inner.boolean("continuous_usage_stats").value_or(false);
    warn_unknown_fields(inner, "stream_options");
  }
  if (policy.force_include_usage && out.stream) out.include_usage = true;
  const auto interval = fields.integer_in("stream_interval", 1, kMaxTokenId).value_or(1);
  out.stream_interval = std::max(policy.stream_interval, static_cast<std::int32_t>(interval));
}

/// true, or how many tokens.
std::int32_t read_block_selections(Fields& fields) {
  constexpr const char* kName = "return_msa_blocks";
  const Json* value = fields.find(kName);
  if (value == nullptr) return 0;
  if (value->is_boolean()) return value->get<bool>() ? -1 : 0;
  return static_cast<std::int32_t>(fields.integer_in(kName, 0, kMaxTokenId).value_or(0));
}

void read_extras(Fields& fields, const RequestPolicy& policy, GenerationFields& out) {
  out.model = fields.string("model").value_or("");
  out.skip_special_tokens = fields.boolean("skip_special_tokens").value_or(true);
  fields.boolean("spaces_between_special_tokens");  // byte-level vocabularies put none
  out.return_token_ids = fields.boolean("return_token_ids").value_or(false);
  out.num_block_selections = read_block_selections(fields);
  out.tokens_as_ids =
      fields.boolean("return_tokens_as_token_ids").value_or(policy.return_tokens_as_token_ids);
  out.return_prompt_text = fields.boolean("return_prompt_text").value_or(false);
  out.return_metrics = fields.boolean("return_metrics").value_or(policy.per_request_metrics);
  out.draft_report = out.return_metrics ? std::max(policy.draft_report, DraftReport::kSummary)
                                        : policy.draft_report;

  const auto truncate = fields.integer_in("truncate_prompt_tokens", -1, kMaxTokenId);
  if (truncate == 0) fields.fail("truncate_prompt_tokens", "0 would leave no prompt");
  if (truncate) out.truncate_prompt_tokens = static_cast<std::int32_t>(*truncate);
  const std::string side = fields.string("truncation_side").value_or("left");
  if (side != "left" && side != "right") {
    fields.fail("truncation_side", fmt::format("'{}' is not left or right", side));
  }
  out.truncate_left = side == "left";

  out.priority =
      static_cast<std::int32_t>(fields.integer_in("priority", INT32_MIN, INT32_MAX).value_or(0));
  if (out.priority != 0 && !policy.is_priority_scheduling) {
    fields.fail("priority", "needs a server started with --scheduling-policy priority");
  }
  out.cache_salt = fields.string("cache_salt").value_or("");
  if (const Json* salt = fields.find("cache_salt"); salt != nullptr && out.cache_salt.empty()) {
    fields.fail("cache_salt", "the salt is empty");
  }
  if (out.cache_salt.size() > kMaxSaltLength ||
      out.cache_salt.find_first_of(std::string_view("@/\\\0", 4)) != std::string::npos) {
    fields.fail("cache_salt", "at most 128 characters, none of @ / \\ and NUL");
  }
  out.request_id = fields.string("request_id").value_or("");
  const std::string user = fields.string("user").value_or("");
  out.session = fields.string("session_id").value_or(user);
  if (const auto timeout = fields.integer_in("timeout_ms", 1, INT32_MAX)) {
    out.timeout = std::chrono::milliseconds(*timeout);
  }
}

/// Fields that would change the answer and that nothing here computes.
void refuse_unserved(Fields& fields) {
  const auto refuse = [&fields](const char* name, const char* why) {
    if (fields.find(name) != nullptr) fields.fail(name, why);
  };
  if (fields.boolean("use_beam_search").value_or(false)) {
    fields.fail("use_beam_search", "beam search is not offered");
  }
  if (fields.number("length_penalty").value_or(1.0) != 1.0) {
    fields.fail("length_penalty", "only has a meaning for beam search, which is not offered");
  }
  refuse("repetition_detection", "not offered");
  refuse("thinking_token_budget", "not offered by this version");
  refuse("kv_transfer_params", "this server does not exchange KV blocks with others");
  refuse("mm_processor_kwargs", "this server was started without vision");
  refuse("media_io_kwargs", "this server was started without vision");
  refuse("prompt_embeds", "prompts as embeddings are not offered");
  refuse("vllm_xargs", "no extra arguments are defined");
  if (fields.integer("routed_experts_prompt_start").value_or(0) != 0) {
    fields.fail("routed_experts_prompt_start", "routed experts are not returned");
  }
  for (const char* name : {"service_tier", "store", "metadata", "prediction", "safety_identifier",
                           "prompt_cache_key", "verbosity"}) {
    fields.ignore(name);
  }
}

}  // namespace

GenerationFields read_generation_fields(Fields& fields, const RequestPolicy& policy,
                                        const GenerationDefaults& defaults) {
  GenerationFields out;
  read_extras(fields, policy, out);
  read_sampling(fields, defaults, out.sampling);
  read_logit_bias(fields, out.sampling);
  read_limits(fields, out);
  read_streaming(fields, policy, out);
  refuse_unserved(fields);
  out.sampling.processed_logprobs = policy.logprobs_mode.starts_with("processed");
  return out;
}

TextOptions text_options(const GenerationFields& fields) {
  return {.stop = fields.stop,
          .include_stop_string = fields.include_stop_string,
          .skip_special_tokens = fields.skip_special_tokens,
          .min_tokens = fields.sampling.min_tokens,
          .reasoning = fields.reasoning,
          .thinks_first_only = fields.grammar.has_value(),
          .tools = fields.tools,
          .ends_after_call = !fields.parallel_tool_calls,
          .tells_calls_early = fields.stream};
}

void warn_unknown_fields(const Fields& fields, const char* route) {
  static std::mutex mutex;
  static std::set<std::string> warned;
  for (const std::string& name : fields.unknown()) {
    const std::string shown = name.substr(0, 64);
    const std::lock_guard lock(mutex);
    if (warned.size() < kMaxWarnedNames && warned.insert(shown).second) {
      spdlog::warn("{}: unknown field '{}' is ignored", route, shown);
    }
  }
}

}  // namespace winnow::server
