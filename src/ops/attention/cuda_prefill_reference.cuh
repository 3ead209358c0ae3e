// What the benchmark of attention for many tokens compares with: the binding order of
// cache_fragments.cuh on mma.sync, one token and KV head a warp, slow and plain.
#pragma once

#include "ops/attention/cuda_prefill.h"
#include "ops/cuda/cache_fragments.cuh"
#include "ops/cuda/prefill_bench.cuh"

namespace winnow::bench {

using cuda::AttentionPrefillArgs;
using cuda::CacheFormat;

struct ReferencePage {
  std::uint32_t keys[128][65];    // places of key_dim(), in pairs
  std::uint32_t values[128][65];  // [dim][pairs of tokens]
};

template <CacheFormat F>
__global__ void reference_attention(Kind kind, AttentionPrefillArgs args) {
  extern __shared__ ReferencePage pages[];
  ReferencePage& page = pages[0];
  const int lane = static_cast<int>(threadIdx.x);
  const int g = lane / 4;
  const int c = lane % 4;
  const int token = static_cast<int>(blockIdx.x);
  const int kv_head = static_cast<int>(blockIdx.y);
  const int group = args.shape.num_heads / args.shape.num_kv_heads;
  const int position = args.batch.positions[token];
  const int last = position / 128;
  const float factor = cuda::softmax_factor(args.scale);
  const std::int32_t* list = nullptr;
  int count = last + 1;
  int quarter = cuda::kDenseRunBlocks;
  if (args.blocks != nullptr) {
    list = args.blocks +
           (std::int64_t{token} * args.shape.num_index_heads + kv_head) * args.shape.top_k_blocks;
    quarter = cuda::quarter_entries(args.shape.top_k_blocks);
    count = 0;
    while (count < args.shape.top_k_blocks && list[count] >= 0) ++count;
  }
  const float* const q =
      args.q + (std::int64_t{token} * args.shape.num_heads + kv_head * group) * 128;

  float total[16][4] = {};
  cuda::MergedSoftmax merged[2];
  float outputs[16][4] = {};
  float maximum[2] = {-INFINITY, -INFINITY};
  float sums[4][2] = {};
  for (int n = 0; n < count; ++n) {
    const int block = list != nullptr ? list[n] : n;
    const std::byte* const row = args.planes.row(args.batch.pool_row(token, block));
    const auto* k = reinterpret_cast<const std::uint8_t*>(row + args.planes.k.data(kv_head, 0));
    const auto* v = reinterpret_cast<const std::uint8_t*>(row + args.planes.v.data(kv_head, 0));
    __syncwarp();
    for (int i = lane; i < 128 * 64; i += 32) {
      const int t = i / 64;
      const int d = cuda::key_dim(F, i % 64 / 8, i % 8 * 2);
      page.keys[t][i % 64] =
          cuda::pack_operands<F>(cache_value(kind, k, t, d), cache_value(kind, k, t, d + 1));
    }
    const int seen = position + 1 - block * 128;
    for (int i = lane; i < 128 * 64; i += 32) {
      const int d = i % 128;
      const int t = i / 128 * 2;
      page.values[d][t / 2] =
          cuda::pack_operands<F>(t < seen ? cache_value(kind, v, t, d) : 0.0F,
                                 t + 1 < seen ? cache_value(kind, v, t + 1, d) : 0.0F);
    }
    __syncwarp();
    float scores[16][4] = {};
    for (int j = 0; j < 16; ++j) {
      for (int step = 0; step < 8; ++step) {
        std::uint32_t a[4];
        for (int i = 0; i < 4; ++i) {
          const int head = g + 8 * (i % 2);
          const float* const x = q + head * 128 + cuda::key_dim(F, step, 2 * c + 8 * (i / 2));
          a[i] = head < group ? cuda::pack_operands<F>(x[0], x[1]) : 0;
        }
        cuda::mma<F>(scores[j], a, page.keys[8 * j + g][8 * step + c],
                     page.keys[8 * j + g][8 * step + c + 4]);
      }
    }
    float alpha[2];
    float scaled[2];
    for (int r = 0; r < 2; ++r) {
      float best = maximum[r];
      for (int j = 0; j < 16; ++j) {
        for (int i = 0; i < 2; ++i) {
          if (8 * j + 2 * c + i < seen) best = fmaxf(best, scores[j][2 * r + i]);
        }
      }
      best = fmaxf(best, __shfl_xor_sync(~0U, best, 1));
      best = fmaxf(best, __shfl_xor_sync(~0U, best, 2));
      scaled[r] = __fmul_rn(best, factor);
      alpha[r] = cuda::rescale(maximum[r], best, factor);
      maximum[r] = best;
    }
    for (int a = 0; a < 4; ++a) {
      for (int r = 0; r < 2; ++r) {
        float sum = 0;
        for (int j = 4 * a; j < 4 * a + 4; ++j) {
          for (int i = 0; i < 2; ++i) {
            float& x = scores[j][2 * r + i];
            x = 8 * j + 2 * c + i < seen ? cuda::probability(x, scaled[r], factor) : 0.0F;
            sum = __fadd_rn(sum, x);
          }
        }
        sums[a][r] = __fmaf_rn(sums[a][r], alpha[r], sum);
      }
    }
    for (int j = 0; j < 16; ++j) {
      for (int i = 0; i < 4; ++i) outputs[j][i] = __fmul_rn(outputs[j][i], alpha[i / 2]);
      for (int step = 0; step < 8; ++step) {
        std::uint32_t a[4];
        for (int i = 0; i < 4; ++i) {
          const float* const p = scores[2 * step + i / 2] + 2 * (i % 2);
          a[i] = cuda::pack_operands<F>(p[0], p[1]);
        }
        cuda::mma<F>(outputs[j], a, page.values[8 * j + g][8 * step + c],
                     page.values[8 * j + g][8 * step + c + 4]);
      }
    }
    if (n + 1 == count || (n + 1) % quarter == 0) {
      float a[2];
      float b[2];
      for (int r = 0; r < 2; ++r) {
        float sum = __fadd_rn(__fadd_rn(__fadd_rn(sums[0][r], sums[1][r]), sums[2][r]), sums[3][r]);
        sum = __fadd_rn(sum, __shfl_xor_sync(~0U, sum, 1));
        sum = __fadd_rn(sum, __shfl_xor_sync(~0U, sum, 2));
        merged[r].add(maximum[r], sum, factor, a[r], b[r]);
        maximum[r] = -INFINITY;
        for (int i = 0; i < 4; ++i) sums[i][r] = 0;
      }
      for (int j = 0; j < 16; ++j) {
        for (int i = 0; i < 4; ++i) {
          total[j][i] = __fmaf_rn(outputs[j][i], b[i / 2], __fmul_rn(total[j][i], a[i / 2]));
          outputs[j][i] = 0;
        }
      }
    }
  }
  for (int j = 0; j < 16; ++j) {
    for (int i = 0; i < 4; ++i) {
      const int head = g + 8 * (i / 2);
      if (head >= group) continue;
      args.out[(std::int64_t{token} * args.shape.num_heads + kv_head * group + head) * 128 + 8 * j +
               2 * c + i % 2] = __fmul_rn(total[j][i], merged[i / 2].normalizer());
    }
  }
}

template <CacheFormat F>
void launch_reference(Kind kind, const AttentionPrefillArgs& args) {
  CHECK(cudaFuncSetAttribute(reference_attention<F>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             sizeof(ReferencePage)));
  const dim3 grid(static_cast<unsigned>(args.batch.num_tokens),
                  static_cast<unsigned>(args.shape.num_kv_heads));
  reference_attention<F><<<grid, 32, sizeof(ReferencePage)>>>(kind, args);
}

inline void run_reference(Kind kind, const AttentionPrefillArgs& args) {
  cuda::with_cache_format(cuda::cache_format(dtype_of(kind), args.planes.mode),
                          [&]<CacheFormat F>() { launch_reference<F>(kind, args); });
}

}  // namespace winnow::bench
