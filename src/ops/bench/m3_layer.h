// One sparse layer of MiniMax-M3 at its real size, with random weights and an NVFP4 cache: what the
// kernel benchmarks run on.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/memory.h"
#include "formats/cache_row.h"
#include "ops/backend.h"

namespace winnow::ops {

inline constexpr std::int64_t kM3Hidden = 6144;
inline constexpr std::int64_t kM3ExpertWidth = 3072;
inline constexpr std::int32_t kM3TopExperts = 4;
inline constexpr AttentionShape kM3Attention = {.num_heads = 64,
                                                .num_kv_heads = 4,
                                                .head_dim = 128,
                                                .rotary_dim = 64,
                                                .num_index_heads = 4,
                                                .index_head_dim = 128,
                                                .top_k_blocks = 16,
                                                .local_blocks = 1,
                                                .init_blocks = 0};

/// `count` matrices of random values, packed one by one from the same source: equal contents in
/// memory of their own, as a benchmark of cold weights needs.
std::vector<std::unique_ptr<PackedMatrix>> random_matrices(const Backend& backend,
                                                           QuantScheme scheme, std::int64_t rows,
                                                           std::int64_t cols, std::int64_t count);

std::vector<float> random_floats(std::int64_t count, float scale, std::uint32_t seed);

/// A pool that holds one sequence of `num_tokens` tokens in one layer, K, V and index keys NVFP4.
class M3Cache {
 public:
  explicit M3Cache(std::int32_t num_tokens);
  CacheView view() const;
  /// Tokens [end - count, end) of the sequence as a batch.
  BatchView batch(std::int32_t count, std::int32_t end);

 private:
  CacheRowLayout layout_;
  Buffer pool_;
  std::vector<std::int32_t> block_table_;
  std::vector<std::int32_t> positions_;
  std::vector<std::int32_t> sequence_of_;
  SequenceSlice slice_;
};

/// Weights of one layer as M3.1 stores them: NVFP4 experts, F32 router, MXFP8 otherwise.
class M3Layer {
 public:
  M3Layer(const Backend& backend, std::int64_t num_experts, std::int32_t max_positions);

  /// x += attention and experts of the batch's tokens; x is [num_tokens][6144].
  void run(const Backend& backend, const OpContext& context, const BatchView& batch,
           const CacheView& cache, float* x);

  /// Bytes that one token reads: all but the experts it does not choose.
  std::int64_t bytes_per_token() const;
  static std::int64_t expert_bytes();

 private:
  void run_attention(const Backend& backend, const OpContext& context, const BatchView& batch,
                     const CacheView& cache, float* x);

  std::unique_ptr<PackedMatrix> qkv_;
  std::unique_ptr<PackedMatrix> out_;
  std::unique_ptr<PackedMatrix> router_;
  std::unique_ptr<PackedMatrix> shared_gate_up_;
  std::unique_ptr<PackedMatrix> shared_down_;
  std::vector<std::unique_ptr<PackedMatrix>> gate_up_;
  std::vector<std::unique_ptr<PackedMatrix>> down_;
  std::vector<MlpWeights> experts_;
  std::vector<float> router_bias_;
  std::vector<float> norm_;
  std::vector<float> head_norm_;
  std::vector<float> cos_;
  std::vector<float> sin_;
  // Activations, sized by the largest batch so far.
  std::vector<float> h_;
  std::vector<float> q_;
  std::vector<float> index_q_;
  std::vector<float> attended_;
  std::vector<std::int32_t> blocks_;
};

}  // namespace winnow::ops
