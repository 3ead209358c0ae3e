// Checks the drafter's attention against a float64 reference and times it.
//   cuda_draft_attention_bench [check|time|profile]     (profile: one launch, for ncu)
// Floor: K and V of the window and the block once, 2 · (4095 + K) · 128 bytes a KV head.
#include <cuda_fp16.h>

#include <cmath>
#include <cstring>
#include <string>

#include "ops/cuda/bench.cuh"
#include "ops/cuda/bench_pages.cuh"
#include "ops/draft_attention/cuda_block.h"
#include "ops/draft_attention/draft_attention.h"

namespace winnow::cuda::bench {
namespace {

struct Case {
  int requests = 1;
  int tokens = 8;  // of each block
  int context = 0;
  int window = 4096;
  int kv_heads = 4;
  int group = 16;
  bool is_ragged = false;
};

struct Problem {
  DraftBlockArgs args;
  std::vector<const ops::SequenceSlice*> sets;  // the slices of each launch
  std::vector<ops::SequenceSlice> slices;       // of the first
  double bytes = 0;
};

/// `sets` times as many sequences as a launch takes, all with pages of their own where they are
/// seen. Slots that nobody sees are NaN.
Problem make_problem(const Case& c, int sets) {
  Problem p;
  const std::int64_t plane = plane_bytes(CacheDType::kFp8);
  const std::int64_t row_bytes = 2 * c.kv_heads * plane + 128;
  const int total = c.requests * sets;
  std::vector<int> contexts;
  std::int64_t rows = 0;
  const auto first_page = [&](int context) {
    return std::min(ops::first_visible(context, c.window), context) / 128;
  };
  for (int r = 0; r < total; ++r) {
    const int back = c.is_ragged ? r % c.requests * (c.context / 7 + 37) : r * 37 % 128;
    contexts.push_back(std::max(0, c.context - back));
    rows += (contexts.back() + 127) / 128 - first_page(contexts.back());
  }
  rows = std::max<std::int64_t>(rows, 1);
  auto* const pool = device_array<std::byte>(rows * row_bytes);
  const HeadPlanes k = make_plane(CacheDType::kFp8, 128, 2 * plane);
  const HeadPlanes v = make_plane(CacheDType::kFp8, 128 + plane, 2 * plane);
  for (int h = 0; h < c.kv_heads; ++h) {
    const auto seed = static_cast<std::uint64_t>(100 + h);
    fill_plane<<<2048, 256>>>(pool, row_bytes, rows, k, h, seed);
    fill_plane<<<2048, 256>>>(pool, row_bytes, rows, v, h, seed + 50);
  }
  std::vector<std::int32_t> order(static_cast<std::size_t>(rows));
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
  for (std::size_t i = order.size() - 1; i > 0; --i) {
    std::swap(order[i], order[random_bits(5, i) % (i + 1)]);
  }
  std::int32_t* const table = to_device(order);
  std::vector<std::int32_t> positions, sequence_of;
  std::int64_t used = 0;
  for (int s = 0; s < sets; ++s) {
    std::vector<ops::SequenceSlice> slices;
    for (int i = 0; i < c.requests; ++i) {
      const int context = contexts[static_cast<std::size_t>(s * c.requests + i)];
      const int first = first_page(context);
      const int count = (context + 127) / 128 - first;
      slices.push_back({.first_token = i * c.tokens,
                        .num_tokens = c.tokens,
                        .first_position = context,
                        .block_table = table + used - first});
      if (count > 0 && context % 128 != 0) {
        std::byte* const row = pool + order[static_cast<std::size_t>(used + count - 1)] * row_bytes;
        for (int h = 0; h < c.kv_heads; ++h) {
          poison_plane<<<1, 128>>>(row, k, h, context % 128);
          poison_plane<<<1, 128>>>(row, v, h, context % 128);
        }
      }
      used += count;
      if (s == 0) {
        for (int t = 0; t < c.tokens; ++t) {
          positions.push_back(context + t);
          sequence_of.push_back(i);
        }
        p.bytes +=
            static_cast<double>(std::min(context, c.window - 1) + c.tokens) * c.kv_heads * 2 * 128;
      }
    }
    if (s == 0) p.slices = slices;
    p.sets.push_back(to_device(slices));
  }
  const int num_tokens = c.requests * c.tokens;
  const int heads = c.kv_heads * c.group;
  std::vector<float> qkv(static_cast<std::size_t>(num_tokens * (heads + 2 * c.kv_heads) * 128));
  for (std::size_t i = 0; i < qkv.size(); ++i) qkv[i] = random_normal(77, i);
  CachePlanes planes;
  planes.pool = pool;
  planes.row_bytes = row_bytes;
  planes.block_tokens = 128;
  planes.k = k;
  planes.v = v;
  p.args = {.qkv = to_device(qkv),
            .shape = {.num_heads = heads, .num_kv_heads = c.kv_heads, .head_dim = 128},
            .scale = 0.08838835F,
            .window = c.window,
            .max_slice_tokens = c.tokens,
            .batch = {.num_tokens = num_tokens,
                      .num_sequences = c.requests,
                      .positions = to_device(positions),
                      .sequence_of = to_device(sequence_of),
                      .sequences = p.sets[0]},
            .planes = planes,
            .out = device_array<float>(std::int64_t{num_tokens} * heads * 128)};
  return p;
}

/// One thread block per (head, token), float64 throughout. `work`: scores.
__global__ void reference(DraftBlockArgs args, std::int64_t max_keys, double* work, double* out) {
  __shared__ double maximum, sum;
  const int head = static_cast<int>(blockIdx.x);
  const int t = static_cast<int>(blockIdx.y);
  const ops::AttentionShape& shape = args.shape;
  const int kv_head = head / (shape.num_heads / shape.num_kv_heads);
  const ops::SequenceSlice& slice = args.batch.sequences[args.batch.sequence_of[t]];
  const int begin =
      min(ops::first_visible(args.batch.positions[t], args.window), slice.first_position);
  const int count = slice.first_position + slice.num_tokens - begin;
  const std::int64_t width = (shape.num_heads + 2 * shape.num_kv_heads) * 128;
  const auto value = [&](int key, int part, int d) {
    const int position = begin + key;
    if (position >= slice.first_position) {
      const std::int64_t token = slice.first_token + position - slice.first_position;
      return static_cast<double>(
          args.qkv[token * width + (shape.num_heads + part * shape.num_kv_heads + kv_head) * 128 +
                   d]);
    }
    const std::byte* const row = args.planes.row(slice.block_table[position / 128]);
    return plane_value(row, part == 0 ? args.planes.k : args.planes.v, DequantMode::kExact, kv_head,
                       position % 128, d);
  };
  double* const scores = work + (std::int64_t{t} * shape.num_heads + head) * max_keys;
  const float* const q = args.qkv + t * width + head * 128;
  for (int key = static_cast<int>(threadIdx.x); key < count; key += 128) {
    double score = 0;
    for (int d = 0; d < 128; ++d) score += static_cast<double>(q[d]) * value(key, 0, d);
    scores[key] = score * static_cast<double>(args.scale);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    maximum = -INFINITY;
    for (int key = 0; key < count; ++key) maximum = fmax(maximum, scores[key]);
    sum = 0;
    for (int key = 0; key < count; ++key) sum += exp(scores[key] - maximum);
  }
  __syncthreads();
  double total = 0;
  for (int key = 0; key < count; ++key) {
    total += exp(scores[key] - maximum) * value(key, 1, static_cast<int>(threadIdx.x));
  }
  out[(std::int64_t{t} * shape.num_heads + head) * 128 + threadIdx.x] = total / sum;
}

// Q, own K and V, and P are rounded to fp16: 2^-12 each on average, more where few keys count.
constexpr double kTolerance = 2e-3;
int num_failures = 0;

std::vector<float> run(const DraftBlockArgs& args, int cluster, cudaStream_t stream) {
  const std::int64_t count = std::int64_t{args.batch.num_tokens} * args.shape.num_heads * 128;
  require(cudaMemset(args.out, 0xFF, static_cast<std::size_t>(count) * 4), "poison");
  require(cudaDeviceSynchronize(), "before");
  launch_draft_block(args, cluster, stream);
  require(cudaDeviceSynchronize(), "draft attention");
  return to_host(args.out, count);
}

void check(const Case& c, cudaStream_t stream) {
  Problem p = make_problem(c, 1);
  const std::int64_t heads = std::int64_t{p.args.batch.num_tokens} * p.args.shape.num_heads;
  const std::int64_t max_keys = c.window + c.tokens;
  double* const expected_device = device_array<double>(heads * 128);
  double* const work = device_array<double>(heads * max_keys);
  reference<<<dim3(static_cast<unsigned>(p.args.shape.num_heads),
                   static_cast<unsigned>(p.args.batch.num_tokens)),
              128>>>(p.args, max_keys, work, expected_device);
  require(cudaDeviceSynchronize(), "reference");
  const auto expected = to_host(expected_device, heads * 128);
  const auto whole = run(p.args, 1, stream);
  const auto quarters = run(p.args, 4, stream);
  double worst = 0;
  for (std::int64_t h = 0; h < heads; ++h) {
    const double relative = relative_error(whole.data() + h * 128, expected.data() + h * 128, 128);
    if (!(relative < kTolerance) && ++num_failures <= 8) {
      std::printf("FAIL R%d K%d %d head row %lld: relative error %.3g\n", c.requests, c.tokens,
                  c.context, static_cast<long long>(h), relative);
    }
    worst = std::max(worst, relative);
  }
  const bool is_same = std::memcmp(whole.data(), quarters.data(), whole.size() * 4) == 0;
  // The last sequence alone must give the same bits.
  DraftBlockArgs alone = p.args;
  ops::SequenceSlice slice = p.slices.back();
  const std::int64_t first = slice.first_token;
  alone.qkv += first * (p.args.shape.num_heads + 2 * c.kv_heads) * 128;
  slice.first_token = 0;
  alone.batch = {
      .num_tokens = c.tokens,
      .num_sequences = 1,
      .positions = p.args.batch.positions + first,
      .sequence_of = to_device(std::vector<std::int32_t>(static_cast<std::size_t>(c.tokens), 0)),
      .sequences = to_device(std::vector<ops::SequenceSlice>{slice})};
  const auto one = run(alone, 4, stream);
  const bool is_alone_same =
      std::memcmp(one.data(), whole.data() + first * p.args.shape.num_heads * 128,
                  one.size() * 4) == 0;
  if (!is_same || !is_alone_same) ++num_failures;
  std::printf("R%-2d K%-2d %6d window %4d heads %d/%d: worst relative error %.2e%s%s\n", c.requests,
              c.tokens, c.context, c.window, c.kv_heads * c.group, c.kv_heads, worst,
              is_same ? "" : "  FAIL: quarters of a cluster have other bits",
              is_alone_same ? "" : "  FAIL: alone it has other bits");
  cudaFree(p.args.planes.pool);
  cudaFree(work);
}

void time_case(const Case& c, cudaStream_t stream, int cluster, const char* shape = nullptr) {
  const double bytes = 4104.0 * c.requests * c.kv_heads * 256;
  const int sets = std::clamp(static_cast<int>(std::ceil(260e6 / bytes)), 2, 64);
  Problem p = make_problem(c, sets);
  const double us = median_us(stream, std::max(sets, 16), [&](int i) {
    p.args.batch.sequences = p.sets[static_cast<std::size_t>(i % sets)];
    launch_draft_block(p.args, cluster, stream);
  });
  char what[64];
  std::snprintf(what, sizeof what, "fp8 R%d K%d, %d CTAs a head", c.requests, c.tokens, cluster);
  const double flops = p.bytes / 256 * 128 * 4 * c.group * c.tokens;
  report("draft_attention", what, shape, us, p.bytes, flops, p.bytes / kCopyBandwidth * 1e6);
  cudaFree(p.args.planes.pool);
}

}  // namespace

int main_of(const std::string& mode) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  cudaStream_t stream{};
  require(cudaStreamCreate(&stream), "stream");
  if (mode == "check") {
    check({1, 8, 5000}, stream);
    check({3, 7, 9000, 4096, 4, 16, true}, stream);
    check({4, 8, 4096, 4096, 1, 16, true}, stream);
    check({2, 1, 130, 4096, 2, 8}, stream);
    check({2, 7, 0}, stream);
    check({5, 7, 700, 140, 2, 4, true}, stream);
    check({2, 3, 1000, 2, 2, 16, true}, stream);
    check({2, 20, 635, 300, 2, 16, true}, stream);
    check({1, 64, 1000, 256, 1, 16}, stream);
    check({9, 8, 1024, 1024, 2, 16, true}, stream);
    std::printf("%s\n", num_failures == 0 ? "ok" : "FAILED");
  } else if (mode == "time") {
    time_case({32, 8, 32768}, stream, 1, "32 x 8 over 4K");
    for (const int requests : {1, 8, 16, 24}) time_case({requests, 8, 32768}, stream, 4);
    time_case({32, 7, 32768}, stream, 1);
    time_case({32, 4, 32768}, stream, 1);
    time_case({16, 8, 32768}, stream, 1);
    time_case({32, 8, 32768}, stream, 4);
  } else {
    Problem p = make_problem({32, 8, 32768}, 1);
    launch_draft_block(p.args, 1, stream);
    require(cudaDeviceSynchronize(), "launch");
  }
  return num_failures == 0 ? 0 : 1;
}

}  // namespace winnow::cuda::bench

int main(int argc, char** argv) {
  return winnow::cuda::bench::main_of(argc > 1 ? argv[1] : "check");
}
