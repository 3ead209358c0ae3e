// One quarter of a token's list, all its blocks at once: up to 16 query heads of one KV head
// against at most four nvfp4 blocks, by a CTA of four warps. Sums and their order:
// ops/cuda/cache_fragments.cuh.
//
// All pages of K are asked for at the start, and V where it has room. Warp w scores keys [32w, 32w
// + 32) of every block (queries are the M side and stay in registers), so that a lane holds whole
// parts of the sums; the maxima of all blocks are exchanged at once. Then the warp adds dims [32w,
// 32w + 32) of all keys with V on the M side: transposed loads of the codes give a lane the same
// four dims of two neighbouring keys, which become operands in registers. P is the only thing that
// the warps exchange. Three barriers a quarter.
#pragma once

#include <cstdint>

#include "ops/attention/cuda_fast_decode.cuh"
#include "ops/attention/cuda_fast_quarter_shared.cuh"
#include "ops/cuda/cache_fragments.cuh"

namespace winnow::cuda {

/// A lane's part of the queries: of step j, heads lane / 4 and eight more.
struct QuarterQueries {
  float4 fours[8][2];
};

template <CacheFormat F, int kEarlyValues>
class QuarterAttention {
 public:
  /// Queries at `position` against KV head `kv_head`.
  __device__ __forceinline__ QuarterAttention(const CachePlanes& planes, int kv_head,
                                              std::int32_t position, float factor,
                                              QuarterShared<F, kEarlyValues>& shared)
      : planes_(planes),
        kv_head_(kv_head),
        position_(position),
        factor_(factor),
        shared_(shared),
        warp_(static_cast<int>(threadIdx.x >> 5U)),
        lane_(static_cast<int>(threadIdx.x & 31U)),
        g_(static_cast<int>(threadIdx.x >> 2U & 7U)),
        c_(static_cast<int>(threadIdx.x & 3U)) {
    if (threadIdx.x == 0) {
      for (int i = 0; i < 2 * kQuarterBlocks; ++i) {
        ptx::mbarrier_init(ptx::shared_address(&shared.full[0][i]), 1);
      }
      for (int i = 0; i < 2; ++i) {
        ptx::mbarrier_init(ptx::shared_address(&shared.empty[i]), kQuarterWarps);
      }
      ptx::mbarrier_init(ptx::shared_address(&shared.merged), 1);
      ptx::fence_mbarrier_init();
      ptx::mbarrier_arrive_expect_tx(ptx::shared_address(&shared.merged), S::kSentBytes);
    }
    if constexpr (F == CacheFormat::kNvfp4E4m3) {
      fill_scaled_magnitudes(shared.table, static_cast<int>(threadIdx.x), kQuarterThreads);
    }
  }

  /// Rows of the `heads` query heads; the others are 0. Operands only later, so that the loads are
  /// under way together with those of the list.
  __device__ __forceinline__ QuarterQueries load_queries(const float* q, int heads) const {
    QuarterQueries queries{};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int head = g_ + 8 * r;
      if (head >= heads) break;
      const float* const row = q + head * kFastDim + key_dim(F, 0, 2 * c_);
#pragma unroll
      for (int step = 0; step < 8; ++step) {
        queries.fours[step][r] =
            *reinterpret_cast<const float4*>(row + key_dim(F, step, 0) - key_dim(F, 0, 0));
      }
    }
    return queries;
  }

  /// Starts to read the blocks in pool rows `row`, one per lane, the same in every warp. After a
  /// barrier.
  __device__ __forceinline__ void prefetch(std::int32_t row, int count) {
    row_ = __shfl_sync(0xFFFFFFFFU, row, warp_);
    if (warp_ >= count || lane_ != 0) return;
    const std::byte* const keys = planes_.row(row_) + planes_.k.data(kv_head_, 0);
    const std::byte* const scales = planes_.row(row_) + planes_.k.scales(kv_head_, 0);
    const std::uint32_t target = ptx::shared_address(shared_.area(warp_, 0));
    ptx::mbarrier_arrive_expect_tx(barrier(0, warp_), S::kPageBytes);
    ptx::cp_async_bulk(target, keys, S::kCodeBytes, barrier(0, warp_));
    ptx::cp_async_bulk(target + S::kCodeBytes, scales, S::kScaleBytes, barrier(0, warp_));
    if (warp_ < kEarlyValues) prefetch_values();
  }

  /// Blocks `block` (logical), one per lane, ascending, after prefetch() of their rows. Sends the
  /// outputs to the quarters' CTAs of the cluster, each of which merges a quarter of the dims.
  __device__ __forceinline__ void run(const QuarterQueries& queries, std::int32_t block, int count,
                                      int quarter) {
#pragma unroll
    for (int step = 0; step < 8; ++step) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float4& four = queries.fours[step][r];
        queries_[step][r] = pack_operands<F>(four.x, four.y);
        queries_[step][2 + r] = pack_operands<F>(four.z, four.w);
      }
    }
#pragma unroll 1
    for (int b = 0; b < count; ++b) {
      float scores[kTiles][4];
      wait(0, b);
      score(b, scores);
      mask(keys_of(block, b), scores);
      keep_scores(b, scores);
    }
    __syncthreads();
    exponentiate(count);
    ptx::fence_proxy_async();
    __syncthreads();
    if (warp_ >= kEarlyValues && warp_ < min(count, kEarlyValues + 2) && lane_ == 0) {
      prefetch_values();
    }
    float outputs[2][2][4];
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) outputs[m][n][i] = 0.0F;
      }
    }
#pragma unroll 1
    for (int b = 0; b < count; ++b) {
      wait(1, b);
      const int num_keys = keys_of(block, b);
      if (num_keys < kFastBlockTokens) clear_scales(b, num_keys);
      add_values(b, outputs);
      if (kEarlyValues == 0 && b + 2 < count) make_room(b);
    }
    __syncthreads();
    send(outputs, quarter);
  }

  /// After run().
  __device__ __forceinline__ void merge(float* out, int heads, int quarter) {
    ptx::mbarrier_wait_parity(ptx::shared_address(&shared_.merged), 0);
    static_assert(kQuarterThreads == kQuarterHeads * S::kSentDims / 4);
    const auto head = static_cast<int>(threadIdx.x >> 3U);
    const auto dim = static_cast<int>(threadIdx.x & 7U) * 4;
    if (head >= heads) return;
    *reinterpret_cast<float4*>(out + head * kFastDim + quarter * S::kSentDims + dim) =
        merge_parts(factor_, [&](int i) -> QuarterPart {
          const float2 both = *shared_.sent_maximum_and_sum(i, head);
          return {both.x, both.y, *reinterpret_cast<const float4*>(shared_.sent(i, head) + dim)};
        });
  }

 private:
  using S = QuarterShared<F, kEarlyValues>;
  static constexpr int kTiles = 4;  // of 8 keys, of a warp and block

  __device__ __forceinline__ std::uint32_t barrier(int side, int b) const {
    return ptx::shared_address(&shared_.full[side][b]);
  }
  __device__ __forceinline__ void wait(int side, int b) const {
    ptx::mbarrier_wait_parity(barrier(side, b), 0);
  }
  /// V of this warp's block.
  __device__ __forceinline__ void prefetch_values() {
    const std::byte* const codes = planes_.row(row_) + planes_.v.data(kv_head_, 0);
    const std::byte* const scales = planes_.row(row_) + planes_.v.scales(kv_head_, 0);
    const std::uint32_t target = ptx::shared_address(shared_.value_page(warp_));
    ptx::mbarrier_arrive_expect_tx(barrier(1, warp_), S::kPageBytes);
    ptx::cp_async_bulk(target, codes, S::kCodeBytes, barrier(1, warp_));
    ptx::cp_async_bulk(target + S::kCodeBytes, scales, S::kScaleBytes, barrier(1, warp_));
  }
  /// Block b + 2 takes the place of V of block b once every warp has read it.
  __device__ __forceinline__ void make_room(int b) {
    const std::uint32_t empty = ptx::shared_address(&shared_.empty[b]);
    __syncwarp();
    if (lane_ != 0) return;
    ptx::mbarrier_arrive(empty);
    if (warp_ != b + 2) return;
    ptx::mbarrier_wait_parity(empty, 0);
    prefetch_values();
  }
  /// Of lane b's block, the visible ones.
  __device__ __forceinline__ int keys_of(std::int32_t block, int b) const {
    const std::int32_t begin = __shfl_sync(0xFFFFFFFFU, block, b) * kFastBlockTokens;
    return min(kFastBlockTokens, position_ - begin + 1);
  }

  __device__ __forceinline__ void score(int b, float (&scores)[kTiles][4]) {
    const std::byte* const keys = shared_.keys + b * S::kPageBytes;
    KeyCodes<F> codes[kTiles];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const int key = 32 * warp_ + 8 * t + g_;
      codes[t].load(*reinterpret_cast<const uint4*>(keys + key * vector_bytes(F) + 16 * c_),
                    *reinterpret_cast<const std::uint16_t*>(keys + S::kCodeBytes +
                                                            key * vector_scale_bytes(F) + 2 * c_),
                    shared_.table);
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[t][i] = 0.0F;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        std::uint32_t values[4];
        codes[t].expand(i, values);
        mma<F>(scores[t], queries_[2 * i], values[0], values[1]);
        mma<F>(scores[t], queries_[2 * i + 1], values[2], values[3]);
      }
    }
  }

  __device__ __forceinline__ void mask(int num_keys, float (&scores)[kTiles][4]) {
    if (num_keys >= kFastBlockTokens) return;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = 32 * warp_ + 8 * t + 2 * c_ + i % 2;
        if (key >= num_keys) scores[t][i] = kNegativeInfinity;
      }
    }
  }

  /// In place of the warp's keys, whose lanes have all read them.
  __device__ __forceinline__ void keep_scores(int b, const float (&scores)[kTiles][4]) {
    __syncwarp();
    auto* const kept = reinterpret_cast<float4*>(shared_.area(b, warp_)) + lane_;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      kept[32 * t] = float4{scores[t][0], scores[t][1], scores[t][2], scores[t][3]};
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float best = kNegativeInfinity;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        best = fmaxf(best, fmaxf(scores[t][2 * r], scores[t][2 * r + 1]));
      }
      best = fmaxf(best, __shfl_xor_sync(0xFFFFFFFFU, best, 1));
      best = fmaxf(best, __shfl_xor_sync(0xFFFFFFFFU, best, 2));
      if (c_ == 0) shared_.maxima(b, warp_)[g_ + 8 * r] = best;
    }
  }

  /// Scores become P, eight keys of a head together: [keys / 8][16 heads][8 keys] of a warp.
  __device__ __forceinline__ void exponentiate(int count) {
    float scaled[kQuarterBlocks][2], alpha[kQuarterBlocks][2], added[kQuarterBlocks][2];
    float maximum[2] = {kNegativeInfinity, kNegativeInfinity};
#pragma unroll
    for (int b = 0; b < kQuarterBlocks; ++b) {
      if (b >= count) break;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int head = g_ + 8 * r;
        float larger = maximum[r];
#pragma unroll
        for (int w = 0; w < kQuarterWarps; ++w) larger = fmaxf(larger, shared_.maxima(b, w)[head]);
        alpha[b][r] = rescale(maximum[r], larger, factor_);
        maximum[r] = larger;
        scaled[b][r] = __fmul_rn(larger, factor_);
        if (warp_ == 0 && c_ == 0) shared_.rescales[b][head] = alpha[b][r];
      }
    }
    // Pages 2 and 3 first: the others' P goes behind theirs.
    if (count > 2) exponentiate_block(2, scaled[2], added[2]);
    if (count > 3) exponentiate_block(3, scaled[3], added[3]);
    if (count > 0) exponentiate_block(0, scaled[0], added[0]);
    if (count > 1) exponentiate_block(1, scaled[1], added[1]);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = 0.0F;
#pragma unroll
      for (int b = 0; b < kQuarterBlocks; ++b) {
        if (b < count) sum = __fmaf_rn(sum, alpha[b][r], added[b][r]);
      }
      if (warp_ == 0 && c_ == 0) shared_.maximum[g_ + 8 * r] = maximum[r];
      shared_.sums(warp_, r)[lane_] = sum;
    }
  }

  __device__ __forceinline__ void exponentiate_block(int b, const float (&scaled)[2],
                                                     float (&added)[2]) {
    const auto* const kept = reinterpret_cast<const float4*>(shared_.area(b, warp_)) + lane_;
    std::byte* const weights = shared_.weights(b, warp_) + 16 * g_ + 4 * c_;
    float4 scores[kTiles];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) scores[t] = kept[32 * t];
    __syncwarp();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      added[r] = 0.0F;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const float first = probability(r == 0 ? scores[t].x : scores[t].z, scaled[r], factor_);
        const float second = probability(r == 0 ? scores[t].y : scores[t].w, scaled[r], factor_);
        added[r] += first;  // 0 for masked keys
        added[r] += second;
        *reinterpret_cast<std::uint32_t*>(weights + 256 * t + 128 * r) =
            pack_operands<F>(first, second);
      }
    }
  }

  /// Keys from `num_keys` on of block b become 0 in V, whatever they hold. By every warp.
  __device__ __forceinline__ void clear_scales(int b, int num_keys) {
    for (int key = num_keys + static_cast<int>(threadIdx.x); key < kFastBlockTokens;
         key += kQuarterThreads) {
      *reinterpret_cast<uint2*>(shared_.value_page(b) + S::kCodeBytes +
                                key * vector_scale_bytes(F)) = uint2{};
    }
    __syncthreads();
  }

  /// outputs[m][n]: of lane 4g + c, dims 32 · warp + 4g + 2m (i < 2) and one more, heads
  /// 8n + 2c + i % 2.
  __device__ __forceinline__ void add_values(int b, float (&outputs)[2][2][4]) {
    if (b > 0) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float2 alpha = *reinterpret_cast<const float2*>(&shared_.rescales[b][8 * n + 2 * c_]);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
#pragma unroll
          for (int i = 0; i < 4; ++i) outputs[m][n][i] *= i % 2 == 0 ? alpha.x : alpha.y;
        }
      }
    }
    // Of each step, P: keys 0-7 and 8-15 of heads 0-7, then of heads 8-15.
    const std::uint32_t weights = ptx::shared_address(shared_.weights(b, 0)) +
                                  (threadIdx.x >> 3U & 1U) * 256U +
                                  (threadIdx.x >> 4U & 1U) * 128U + (threadIdx.x & 7U) * 16U;
    // Of two steps, V: keys 0-7, 8-15, 16-23 and 24-31 of this warp's dims.
    const std::byte* const page = shared_.value_page(b);
    const std::uint32_t codes = ptx::shared_address(page) +
                                static_cast<std::uint32_t>(lane_ * vector_bytes(F) + 16 * warp_);
    const std::byte* const scales =
        page + S::kCodeBytes + 2 * c_ * vector_scale_bytes(F) + 2 * warp_ + g_ / 4;
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      std::uint32_t words[4];
      ptx::ldmatrix_x4_trans(words,
                             codes + static_cast<std::uint32_t>(32 * pair * vector_bytes(F)));
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        std::uint32_t p[4];
        ptx::ldmatrix_x4(p,
                         weights + static_cast<std::uint32_t>(S::kAreaBytes * pair + 512 * step));
        std::uint32_t v[2][4];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const std::byte* const two =
              scales + (32 * pair + 16 * step + 8 * i) * vector_scale_bytes(F);
          const GroupScale<F> first =
              load_group_scale<F>(static_cast<std::uint32_t>(two[0]), shared_.table);
          const GroupScale<F> second = load_group_scale<F>(
              static_cast<std::uint32_t>(two[vector_scale_bytes(F)]), shared_.table);
          expand_nvfp4_pair<F>(words[2 * step + i], first, second, v[i]);
        }
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          const std::uint32_t a[4] = {v[0][2 * m], v[0][2 * m + 1], v[1][2 * m], v[1][2 * m + 1]};
          mma<F>(outputs[m][0], a, p[0], p[1]);
          mma<F>(outputs[m][1], a, p[2], p[3]);
        }
      }
    }
  }

  /// Dims [32w, 32w + 32) are merged by CTA w.
  __device__ __forceinline__ void send(const float (&outputs)[2][2][4], int quarter) {
    // Nobody of the cluster reads K or V any more.
    ptx::barrier_cluster_arrive_relaxed();
    ptx::barrier_cluster_wait();
    const std::uint32_t merged = ptx::shared_address(&shared_.merged);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const std::uint32_t target =
            ptx::shared_address(shared_.sent(quarter, 8 * n + 2 * c_ + i) + 4 * g_);
        ptx::st_async(
            ptx::mapa(target, warp_),
            float4{outputs[0][n][i], outputs[0][n][i + 2], outputs[1][n][i], outputs[1][n][i + 2]},
            ptx::mapa(merged, warp_));
      }
    }
    if (warp_ >= 2) return;
    const int head = 8 * warp_ + g_;
    float sum = shared_.sums(0, warp_)[lane_];
#pragma unroll
    for (int w = 1; w < kQuarterWarps; ++w) sum += shared_.sums(w, warp_)[lane_];
    sum += __shfl_xor_sync(0xFFFFFFFFU, sum, 1);
    sum += __shfl_xor_sync(0xFFFFFFFFU, sum, 2);
    // Lane c of a head tells CTA c.
    ptx::st_async(ptx::mapa(ptx::shared_address(shared_.sent_maximum_and_sum(quarter, head)), c_),
                  float2{shared_.maximum[head], sum}, ptx::mapa(merged, c_));
  }

  const CachePlanes& planes_;
  int kv_head_;
  std::int32_t position_;
  float factor_;
  QuarterShared<F, kEarlyValues>& shared_;
  int warp_;
  int lane_;
  int g_, c_;             // lane 4g + c
  std::int32_t row_ = 0;  // of the pool, of block warp_
  std::uint32_t queries_[8][4];
};

/// One quarter of the list of (token, kv_head), by a CTA of kQuarterThreads whose rank in its
/// cluster is `quarter`. Waits for the launch before. Slices that are too long are left alone.
template <CacheFormat F, int kEarlyValues>
__device__ __forceinline__ void attend_quarter_of_cluster(const AttentionDecodeArgs& args,
                                                          QuarterShared<F, kEarlyValues>& shared,
                                                          int token, int kv_head, int quarter) {
  const QuarterTask task = quarter_task(args, token, kv_head);
  QuarterAttention<F, kEarlyValues> attention(args.planes, kv_head, task.position,
                                              softmax_factor(args.scale), shared);
  // The launch before began after queries and pages were written.
  const QuarterQueries queries =
      attention.load_queries(args.q + task.first_head * kFastDim, task.heads);
  QuarterList list;
  if (!wait_for_list(args, task, token, kv_head, quarter, list)) return;
  __syncthreads();
  attention.prefetch(list.row, list.count);
  attention.run(queries, list.block, list.count, quarter);
  attention.merge(args.out + task.first_head * kFastDim, task.heads, quarter);
}

}  // namespace winnow::cuda
