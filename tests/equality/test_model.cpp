#include "test_model.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>

#include "base/error.h"
#include "base/machine.h"
#include "ops/testing/backends.h"

namespace winnow::testing {

TestModel::TestModel(const RandomCheckpoint& options) : options_(options) {
  static std::atomic<int> counter{0};
  folder_ = std::filesystem::temp_directory_path() /
            ("winnow-equality-" + std::to_string(::getpid()) + "-" + std::to_string(++counter));
  write_random_checkpoint(folder_, options);
}

TestModel::~TestModel() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

LoadedModel TestModel::load(const std::string& backend, const DecoderOptions& options) const {
  return load_decoder(folder_, backend, options);
}

DecoderOptions Numerics::options(int num_threads) const {
  return {.kv_dtype = kv,
          .index_dtype = index,
          .dequant = mode,
          .max_num_batched_tokens = 512,
          .num_threads = num_threads};
}

std::string Numerics::name() const {
  return fmt::format("kv_{}_index_{}_{}", cache_dtype_name(kv), cache_dtype_name(index),
                     dequant_mode_name(mode));
}

std::vector<Numerics> all_numerics() {
  constexpr CacheDType kDTypes[] = {CacheDType::kF32, CacheDType::kBF16, CacheDType::kFp8,
                                    CacheDType::kNvfp4};
  std::vector<Numerics> all;
  for (const CacheDType kv : kDTypes) {
    for (const CacheDType index : kDTypes) {
      for (const DequantMode mode : {DequantMode::kExact, DequantMode::kE4M3}) {
        all.push_back({kv, index, mode});
      }
    }
  }
  return all;
}

std::vector<std::string> backend_names() {
  // WINNOW_TEST_BACKEND=cuda-exact: the reference and that one. `cuda` has bits of its own, which
  // every condition must give again, so it is its own reference.
  if (const char* const only = std::getenv("WINNOW_TEST_BACKEND")) {
    if (std::string(only) == "cuda") return {only};
    return {"scalar", only};
  }
  std::vector<std::string> names{"scalar"};
  const Machine machine = detect_machine();
  for (const CpuIsa isa : {CpuIsa::kPortable, CpuIsa::kAvx2, CpuIsa::kAvx512}) {
    const std::string name = "cpu-" + std::string(cpu_isa_name(isa));
    try {
      if (isa <= machine.best_isa) (void)ops::make_backend(name, machine);
      if (isa <= machine.best_isa) names.push_back(name);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnsupported) throw;
    }
  }
  return names;
}

std::string reference_backend() { return backend_names().front(); }
std::string best_backend() { return backend_names().back(); }

void allocate_pool(Decoder& decoder, std::int32_t num_blocks, PoolState state) {
  decoder.allocate_pool(num_blocks);
  const std::vector<std::uint8_t> bytes(
      static_cast<std::size_t>(decoder.cache_layout().row_bytes() * num_blocks),
      state == PoolState::kPoisoned ? 0xFF : 0);
  decoder.memory()->upload(decoder.cache_view().pool, bytes.data(), std::ssize(bytes));
}

std::vector<BlockId> ascending_rows(std::int32_t num_blocks, std::int32_t first) {
  std::vector<BlockId> rows;
  for (std::int32_t b = 0; b < num_blocks; ++b) rows.push_back({first + b});
  return rows;
}

std::vector<BlockId> highest_rows_first(const Decoder& decoder, std::int32_t num_blocks) {
  std::vector<BlockId> rows = ascending_rows(num_blocks, decoder.num_blocks() - num_blocks);
  std::ranges::reverse(rows);
  return rows;
}

std::vector<TokenId> random_tokens(std::int64_t count, std::int32_t vocab,
                                   ops::testing::RandomInputs& random) {
  std::vector<TokenId> tokens(static_cast<std::size_t>(count));
  for (TokenId& token : tokens) token = static_cast<TokenId>(random.below(vocab));
  return tokens;
}

std::vector<float> TestSequence::append(std::span<const TokenId> tokens) {
  Batch batch;
  add_to(batch, tokens);
  return run_batch(*decoder_, batch);
}

std::vector<float> TestSequence::append_in_chunks(std::span<const TokenId> tokens,
                                                  std::int64_t chunk_tokens) {
  std::vector<float> logits;
  while (!tokens.empty()) {
    const auto count = std::min(tokens.size(), static_cast<std::size_t>(chunk_tokens));
    const std::vector<float> part = append(tokens.first(count));
    logits.insert(logits.end(), part.begin(), part.end());
    tokens = tokens.subspan(count);
  }
  return logits;
}

void TestSequence::add_to(Batch& batch, std::span<const TokenId> tokens) {
  const auto first = static_cast<std::int32_t>(batch.tokens.size());
  batch.sequences.push_back({.first_token = first,
                             .num_tokens = static_cast<std::int32_t>(tokens.size()),
                             .first_position = length_,
                             .block_table = block_table_,
                             .adapter = adapter_});
  batch.tokens.insert(batch.tokens.end(), tokens.begin(), tokens.end());
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    batch.logit_rows.push_back(first + static_cast<std::int32_t>(t));
  }
  length_ += static_cast<std::int32_t>(tokens.size());
}

std::vector<float> run_batch(Decoder& decoder, const Batch& batch) {
  std::vector<float> logits =
      ops::testing::poisoned(std::ssize(batch.logit_rows) * std::int64_t{decoder.vocab_size()});
  decoder.run(batch, logits);
  return logits;
}

}  // namespace winnow::testing
