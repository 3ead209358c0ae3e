// winnow chat: a conversation in the terminal.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <string>

#include "base/log.h"
#include "cli/local_generation.h"
#include "cli/sampling_flags.h"
#include "cli/verbs.h"

namespace winnow::cli {
namespace {

constexpr const char* kHelp =
    "/reset      forget the conversation\n"
    "/system T   set the system message and start over\n"
    "/exit       leave (also Ctrl-D); Ctrl-C stops an answer\n";

std::atomic<bool> interrupted{false};

void on_interrupt(int) { interrupted = true; }

/// Ctrl-C only sets a flag, and does not restart a waiting read.
void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  ::sigaction(SIGINT, &action, nullptr);
}

class Conversation {
 public:
  Conversation(const server::ServingModel& model, SamplingFlags sampling,
               std::optional<std::int64_t> seed)
      : model_(model), sampling_(std::move(sampling)), seed_(seed) {
    reset();
  }

  void reset() {
    messages_ = Json::array();
    if (!sampling_.system.empty()) {
      messages_.push_back({{"role", "system"}, {"content", sampling_.system}});
    }
  }
  void set_system(const std::string& text) {
    sampling_.system = text;
    reset();
  }

  void ask(const std::string& text, bool is_terminal) {
    messages_.push_back({{"role", "user"}, {"content", text}});
    Json body;
    body["messages"] = messages_;
    write_sampling(sampling_, seed_, body);
    interrupted = false;
    try {
      const LocalResult result = generate_locally(
          model_, body,
          [](std::string_view piece) {
            fmt::print("{}", piece);
            std::fflush(stdout);
          },
          &interrupted,
          [is_terminal](std::string_view piece) {
            if (!is_terminal) return;
            fmt::print("\x1b[2m{}\x1b[0m", piece);  // dim
            std::fflush(stdout);
          });
      messages_.push_back({{"role", "assistant"}, {"content", result.text}});
      if (!result.reasoning.empty()) messages_.back()["reasoning_content"] = result.reasoning;
      fmt::print("\n");
      if (is_terminal) print_speed(result);
    } catch (const Error& error) {
      messages_.erase(messages_.size() - 1);  // the question that could not be answered
      fmt::print(stderr, "{}\n", error.text());
    }
    interrupted = false;
  }

 private:
  static void print_speed(const LocalResult& result) {
    const auto& stats = result.stats;
    const double seconds =
        std::chrono::duration<double>(stats.finished - stats.first_token).count();
    const int count = stats.num_output_tokens;
    if (count > 1 && seconds > 0) {
      fmt::print("\x1b[2m{} tokens, {:.1f} tokens/s{}\x1b[0m\n", count, (count - 1) / seconds,
                 result.finish_reason == FinishReason::kLength ? ", cut at the limit" : "");
    }
  }

  const server::ServingModel& model_;
  SamplingFlags sampling_;
  std::optional<std::int64_t> seed_;
  Json messages_;
};

/// False at the end of the input; a Ctrl-C at the prompt gives an empty line.
bool read_line(std::string& line, bool is_terminal) {
  if (is_terminal) {
    fmt::print("\x1b[1m> \x1b[0m");
    std::fflush(stdout);
  }
  if (std::getline(std::cin, line)) return true;
  if (!interrupted.exchange(false)) return false;
  std::cin.clear();
  std::clearerr(stdin);
  fmt::print("\n");
  line.clear();
  return true;
}

int converse(Conversation& conversation) {
  const bool is_terminal = ::isatty(STDIN_FILENO) != 0 && ::isatty(STDOUT_FILENO) != 0;
  if (is_terminal) fmt::print("Type a message. /help lists commands.\n");
  for (std::string line; read_line(line, is_terminal);) {
    if (line.empty()) continue;
    if (line == "/exit" || line == "/quit") break;
    if (line == "/help") {
      fmt::print("{}", kHelp);
    } else if (line == "/reset") {
      conversation.reset();
    } else if (line.starts_with("/system ")) {
      conversation.set_system(line.substr(8));
    } else if (line.starts_with('/')) {
      fmt::print("unknown command {}\n{}", line.substr(0, line.find(' ')), kHelp);
    } else {
      conversation.ask(line, is_terminal);
    }
  }
  return 0;
}

}  // namespace

int run_chat(const Words& words) {
  FlagSet set("chat");
  EngineFlags engine_flags;
  engine_flags.log_level = "warning";
  SamplingFlags sampling;
  add_sampling_flags(set, sampling);
  add_engine_flags(set, engine_flags);
  add_terminal_lora_flag(set, engine_flags.lora);
  add_foreign_engine_flags(set);
  if (!set.parse(words)) return 0;
  init_log(engine_flags.log_level);
  check_engine_flags(engine_flags);
  const std::unique_ptr<EngineSetup> setup = load_engine(engine_flags);
  const server::ServingModel model = setup->serving_model({engine_flags.model_folder()});
  catch_interrupts();
  Conversation conversation(model, sampling, engine_flags.seed);
  return converse(conversation);
}

}  // namespace winnow::cli
