// winnow generate: one prompt, one answer on stdout.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <iterator>

#include "base/log.h"
#include "cli/local_generation.h"
#include "cli/sampling_flags.h"
#include "cli/usage_error.h"
#include "cli/verbs.h"
#include "server/choice_output.h"

namespace winnow::cli {
namespace {

std::string read_prompt(const std::string& flag) {
  if (!flag.empty() && flag != "-") return flag;
  if (flag.empty() && ::isatty(STDIN_FILENO) != 0) {
    throw UsageError("no prompt", "give one with -p TEXT, or pipe it in");
  }
  std::string text{std::istreambuf_iterator<char>(std::cin), {}};
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

void print_json(const LocalResult& result) {
  const auto& stats = result.stats;
  const double seconds = std::chrono::duration<double>(stats.finished - stats.arrival).count();
  Json out;
  out["text"] = result.text;
  out["reasoning"] = result.reasoning.empty() ? Json() : Json(result.reasoning);
  out["finish_reason"] = server::finish_reason_name(result.finish_reason);
  out["prompt_tokens"] = stats.num_prompt_tokens;
  out["completion_tokens"] = stats.num_output_tokens;
  out["seconds"] = seconds;
  fmt::print("{}\n", out.dump(-1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace

int run_generate(const Words& words) {
  FlagSet set("generate");
  EngineFlags engine_flags;
  engine_flags.log_level = "warning";
  SamplingFlags sampling;
  std::string prompt;
  bool as_json = false;
  bool is_raw = false;
  set.group("Prompt");
  set.add_string("prompt,p", prompt, "The prompt; - or nothing: standard input");
  set.add_switch("raw", is_raw, "Continue the prompt as it is, without the chat template");
  set.add_switch("json", as_json, "Print one JSON object instead of the text");
  add_sampling_flags(set, sampling);
  add_engine_flags(set, engine_flags);
  add_terminal_lora_flag(set, engine_flags.lora);
  add_foreign_engine_flags(set);
  if (!set.parse(words)) return 0;
  init_log(engine_flags.log_level);
  check_engine_flags(engine_flags);
  const std::string text = read_prompt(prompt);

  Json body;
  if (is_raw) {
    body["prompt"] = text;
    body["max_tokens"] = 256;
  } else {
    body["messages"] = Json::array();
    if (!sampling.system.empty()) {
      body["messages"].push_back({{"role", "system"}, {"content", sampling.system}});
    }
    body["messages"].push_back({{"role", "user"}, {"content", text}});
  }
  write_sampling(sampling, engine_flags.seed, body);

  const std::unique_ptr<EngineSetup> setup = load_engine(engine_flags);
  const server::ServingModel model = setup->serving_model({engine_flags.model_folder()});
  const LocalResult result = generate_locally(model, body, [as_json](std::string_view piece) {
    if (as_json) return;
    fmt::print("{}", piece);
    std::fflush(stdout);
  });
  if (as_json) {
    print_json(result);
  } else {
    fmt::print("\n");
  }
  return 0;
}

}  // namespace winnow::cli
