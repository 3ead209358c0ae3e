#include "server/openai/completion_request.h"

#include <fmt/format.h>

#include "server/openai/structured_output.h"

namespace winnow::server {
namespace {

constexpr std::size_t kMaxPrompts = 128;
constexpr std::int32_t kDefaultMaxTokens = 16;  // OpenAI's, for this route

std::vector<TokenId> token_prompt(const Fields& fields, const Json& list) {
  std::vector<TokenId> out;
  out.reserve(list.size());
  for (const Json& item : list) {
    if (!item.is_number_integer()) {
      fields.fail("prompt", describe(item) + " in a list of token ids is not an integer");
    }
    const bool is_huge = item.is_number_unsigned() && item.get<std::uint64_t>() > INT32_MAX;
    if (is_huge || item.get<std::int64_t>() < 0) {
      fields.fail("prompt", item.dump() + " is not a token id");
    }
    out.push_back(item.get<TokenId>());
  }
  return out;
}

std::vector<RawPrompt> read_prompts(Fields& fields) {
  const Json* prompt = fields.find("prompt");
  if (prompt == nullptr) fields.fail("prompt", "missing");
  if (prompt->is_string()) return {prompt->get<std::string>()};
  if (!prompt->is_array()) {
    fields.fail("prompt", describe(*prompt) +
                              " is not a string, a list of strings, a list of "
                              "token ids or a list of such lists");
  }
  if (prompt->empty()) fields.fail("prompt", "the list is empty");
  if ((*prompt)[0].is_number()) return {token_prompt(fields, *prompt)};
  if (prompt->size() > kMaxPrompts) {
    fields.fail("prompt",
                fmt::format("{} prompts, at most {} in one request", prompt->size(), kMaxPrompts));
  }
  std::vector<RawPrompt> out;
  for (const Json& item : *prompt) {
    if (item.is_string()) {
      out.emplace_back(item.get<std::string>());
    } else if (item.is_array()) {
      out.emplace_back(token_prompt(fields, item));
    } else {
      fields.fail("prompt", describe(item) + " in the list is neither a string nor a list of ids");
    }
  }
  return out;
}

std::optional<std::int32_t> logprob_count(Fields& fields, const char* name,
                                          const RequestPolicy& policy) {
  // `logprobs: true` is a frequent mistake on this route: integer() says what is expected.
  const auto count = fields.integer_in(name, -1, INT32_MAX);
  if (!count) return std::nullopt;
  if (policy.max_logprobs != -1 && (*count == -1 || *count > policy.max_logprobs)) {
    fields.fail(name, fmt::format("{} is above the server's --max-logprobs {}", *count,
                                  policy.max_logprobs));
  }
  return static_cast<std::int32_t>(*count);
}

}  // namespace

CompletionRequest read_completion_request(const Json& body, const RequestPolicy& policy,
                                          const GenerationDefaults& defaults) {
  Fields fields(body);
  CompletionRequest out;
  out.generation = read_generation_fields(fields, policy, defaults);
  out.prompts = read_prompts(fields);
  out.echo = fields.boolean("echo").value_or(false);
  GenerationFields& generation = out.generation;
  SamplingParams& sampling = generation.sampling;
  sampling.logprobs = logprob_count(fields, "logprobs", policy);
  sampling.prompt_logprobs = logprob_count(fields, "prompt_logprobs", policy);
  if (generation.stream && sampling.prompt_logprobs.value_or(0) != 0) {
    fields.fail("prompt_logprobs", "not together with stream: true");
  }
  if (out.echo && sampling.logprobs && !sampling.prompt_logprobs) {
    sampling.prompt_logprobs = sampling.logprobs;
  }
  generation.default_max_tokens = kDefaultMaxTokens;
  if (generation.max_tokens == 0 && !out.echo) {
    fields.fail("max_tokens", "0 is only allowed together with echo");
  }
  generation.add_special_tokens = fields.boolean("add_special_tokens").value_or(true);
  if (const auto suffix = fields.string("suffix"); suffix && !suffix->empty()) {
    fields.fail("suffix", "this model has no fill-in-the-middle template");
  }
  if (const auto best_of = fields.integer("best_of"); best_of && *best_of != sampling.n) {
    fields.fail("best_of", fmt::format("{} differs from n = {}; only equal values are served",
                                       *best_of, sampling.n));
  }
  generation.grammar = read_structured_output(fields);
  warn_unknown_fields(fields, "/v1/completions");
  return out;
}

}  // namespace winnow::server
