// Tokens per second of encoding and decoding, and prompts per second of rendering, on one thread.
// Counters: tokens/s and bytes/s. The vocabulary is made here from the text itself, by the usual
// training rule, so that words split into about as many tokens as in a real vocabulary.
#include <benchmark/benchmark.h>

#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "text/byte_alphabet.h"
#include "text/chat_template.h"
#include "text/split_regex.h"
#include "text/split_scanner.h"
#include "text/tokenizer.h"

namespace winnow {
namespace {

using Json = nlohmann::json;

// English-like prose: common words often, others by letters, with punctuation and numbers.
std::string make_prose(std::size_t num_bytes) {
  const std::vector<std::string> common = {
      "the",   "of",     "and",   "a",     "to",       "in",      "is",      "you",   "that",
      "it",    "he",     "was",   "for",   "on",       "are",     "with",    "as",    "his",
      "they",  "at",     "be",    "this",  "have",     "from",    "or",      "one",   "had",
      "model", "answer", "token", "world", "language", "because", "through", "every", "between"};
  std::mt19937 random(1);
  std::string text;
  while (text.size() < num_bytes) {
    if (random() % 4 != 0) {
      text += common[random() % common.size()];
    } else {
      for (std::size_t i = 3 + random() % 7; i > 0; --i) text += "etaoinshrdlucmf"[random() % 15];
    }
    const auto kind = random() % 20;
    if (kind == 0) text += ". The";
    if (kind == 1) text += ",";
    if (kind == 2) text += " " + std::to_string(random() % 3000);
    text += kind == 3 ? "\n" : " ";
  }
  return text;
}

const Tokenizer& bench_tokenizer() {
  static const Tokenizer* const tokenizer = [] {
    Json vocab = Json::object();
    for (int byte = 0; byte < 256; ++byte) {
      vocab[spelling_of_bytes(std::string(1, static_cast<char>(byte)))] = byte;
    }
    const std::string_view expression =
        SplitScanner::expression(SplitScanner::num_expressions() - 1);
    const SplitScanner scanner = *SplitScanner::for_expression(expression);
    const std::string text = make_prose(20'000);
    std::map<std::vector<std::string>, int> words;
    for (std::size_t i = 0; i < text.size();) {
      const std::size_t end = scanner.match_end(text, i);
      std::vector<std::string> symbols;
      for (; i < end; ++i) symbols.push_back(spelling_of_bytes(text.substr(i, 1)));
      ++words[symbols];
    }
    Json merges = Json::array();
    for (int round = 0; round < 500; ++round) {
      std::map<std::pair<std::string, std::string>, int> pairs;
      for (const auto& [symbols, count] : words) {
        for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
          pairs[{symbols[i], symbols[i + 1]}] += count;
        }
      }
      if (pairs.empty()) break;
      const auto best =
          std::max_element(pairs.begin(), pairs.end(), [](const auto& a, const auto& b) {
            return a.second < b.second;
          })->first;
      merges.push_back({best.first, best.second});
      vocab.emplace(best.first + best.second, static_cast<int>(vocab.size()));
      std::map<std::vector<std::string>, int> next;
      for (const auto& [symbols, count] : words) {
        std::vector<std::string> merged;
        for (std::size_t i = 0; i < symbols.size(); ++i) {
          if (i + 1 < symbols.size() && symbols[i] == best.first && symbols[i + 1] == best.second) {
            merged.push_back(symbols[i] + symbols[i + 1]);
            ++i;
          } else {
            merged.push_back(symbols[i]);
          }
        }
        next[merged] += count;
      }
      words = std::move(next);
    }
    const Json root = {
        {"pre_tokenizer",
         {{"type", "Sequence"},
          {"pretokenizers",
           {{{"type", "Split"}, {"pattern", {{"Regex", expression}}}, {"behavior", "Isolated"}},
            {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}}},
        {"decoder", {{"type", "ByteLevel"}}},
        {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
    return new Tokenizer(Tokenizer::from_json(root.dump()));
  }();
  return *tokenizer;
}

void report(benchmark::State& state, std::size_t num_tokens, std::size_t num_bytes) {
  const auto rounds = static_cast<double>(state.iterations());
  state.counters["tokens/s"] =
      benchmark::Counter(rounds * static_cast<double>(num_tokens), benchmark::Counter::kIsRate);
  state.counters["bytes/s"] =
      benchmark::Counter(rounds * static_cast<double>(num_bytes), benchmark::Counter::kIsRate);
}

void EncodeProse(benchmark::State& state) {
  const std::string text = make_prose(static_cast<std::size_t>(state.range(0)));
  std::size_t num_tokens = bench_tokenizer().encode(text).size();
  for (auto _ : state) num_tokens = bench_tokenizer().encode(text).size();
  report(state, num_tokens, text.size());
}
BENCHMARK(EncodeProse)->Arg(2'000)->Arg(1'000'000)->Unit(benchmark::kMillisecond);

void EncodeWithOffsets(benchmark::State& state) {
  const std::string text = make_prose(1'000'000);
  std::size_t num_tokens = bench_tokenizer().encode(text).size();
  for (auto _ : state) num_tokens = bench_tokenizer().encode_with_offsets(text).ids.size();
  report(state, num_tokens, text.size());
}
BENCHMARK(EncodeWithOffsets)->Unit(benchmark::kMillisecond);

// No white space at all: one word of 100,000 bytes, so the heap does all the work.
void EncodeOneLongWord(benchmark::State& state) {
  std::mt19937 random(2);
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += "etaoinshrdlu"[random() % 12];
  std::size_t num_tokens = bench_tokenizer().encode(text).size();
  for (auto _ : state) num_tokens = bench_tokenizer().encode(text).size();
  report(state, num_tokens, text.size());
}
BENCHMARK(EncodeOneLongWord)->Unit(benchmark::kMillisecond);

void Decode(benchmark::State& state) {
  const std::string text = make_prose(1'000'000);
  const std::vector<TokenId> ids = bench_tokenizer().encode(text);
  for (auto _ : state) benchmark::DoNotOptimize(bench_tokenizer().decode(ids));
  report(state, ids.size(), text.size());
}
BENCHMARK(Decode)->Unit(benchmark::kMillisecond);

// The M3 expression by hand and by PCRE2 with its JIT compiler.
void SplitByScanner(benchmark::State& state) {
  const std::string text = make_prose(1'000'000);
  const SplitScanner scanner =
      *SplitScanner::for_expression(SplitScanner::expression(SplitScanner::num_expressions() - 1));
  std::size_t words = 0;
  for (auto _ : state) {
    words = 0;
    for (std::size_t i = 0; i < text.size(); ++words) i = scanner.match_end(text, i);
    benchmark::DoNotOptimize(words);
  }
  report(state, words, text.size());
}
BENCHMARK(SplitByScanner)->Unit(benchmark::kMillisecond);

void SplitByRegex(benchmark::State& state) {
  const std::string text = make_prose(1'000'000);
  const SplitRegex regex(SplitScanner::expression(SplitScanner::num_expressions() - 1));
  std::vector<SplitMatch> matches;
  for (auto _ : state) {
    matches.clear();
    regex.split(text, matches);
  }
  report(state, matches.size(), text.size());
}
BENCHMARK(SplitByRegex)->Unit(benchmark::kMillisecond);

void RenderChat(benchmark::State& state) {
  const ChatTemplate chat(
      "{%- macro part(c) -%}{% if c is string %}{{ c }}{% else %}{% for p in c %}{{ p.text }}"
      "{% endfor %}{% endif %}{%- endmacro -%}"
      "{%- set ns = namespace(last='') -%}"
      "{%- for m in messages -%}{{ ']~b]' ~ m.role ~ '\n' ~ part(m.content)|trim ~ '[e~[\n' }}"
      "{%- set ns.last = m.role -%}{%- endfor -%}{%- if ns.last == 'user' -%}]~b]ai\n{%- endif "
      "-%}");
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  for (std::int64_t i = 0; i < state.range(0); ++i) {
    messages.push_back({{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", make_prose(400)}});
  }
  const nlohmann::ordered_json context = {{"messages", messages}};
  std::size_t num_bytes = 0;
  for (auto _ : state) num_bytes = chat.render(context).size();
  report(state, 0, num_bytes);
}
BENCHMARK(RenderChat)->Arg(10)->Arg(200)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace winnow
