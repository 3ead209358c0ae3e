// The inner loops of `attention`: one decoded block of keys and values against sixteen rows at a
// time. A row is one query head of one query; rows of a KV head are numbered query · heads + head,
// and sixteen consecutive ones form a group, one lane each. A lane has its own limit: how many keys
// of the block its query sees, 0 when it does not read the block at all.
#pragma once

#include <stdint.h>  // NOLINT(modernize-deprecated-headers): see ops/x86/isa.h

namespace winnow::ops {

inline constexpr int kGroupRows = 16;
inline constexpr int kMaxGroups = 4;  // that are scored together

/// Values are decoded in parts of this many dims, [part][key][64], so that one part of a block of
/// 128 keys (32 KiB) stays in the first-level cache while all rows use it.
inline constexpr int kValuePartDims = 64;

struct ScoreTask {
  const float* queries[kMaxGroups];  // [dim][16] each
  int num_groups;
  const float* keys;  // [num_keys][dim]
  int64_t num_keys;
  int64_t dim;
  float scale;
  float* scores[kMaxGroups];  // out [num_keys][16] each: Σ_d q·k in ascending d, times scale
};

struct SoftmaxTask {
  float* scores;          // [num_keys][16]; becomes exp(score - maximum), 0 beyond a lane's limit
  int64_t num_keys;       // the largest limit
  const int32_t* limits;  // [16]
  float* maxima;          // [16] running; likewise the next
  float* sums;
  float* carries;  // out [16]: exp(old maximum - new maximum)
};

struct ValueTask {
  const float* weights;   // [num_keys][16]
  const int32_t* limits;  // [16]
  const float* carries;   // [16]
  const float* values;    // [part][block_tokens][64]
  int64_t block_tokens;
  int64_t dim;     // padded to 16
  float* outputs;  // [16][dim] running
};

/// A plane of NVFP4 keys or values.
struct Nvfp4Plane {
  const uint8_t* codes;   // [num_vectors][dim / 2]
  const uint8_t* scales;  // [num_vectors][dim / 16]
  int64_t num_vectors;
  int64_t dim;
  const float* table;  // [256][16]: value by scale and code (ops/x86/nvfp4_values.h)
};

struct AttentionKernels {
  void (*score)(const ScoreTask& task);
  void (*softmax)(const SoftmaxTask& task);
  void (*add_values)(const ValueTask& task);
  /// out [num_vectors][dim], or in parts as ValueTask::values with `block_tokens` keys a part.
  void (*decode_rows)(const Nvfp4Plane& plane, float* out);
  void (*decode_parts)(const Nvfp4Plane& plane, int64_t block_tokens, float* out);
  /// rows [16] of `dim` floats, null for none → out [dim][16].
  void (*transpose)(const float* const* rows, int64_t dim, float* out);
  /// out[d] = x[d] / divisor.
  void (*divide)(const float* x, float divisor, int64_t dim, float* out);
};

namespace avx512 {
extern const AttentionKernels kAttentionKernels;
}
namespace avx2 {
extern const AttentionKernels kAttentionKernels;
}
namespace portable {
extern const AttentionKernels kAttentionKernels;
}

}  // namespace winnow::ops
