#include "cli/sampling_flags.h"

#include "cli/value_grammar.h"

namespace winnow::cli {

void add_sampling_flags(FlagSet& set, SamplingFlags& flags) {
  set.group("Sampling");
  set.add_human_integer("max-tokens,n", flags.max_tokens, "Tokens of an answer at most");
  set.add_string("temperature", flags.temperature, "0: always the likeliest token");
  set.add_string("top-p", flags.top_p, "Keep the likeliest tokens that make up this share");
  set.add_integer("top-k", flags.top_k, "Keep this many of the likeliest tokens; 0: all");
  set.add_string("min-p", flags.min_p, "Drop tokens below this share of the likeliest");
  set.add_list("stop", flags.stop, "Texts that end the answer");
  set.add_string("system", flags.system, "System message");
  set.add_string("thinking", flags.thinking, "Thinking before the answer",
                 {"enabled", "disabled", "adaptive"});
}

void write_sampling(const SamplingFlags& flags, const std::optional<std::int64_t>& seed,
                    Json& body) {
  const auto number = [&body](const char* name, const std::string& text) {
    if (!text.empty()) body[name] = parse_real(std::string("--") + name, text);
  };
  number("temperature", flags.temperature);
  number("top_p", flags.top_p);
  number("min_p", flags.min_p);
  if (flags.top_k) body["top_k"] = *flags.top_k;
  if (flags.max_tokens) body["max_tokens"] = *flags.max_tokens;
  if (!flags.stop.empty()) body["stop"] = flags.stop;
  if (seed) body["seed"] = *seed;
  if (!flags.thinking.empty()) body["chat_template_kwargs"] = {{"thinking_mode", flags.thinking}};
}

}  // namespace winnow::cli
