// A whole step of the decoder, for two sizes: the bundled winnow-tiny, and a few layers of medium
// width whose weights do not fit a cache. Compare with the sum of ops_bench to see what the step
// costs outside its kernels. Weights are random; what is timed does not depend on their values.
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <filesystem>
#include <map>

#include "base/log.h"
#include "checkpoint/testing/random_adapter.h"
#include "checkpoint/testing/random_checkpoint.h"
#include "model/load_decoder.h"

namespace winnow {
namespace {

enum Size { kTiny, kMedium };

RandomCheckpoint shape_of(Size size) {
  RandomCheckpoint shape = random_m31();
  shape.num_heads = 8;
  shape.num_kv_heads = 2;
  if (size == kTiny) {
    shape.vocab_size = 8192;
    shape.hidden_size = 512;
    shape.dense_intermediate = 1536;
    shape.moe_intermediate = shape.shared_intermediate = 512;
    shape.layers.assign(8, {.is_sparse_attention = true, .is_moe = true});
    shape.layers[0].is_moe = false;
  } else {
    shape.vocab_size = 32000;
    shape.hidden_size = 2048;
    shape.num_heads = 32;
    shape.num_kv_heads = 4;
    shape.top_k_blocks = 16;
    shape.moe_intermediate = shape.shared_intermediate = 1024;
    shape.num_experts = 16;
    shape.top_k_experts = 4;
    shape.layers.assign(3, {.is_sparse_attention = true, .is_moe = true});
  }
  return shape;
}

constexpr std::int32_t kMaxTokens = 1024;

/// Made once per size; the folder goes when the process ends.
class Fixture {
 public:
  explicit Fixture(Size size)
      : shape_(shape_of(size)),
        folder_(std::filesystem::temp_directory_path() /
                ("winnow-bench-" + std::to_string(::getpid()) + "-" + std::to_string(size))) {
    write_random_checkpoint(folder_, shape_);
    model_ =
        load_decoder(folder_, "auto", {.max_num_batched_tokens = kMaxTokens, .num_blocks = 2048});
  }
  ~Fixture() { std::filesystem::remove_all(folder_); }

  Decoder& decoder() { return *model_.decoder; }

  /// The index-th of some adapters of rank 16 on every projection, experts included.
  const ModelAdapter* adapter(std::size_t index) {
    while (adapters_.size() <= index) {
      const auto folder = folder_ / "adapters" / std::to_string(adapters_.size());
      write_random_adapter(folder, shape_, {.rank = 16, .seed = 1 + adapters_.size()});
      adapters_.push_back(decoder().load_adapter(folder, {.max_rank = 16}));
    }
    return adapters_[index].get();
  }

  static Fixture& of(Size size) {
    static std::map<Size, Fixture> fixtures;
    return fixtures.try_emplace(size, size).first->second;
  }

 private:
  RandomCheckpoint shape_;
  std::filesystem::path folder_;
  LoadedModel model_;
  std::vector<std::shared_ptr<const ModelAdapter>> adapters_;
};

/// `num_sequences` sequences that each add `num_tokens` behind `context` tokens. What the cache
/// holds there does not matter to the time: its pages are zero. Sequence i has adapter
/// i % num_adapters; 0: none has one.
void run_steps(benchmark::State& state, std::int32_t num_sequences, std::int32_t num_tokens,
               std::int32_t context, std::int32_t num_adapters = 0) {
  spdlog::set_level(spdlog::level::off);
  Fixture& fixture = Fixture::of(static_cast<Size>(state.range(0)));
  Decoder& decoder = fixture.decoder();
  const std::int32_t blocks = (context + num_tokens) / decoder.block_tokens() + 1;
  std::vector<std::vector<BlockId>> tables(static_cast<std::size_t>(num_sequences));
  Batch batch;
  std::int32_t next_block = 0;
  for (std::vector<BlockId>& table : tables) {
    for (std::int32_t b = 0; b < blocks; ++b) table.push_back({next_block++});
    batch.sequences.push_back({.first_token = static_cast<std::int32_t>(batch.tokens.size()),
                               .num_tokens = num_tokens,
                               .first_position = context,
                               .block_table = table,
                               .adapter = nullptr});
    if (num_adapters > 0) {
      batch.sequences.back().adapter =
          fixture.adapter((batch.sequences.size() - 1) % static_cast<std::size_t>(num_adapters));
    }
    for (std::int32_t t = 0; t < num_tokens; ++t) {
      batch.tokens.push_back(static_cast<TokenId>(batch.tokens.size() % 96));
    }
    batch.logit_rows.push_back(static_cast<std::int32_t>(batch.tokens.size()) - 1);
  }
  std::vector<float> logits(batch.logit_rows.size() *
                            static_cast<std::size_t>(decoder.vocab_size()));
  decoder.run(batch, logits);
  for (auto _ : state) decoder.run(batch, logits);
  state.SetItemsProcessed(state.iterations() * std::ssize(batch.tokens));
}

/// {size, sequences, context}
void BM_Decode(benchmark::State& state) {
  run_steps(state, static_cast<std::int32_t>(state.range(1)), 1,
            static_cast<std::int32_t>(state.range(2)));
}
BENCHMARK(BM_Decode)
    ->ArgsProduct({{kTiny, kMedium}, {1, 8, 32}, {1000}})
    ->ArgsProduct({{kTiny, kMedium}, {1}, {10, 16000}})
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime();

/// {size, tokens, context}
void BM_Prefill(benchmark::State& state) {
  run_steps(state, 1, static_cast<std::int32_t>(state.range(1)),
            static_cast<std::int32_t>(state.range(2)));
}
BENCHMARK(BM_Prefill)
    ->ArgsProduct({{kTiny, kMedium}, {512}, {0, 8000}})
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime();

/// {size, sequences, adapters, tokens of each}: 0 adapters is the same step without any.
void BM_Adapters(benchmark::State& state) {
  run_steps(state, static_cast<std::int32_t>(state.range(1)),
            static_cast<std::int32_t>(state.range(3)), 1000,
            static_cast<std::int32_t>(state.range(2)));
}
BENCHMARK(BM_Adapters)
    ->ArgsProduct({{kTiny, kMedium}, {1}, {0, 1}, {1, 512}})
    ->ArgsProduct({{kTiny, kMedium}, {8}, {0, 1, 4, 8}, {1}})
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime();

}  // namespace
}  // namespace winnow
