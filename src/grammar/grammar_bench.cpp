// What a constrained token costs: its mask, and the step through the grammar; and compiling. The
// vocabulary is winnow-tiny's.
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "grammar/grammar_compiler.h"
#include "grammar/testing/grammar_text.h"

namespace winnow {
namespace {

constexpr const char* kPerson = R"({"type":"object","properties":{"name":{"type":"string"},
  "age":{"type":"integer","minimum":0,"maximum":120},"tags":{"type":"array","items":{"type":"string"}},
  "address":{"type":"object","properties":{"street":{"type":"string"},"city":{"type":"string"}},
  "required":["street","city"]}},"required":["name","age","tags","address"]})";
constexpr const char* kText =
    R"({"name":"Ada Lovelace","age":36,"tags":["first","programmer, of a kind"],)"
    R"("address":{"street":"12 St James's Square","city":"London"}})";

/// Every mask of a text, and the steps between them.
void BM_MasksOfAText(benchmark::State& state) {
  const auto grammar = testing::compile_schema(kPerson);
  const std::vector<TokenId> tokens = testing::tiny_tokenizer().encode(kText);
  std::vector<std::uint32_t> mask(grammar->vocabulary().num_mask_words());
  for (auto _ : state) {
    GrammarState walk(grammar);
    for (const TokenId token : tokens) {
      benchmark::DoNotOptimize(walk.fill_mask(mask));
      if (!walk.accept(token)) state.SkipWithError("the text is not of the schema");
    }
  }
  state.SetItemsProcessed(state.iterations() * std::ssize(tokens));
}
BENCHMARK(BM_MasksOfAText);

void BM_Compile(benchmark::State& state) {
  for (auto _ : state) {
    GrammarCompiler compiler(testing::tiny_tokenizer(), testing::tiny_vocab_size(),
                             {testing::tiny_stop_id()});
    benchmark::DoNotOptimize(compiler.compile({.text = kPerson}));
  }
}
BENCHMARK(BM_Compile)->Unit(benchmark::kMillisecond)->MeasureProcessCPUTime();  // its threads too

}  // namespace
}  // namespace winnow
