// The chain of hashes that names the blocks of a long prompt.
#include <benchmark/benchmark.h>

#include <random>
#include <span>
#include <vector>

#include "cache/block_hash.h"

namespace winnow {
namespace {

void HashBlocks(benchmark::State& state) {
  constexpr std::size_t kBlockTokens = 128;
  std::mt19937 random(1);
  std::vector<TokenId> tokens(static_cast<std::size_t>(state.range(0)));
  for (TokenId& token : tokens) token = static_cast<TokenId>(random() % 200'000);
  BlockHasher hasher("");
  for (auto _ : state) {
    BlockHash hash = hasher.root({});
    for (std::size_t i = 0; i + kBlockTokens <= tokens.size(); i += kBlockTokens) {
      hash = hasher.next(hash, std::span<const TokenId>(tokens).subspan(i, kBlockTokens));
    }
    benchmark::DoNotOptimize(hash);
  }
  state.counters["tokens/s"] = benchmark::Counter(
      static_cast<double>(state.iterations() * state.range(0)), benchmark::Counter::kIsRate);
}
BENCHMARK(HashBlocks)->Arg(254'000)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace winnow
