// Picks the verb; the place where errors of the command line end.
#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cstdio>
#include <exception>

#include "cli/check.h"
#include "cli/inspect.h"
#include "cli/quantize.h"
#include "cli/usage_error.h"
#include "cli/value_grammar.h"
#include "cli/verbs.h"
#include "cli/version.h"

namespace winnow::cli {
namespace {

constexpr int kUsageExit = 2;

/// Verbs whose flags are CLI11's own.
int run_plain(void (*add)(CLI::App&, int&), const char* name, const Words& words) {
  CLI::App app("", "winnow");
  int exit_code = 0;
  add(app, exit_code);
  std::vector<std::string> reversed(words.rbegin(), words.rend());
  reversed.emplace_back(name);
  try {
    app.parse(std::move(reversed));
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    throw UsageError(error.what());
  }
  return exit_code;
}

int run_inspect(const Words& words) { return run_plain(add_inspect_command, "inspect", words); }
int run_quantize(const Words& words) { return run_plain(add_quantize_command, "quantize", words); }
int run_check(const Words& words) { return run_plain(add_check_command, "check", words); }

struct Verb {
  const char* name;
  const char* what;
  int (*run)(const Words&);
};

constexpr Verb kVerbs[] = {
    {"serve", "Serve a model to OpenAI clients and a web page", run_serve},
    {"chat", "Talk to a model in the terminal", run_chat},
    {"generate", "Answer one prompt", run_generate},
    {"inspect", "Show what is in a model folder and what is wrong with it", run_inspect},
    {"quantize", "Write a bf16 checkpoint in M3.1's layout", run_quantize},
    {"check", "Compare the forward pass with a checkpoint's golden outputs", run_check},
    {"capture", "Write texts of a model and its streams over them, to train a drafter",
     run_capture},
    {"bench", "Measure: bench latency | throughput | kernels", run_bench},
};

void print_help() {
  fmt::print(
      "winnow {}: serves the MiniMax-M3 / M3.1 model family\n\nusage: winnow VERB [FLAGS]\n\n",
      kVersion);
  for (const Verb& verb : kVerbs) fmt::print("  {:<10} {}\n", verb.name, verb.what);
  fmt::print(
      "\n  winnow serve models/winnow-tiny      then open http://127.0.0.1:8000\n"
      "  winnow VERB --help                   the flags of a verb\n");
}

int dispatch(const Words& words) {
  if (words.empty() || words[0] == "--help" || words[0] == "-h" || words[0] == "help") {
    print_help();
    return words.empty() ? kUsageExit : 0;
  }
  if (words[0] == "--version" || words[0] == "-V" || words[0] == "version") {
    fmt::print("winnow {}\n", kVersion);
    return 0;
  }
  for (const Verb& verb : kVerbs) {
    if (words[0] == verb.name) return verb.run(Words(words.begin() + 1, words.end()));
  }
  std::vector<std::string> names;
  for (const Verb& verb : kVerbs) names.emplace_back(verb.name);
  const std::vector<std::string> near = suggestions(words[0], names, 1);
  throw UsageError(near.empty()
                       ? fmt::format("unknown verb '{}'", words[0])
                       : fmt::format("unknown verb '{}'; did you mean {}?", words[0], near[0]));
}

}  // namespace

int run(int argc, char** argv) {
  const Words words(argv + 1, argv + argc);
  try {
    return dispatch(words);
  } catch (const UsageError& error) {
    const bool has_verb = !words.empty() && words[0][0] != '-';
    fmt::print(stderr, "winnow: {}\nusage: winnow {} [FLAGS]; see winnow {}--help\n", error.text(),
               has_verb ? words[0] : "VERB", has_verb ? words[0] + " " : "");
    return kUsageExit;
  } catch (const Error& error) {
    fmt::print(stderr, "winnow: {}\n", error.text());
    return error_info(error.code()).exit_code;
  } catch (const std::exception& error) {
    fmt::print(stderr, "winnow: {}\n", error.what());
    return 1;
  }
}

}  // namespace winnow::cli
