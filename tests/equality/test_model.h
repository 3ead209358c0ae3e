// A random tiny model on disk and decoders of it, for tests that compare runs to the bit.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/testing/random_checkpoint.h"
#include "model/load_decoder.h"
#include "ops/testing/random_inputs.h"

namespace winnow::testing {

/// Deletes its folder.
class TestModel {
 public:
  explicit TestModel(const RandomCheckpoint& options);
  ~TestModel();
  TestModel(const TestModel&) = delete;
  TestModel& operator=(const TestModel&) = delete;

  const std::filesystem::path& folder() const { return folder_; }
  const RandomCheckpoint& options() const { return options_; }
  LoadedModel load(const std::string& backend, const DecoderOptions& options) const;

 private:
  RandomCheckpoint options_;
  std::filesystem::path folder_;
};

/// The settings that a model's cached values and its logits depend on.
struct Numerics {
  CacheDType kv;
  CacheDType index;
  DequantMode mode;

  /// For steps of at most 512 tokens.
  DecoderOptions options(int num_threads = 1) const;
  std::string name() const;  // of letters, digits and underscores
};

std::vector<Numerics> all_numerics();

/// Names for load(): the reference and every kernel set this machine has.
std::vector<std::string> backend_names();
/// The first and the last of them.
std::string reference_backend();
std::string best_backend();

/// A pool in a known state: every byte NaN in every format, or zero.
enum class PoolState { kPoisoned, kZeroed };
void allocate_pool(Decoder& decoder, std::int32_t num_blocks, PoolState state);

/// Rows for `num_blocks` blocks: lowest first, or highest first.
std::vector<BlockId> ascending_rows(std::int32_t num_blocks, std::int32_t first = 0);
std::vector<BlockId> highest_rows_first(const Decoder& decoder, std::int32_t num_blocks);

std::vector<TokenId> random_tokens(std::int64_t count, std::int32_t vocab,
                                   ops::testing::RandomInputs& random);

/// One sequence in a decoder's pool.
class TestSequence {
 public:
  TestSequence(Decoder& decoder, std::vector<BlockId> block_table, std::int32_t length = 0)
      : decoder_(&decoder), block_table_(std::move(block_table)), length_(length) {}

  /// Appends tokens in one step of their own: logits of each, [tokens][vocab].
  std::vector<float> append(std::span<const TokenId> tokens);
  /// The same in chunks of `chunk_tokens`.
  std::vector<float> append_in_chunks(std::span<const TokenId> tokens, std::int64_t chunk_tokens);

  /// Adds this sequence's next tokens to a batch, asking for every row of logits. The batch must
  /// run before the sequence is used again.
  void add_to(Batch& batch, std::span<const TokenId> tokens);

  /// Null: the model as it is. Alive while this runs.
  void set_adapter(const ModelAdapter* adapter) { adapter_ = adapter; }

  std::int32_t length() const { return length_; }
  const std::vector<BlockId>& block_table() const { return block_table_; }

 private:
  Decoder* decoder_;
  std::vector<BlockId> block_table_;
  std::int32_t length_;
  const ModelAdapter* adapter_ = nullptr;
};

/// Runs the batch; logits of all its logit_rows.
std::vector<float> run_batch(Decoder& decoder, const Batch& batch);

}  // namespace winnow::testing
