// The epilogue of qkv_insert over projected heads, as a launch of its own.
#pragma once

#include <cstdint>

#include "ops/cuda/cache_planes.h"
#include "ops/qkv_insert/qkv_insert.h"

struct CUstream_st;

namespace winnow::cuda {

inline constexpr int kFinishDim = 128;
inline constexpr int kFinishRotary = 64;

/// The operation's parameters as plain values; pointers are of the device.
struct FinishHeads {
  const float* q_norm = nullptr;
  const float* k_norm = nullptr;
  const float* index_q_norm = nullptr;
  const float* index_k_norm = nullptr;
  float eps = 0.0F;
  ops::RopeTable rope;
  std::int32_t num_heads = 0;
  std::int32_t num_kv_heads = 0;
  std::int32_t num_index_heads = 0;
  DeviceBatch batch;
  CachePlanes planes;
  float* q = nullptr;
  float* index_q = nullptr;

  WINNOW_HOST_DEVICE std::int32_t stack_heads() const {
    return num_heads + 2 * num_kv_heads + (num_index_heads > 0 ? num_index_heads + 1 : 0);
  }
};

/// Norms, rotates, casts and inserts tokens [first_token, first_token + num_tokens) of the batch;
/// `projected` is [num_tokens][stack_heads][128].
void finish_heads(CUstream_st* stream, const FinishHeads& heads, const float* projected,
                  std::int32_t first_token, std::int32_t num_tokens);

}  // namespace winnow::cuda
