// What a long conversation costs between the last byte of its body and the engine: an agent's next
// turn, about 1 MB of JSON of which only the last message is new. Each stage alone, then all of
// them. Text is this repository's own, tokenizer and template are winnow-tiny's.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "server/json_fields.h"
#include "server/json_guard.h"
#include "server/openai/prepare.h"
#include "server/template_renderer.h"
#include "text/token_cache.h"
#include "text/tokenizer.h"

namespace winnow::server {
namespace {

const std::filesystem::path kSource = WINNOW_SOURCE_DIR;
constexpr std::string_view kLastMessage = "And now?";  // as long as the numbers that replace it

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// What a coding agent reads: sources and pages, in a fixed order.
std::string corpus(std::size_t num_bytes) {
  std::vector<std::filesystem::path> files;
  for (const char* folder : {"src/text", "src/server", "src/engine", "docs"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(kSource / folder)) {
      const std::string type = entry.path().extension().string();
      if (type == ".cpp" || type == ".h" || type == ".md") files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  std::string text;
  for (std::size_t i = 0; text.size() < num_bytes && !files.empty(); i = (i + 1) % files.size()) {
    text += read_file(files[i]);
  }
  text.resize(num_bytes);
  return text;
}

/// A coding agent's loop: a call with arguments, then what the tool printed, up to `num_bytes`.
std::string conversation_body(std::size_t num_bytes, const std::string& last) {
  const std::string text = corpus(num_bytes);
  Json tools = Json::array();
  for (int i = 0; i < 20; ++i) {
    tools.push_back({{"type", "function"},
                     {"function",
                      {{"name", "tool_" + std::to_string(i)},
                       {"description", text.substr(static_cast<std::size_t>(i) * 400, 400)},
                       {"parameters",
                        {{"type", "object"},
                         {"properties", {{"path", {{"type", "string"}}}}},
                         {"required", {"path"}}}}}}});
  }
  Json messages = Json::array();
  messages.push_back({{"role", "system"}, {"content", text.substr(0, 12'000)}});
  messages.push_back({{"role", "user"}, {"content", "Find out why the test fails."}});
  std::size_t at = 12'000;
  for (int i = 0; at < text.size(); ++i) {
    const std::size_t length = 500 + static_cast<std::size_t>(i * 977 % 9000);
    const std::string id = "call_" + std::to_string(i);
    const Json arguments = {{"path", "src/file_" + std::to_string(i)}, {"from", i}, {"all", true}};
    messages.push_back({{"role", "assistant"},
                        {"content", text.substr(at, 200)},
                        {"reasoning_content", text.substr(at / 2, 300)},
                        {"tool_calls",
                         {{{"id", id},
                           {"type", "function"},
                           {"function", {{"name", "tool_1"}, {"arguments", arguments.dump()}}}}}}});
    messages.push_back(
        {{"role", "tool"}, {"tool_call_id", id}, {"content", text.substr(at, length)}});
    at += length;
  }
  messages.push_back({{"role", "user"}, {"content", last}});
  return Json{{"model", ""}, {"stream", true}, {"tools", tools}, {"messages", messages}}.dump(
      -1, ' ', false, Json::error_handler_t::replace);
}

struct Fixture {
  Tokenizer tokenizer = Tokenizer::from_file(kSource / "models/winnow-tiny");
  TemplateRenderer renderer{ChatTemplate::from_folder(kSource / "models/winnow-tiny")};
  TokenCache cache{std::int64_t{256} << 20};
  ServingModel model;
  RequestPolicy policy;
  std::string body = conversation_body(1'000'000, std::string(kLastMessage));

  Fixture() {
    model.names = {"winnow-tiny"};
    model.max_model_len = 1 << 20;
    model.vocab_size = tokenizer.vocab_size();
    model.tokenizer = &tokenizer;
    model.chat_template = &renderer;
  }
  ChatRequest request() const {
    return read_chat_request(parse_body(body), policy, model.defaults);
  }
};

Fixture& fixture() {
  static Fixture* const made = new Fixture();
  return *made;
}

void report(benchmark::State& state, std::size_t num_tokens) {
  state.counters["body_bytes"] = static_cast<double>(fixture().body.size());
  if (num_tokens == 0) return;
  state.counters["tokens"] = static_cast<double>(num_tokens);
  state.counters["tokens/s"] =
      benchmark::Counter(static_cast<double>(state.iterations()) * static_cast<double>(num_tokens),
                         benchmark::Counter::kIsRate);
}

void LookOverJson(benchmark::State& state) {
  for (auto _ : state) check_json_text(fixture().body);
  report(state, 0);
}
BENCHMARK(LookOverJson)->Unit(benchmark::kMillisecond);

void ParseBody(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(parse_body(fixture().body));
  report(state, 0);
}
BENCHMARK(ParseBody)->Unit(benchmark::kMillisecond);

void ReadChatRequest(benchmark::State& state) {
  const Json body = parse_body(fixture().body);
  for (auto _ : state) {
    benchmark::DoNotOptimize(read_chat_request(body, fixture().policy, fixture().model.defaults));
  }
  report(state, 0);
}
BENCHMARK(ReadChatRequest)->Unit(benchmark::kMillisecond);

void RenderPrompt(benchmark::State& state) {
  const ChatRequest request = fixture().request();
  for (auto _ : state) {
    benchmark::DoNotOptimize(fixture().renderer.render(template_variables(request)));
  }
  report(state, 0);
}
BENCHMARK(RenderPrompt)->Unit(benchmark::kMillisecond);

/// All text new; the argument is the number of threads.
void EncodeNewPrompt(benchmark::State& state) {
  const std::vector<TextSegment> segments =
      fixture().renderer.render(template_variables(fixture().request()));
  std::size_t num_tokens = 0;
  for (auto _ : state) {
    num_tokens = fixture()
                     .tokenizer
                     .encode(std::span<const TextSegment>(segments),
                             {.num_threads = static_cast<int>(state.range(0))})
                     .size();
  }
  report(state, num_tokens);
}
BENCHMARK(EncodeNewPrompt)->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMillisecond);

void EncodeKnownPrompt(benchmark::State& state) {
  const std::vector<TextSegment> segments =
      fixture().renderer.render(template_variables(fixture().request()));
  std::size_t num_tokens = 0;
  for (auto _ : state) {
    num_tokens =
        fixture()
            .tokenizer.encode(std::span<const TextSegment>(segments), {.cache = &fixture().cache})
            .size();
  }
  report(state, num_tokens);
}
BENCHMARK(EncodeKnownPrompt)->Unit(benchmark::kMillisecond);

/// All of it for a turn whose last message nobody has sent before.
void NextTurn(benchmark::State& state) {
  ServingModel model = fixture().model;
  model.token_cache = &fixture().cache;
  std::string body = fixture().body;
  const std::size_t last = body.rfind(kLastMessage);
  std::size_t num_tokens = 0;
  std::uint64_t turn = 10'000'000;
  for (auto _ : state) {
    body.replace(last, kLastMessage.size(), std::to_string(turn++));
    const ChatRequest request =
        read_chat_request(parse_body(body), fixture().policy, model.defaults);
    const PreparedPrompt prompt = prepare_chat_prompt(request, model, fixture().policy);
    num_tokens = prompt.tokens.size();
  }
  report(state, num_tokens);
}
BENCHMARK(NextTurn)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace winnow::server
