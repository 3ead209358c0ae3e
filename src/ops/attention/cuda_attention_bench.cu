// Checks decode attention against a float64 reference and times it.
//   cuda_attention_bench [check|time|bars|profile]     (bars: few shapes; profile: single launches,
//   for ncu)
// Floor: K and V of every selected (token, KV head, block) once.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstring>
#include <string>

#include "ops/attention/cuda_fast_decode.h"
#include "ops/cuda/bench.cuh"
#include "ops/cuda/bench_pages.cuh"
#include "ops/index_topk/cuda_fast_decode.h"

namespace winnow::cuda::bench {
namespace {

struct Case {
  int requests = 1;
  int tokens = 1;  // of each request
  int context = 0;
  CacheDType dtype = CacheDType::kNvfp4;
  DequantMode mode = DequantMode::kE4M3;
  int kv_heads = 4;
  int group = 16;
  int top_k = 16;
  bool is_ragged = false;
  bool is_dense = false;
};

const char* name_of(const Case& c) {
  if (c.dtype == CacheDType::kBF16) return "bf16";
  if (c.dtype == CacheDType::kFp8) return "fp8";
  return c.mode == DequantMode::kE4M3 ? "nvfp4 e4m3" : "nvfp4 exact";
}

struct Problem {
  AttentionDecodeArgs args;
  std::vector<const std::int32_t*> lists;  // of each set
  double bytes = 0;                        // of one launch
};

/// Selections of every token: the local block and random earlier ones, ascending.
std::vector<std::int32_t> make_lists(const Case& c, const std::vector<std::int32_t>& positions,
                                     std::uint64_t seed, double& blocks) {
  std::vector<std::int32_t> lists;
  std::uint64_t draw = 0;
  blocks = 0;
  for (const std::int32_t position : positions) {
    for (int h = 0; h < c.kv_heads; ++h) {
      const int local = position / 128;
      std::vector<std::int32_t> list{local};
      while (static_cast<int>(list.size()) < std::min(c.top_k, local + 1)) {
        const auto b = static_cast<std::int32_t>(random_bits(seed, draw++) %
                                                 static_cast<std::uint64_t>(local));
        if (std::find(list.begin(), list.end(), b) == list.end()) list.push_back(b);
      }
      std::sort(list.begin(), list.end());
      blocks += static_cast<double>(list.size());
      list.resize(static_cast<std::size_t>(c.top_k), -1);
      lists.insert(lists.end(), list.begin(), list.end());
    }
  }
  return lists;
}

Problem make_problem(const Case& c, int sets, bool with_index = false) {
  Problem p;
  const std::int64_t plane = plane_bytes(c.dtype);
  const std::int64_t row_bytes = (2 * c.kv_heads + (with_index ? 1 : 0)) * plane + 128;
  std::vector<int> lengths;
  std::int64_t rows = 0;
  for (int r = 0; r < c.requests; ++r) {
    lengths.push_back(c.is_ragged ? std::max(c.tokens, c.context - r * (c.context / 8 + 37))
                                  : c.context);
    rows += (lengths.back() + 127) / 128;
  }
  auto* const pool = device_array<std::byte>(rows * row_bytes);
  const HeadPlanes k = make_plane(c.dtype, 128, 2 * plane);
  const HeadPlanes v = make_plane(c.dtype, 128 + plane, 2 * plane);
  for (int h = 0; h < c.kv_heads; ++h) {
    const auto seed = static_cast<std::uint64_t>(100 + h);
    fill_plane<<<2048, 256>>>(pool, row_bytes, rows, k, h, seed);
    fill_plane<<<2048, 256>>>(pool, row_bytes, rows, v, h, seed + 50);
  }
  const HeadPlanes index_k = make_plane(c.dtype, 128 + 2 * c.kv_heads * plane, 0);
  if (with_index) fill_plane<<<2048, 256>>>(pool, row_bytes, rows, index_k, 0, 99);
  std::vector<std::int32_t> order(static_cast<std::size_t>(rows));
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
  for (std::size_t i = order.size() - 1; i > 0; --i) {
    std::swap(order[i], order[random_bits(5, i) % (i + 1)]);
  }
  std::int32_t* const table = to_device(order);
  std::vector<ops::SequenceSlice> slices;
  std::vector<std::int32_t> positions, sequence_of;
  std::int64_t used = 0;
  for (int r = 0; r < c.requests; ++r) {
    const int length = lengths[static_cast<std::size_t>(r)];
    slices.push_back({.first_token = r * c.tokens,
                      .num_tokens = c.tokens,
                      .first_position = length - c.tokens,
                      .block_table = table + used});
    const int last = (length + 127) / 128 - 1;
    for (int h = 0; h < c.kv_heads; ++h) {
      std::byte* const row = pool + order[static_cast<std::size_t>(used + last)] * row_bytes;
      poison_plane<<<1, 128>>>(row, k, h, length - 128 * last);
      poison_plane<<<1, 128>>>(row, v, h, length - 128 * last);
    }
    used += last + 1;
    for (int t = 0; t < c.tokens; ++t) {
      positions.push_back(length - c.tokens + t);
      sequence_of.push_back(r);
    }
  }
  const int num_tokens = c.requests * c.tokens;
  double blocks = 0;
  for (int s = 0; s < sets; ++s) {
    p.lists.push_back(
        to_device(make_lists(c, positions, static_cast<std::uint64_t>(1000 + s), blocks)));
  }
  std::vector<float> q(static_cast<std::size_t>(num_tokens * c.kv_heads * c.group * 128));
  for (std::size_t i = 0; i < q.size(); ++i) {
    float x = random_normal(77, i);
    if (c.mode == DequantMode::kE4M3 && c.dtype != CacheDType::kBF16) {
      x = static_cast<float>(round_e4m3(x));
    }
    q[i] = x;
  }
  CachePlanes planes;
  planes.pool = pool;
  planes.row_bytes = row_bytes;
  planes.block_tokens = 128;
  planes.mode = c.mode;
  planes.k = k;
  planes.v = v;
  planes.has_index = with_index;
  planes.index_k = index_k;
  p.args = {.q = to_device(q),
            .shape = {.num_heads = c.kv_heads * c.group,
                      .num_kv_heads = c.kv_heads,
                      .head_dim = 128,
                      .num_index_heads = c.kv_heads,
                      .index_head_dim = 128,
                      .top_k_blocks = c.top_k},
            .scale = 0.08838835F,
            .batch = {.num_tokens = num_tokens,
                      .num_sequences = c.requests,
                      .positions = to_device(positions),
                      .sequence_of = to_device(sequence_of),
                      .sequences = to_device(slices)},
            .planes = planes,
            .blocks = p.lists[0],
            .out = device_array<float>(static_cast<std::int64_t>(q.size()))};
  p.bytes = blocks * static_cast<double>(2 * plane);
  return p;
}

/// One thread block per (head, token); float64 throughout, queries rounded to the operand type.
/// `work` holds max_blocks · 128 scores of each; all blocks when args.blocks is null.
__global__ void reference(AttentionDecodeArgs args, std::int64_t max_blocks, double* work,
                          double* out) {
  __shared__ double maximum, sum;
  const int head = static_cast<int>(blockIdx.x);
  const int t = static_cast<int>(blockIdx.y);
  const ops::AttentionShape& shape = args.shape;
  const int kv_head = head / (shape.num_heads / shape.num_kv_heads);
  const ops::SequenceSlice& slice = args.batch.sequences[args.batch.sequence_of[t]];
  const int position = args.batch.positions[t];
  const std::int32_t* const list =
      args.blocks == nullptr
          ? nullptr
          : args.blocks + (std::int64_t{t} * shape.num_index_heads + kv_head) * shape.top_k_blocks;
  const int count = list == nullptr ? position / 128 + 1 : shape.top_k_blocks;
  double* const scores = work + (std::int64_t{t} * shape.num_heads + head) * max_blocks * 128;
  const float* const q = args.q + (std::int64_t{t} * shape.num_heads + head) * 128;
  const int lane = static_cast<int>(threadIdx.x);
  for (int i = 0; i < count; ++i) {
    const int block = list == nullptr ? i : list[i];
    double score = -INFINITY;
    if (block >= 0 && block * 128 + lane <= position) {
      const std::byte* const row = args.planes.row(slice.block_table[block]);
      score = 0;
      for (int d = 0; d < 128; ++d) {
        const double x = args.planes.k.dtype == CacheDType::kBF16
                             ? static_cast<double>(__bfloat162float(__float2bfloat16_rn(q[d])))
                             : static_cast<double>(__half2float(__float2half_rn(q[d])));
        score += x * plane_value(row, args.planes.k, args.planes.mode, kv_head, lane, d);
      }
    }
    scores[i * 128 + lane] = score * static_cast<double>(args.scale);
  }
  __syncthreads();
  if (lane == 0) {
    maximum = -INFINITY;
    for (int i = 0; i < count * 128; ++i) maximum = fmax(maximum, scores[i]);
    sum = 0;
  }
  __syncthreads();
  double own = 0;
  for (int i = 0; i < count; ++i) {
    double& score = scores[i * 128 + lane];
    score = exp(score - maximum);
    own += score;
  }
  atomicAdd(&sum, own);
  __syncthreads();
  double total = 0;
  for (int i = 0; i < count * 128; ++i) {
    if (scores[i] == 0) continue;
    const int block = list == nullptr ? i / 128 : list[i / 128];
    const std::byte* const row = args.planes.row(slice.block_table[block]);
    total += scores[i] * plane_value(row, args.planes.v, args.planes.mode, kv_head, i % 128, lane);
  }
  out[(std::int64_t{t} * shape.num_heads + head) * 128 + lane] = total / sum;
}

int num_failures = 0;

void launch(const Case& c, const AttentionDecodeArgs& args, std::byte* scratch,
            cudaStream_t stream) {
  if (args.blocks != nullptr) return launch_sparse_decode(args, stream);
  launch_dense_decode(args, c.context, num_multiprocessors(), scratch, stream);
}

void check(const Case& c, cudaStream_t stream) {
  Problem p = make_problem(c, 1);
  if (c.is_dense) p.args.blocks = nullptr;
  const std::int64_t heads = std::int64_t{p.args.batch.num_tokens} * p.args.shape.num_heads;
  const std::int64_t max_blocks = c.is_dense ? (c.context + 127) / 128 : c.top_k;
  double* const expected_device = device_array<double>(heads * 128);
  double* const work = device_array<double>(heads * max_blocks * 128);
  reference<<<dim3(static_cast<unsigned>(p.args.shape.num_heads),
                   static_cast<unsigned>(p.args.batch.num_tokens)),
              128>>>(p.args, max_blocks, work, expected_device);
  require(cudaMemset(p.args.out, 0xFF, static_cast<std::size_t>(heads) * 512), "poison");
  const std::int64_t scratch_bytes = dense_decode_scratch_bytes(p.args, c.context);
  auto* const scratch = device_array<std::byte>(scratch_bytes);
  require(cudaMemset(scratch, 0xFF, static_cast<std::size_t>(scratch_bytes)), "poison");
  require(cudaDeviceSynchronize(), "reference");
  launch(c, p.args, scratch, stream);
  require(cudaDeviceSynchronize(), "decode");
  const auto out = to_host(p.args.out, heads * 128);
  const auto expected = to_host(expected_device, heads * 128);
  // P is rounded to the operand type: 2^-12 (fp16) or 2^-9 (bf16) on average.
  const double tolerance = c.dtype == CacheDType::kBF16 ? 5e-3 : 6e-4;
  double worst = 0;
  for (std::int64_t h = 0; h < heads; ++h) {
    const double relative = relative_error(out.data() + h * 128, expected.data() + h * 128, 128);
    if (!(relative < tolerance) && ++num_failures <= 12) {
      std::printf("FAIL %s R%d Q%d %d head row %lld: relative error %.3g\n", name_of(c), c.requests,
                  c.tokens, c.context, static_cast<long long>(h), relative);
    }
    worst = std::max(worst, relative);
  }
  std::printf("%s %-11s R%-2d Q%-2d %6d heads %d/%d top %d: worst relative error %.2e\n",
              c.is_dense ? "dense " : "sparse", name_of(c), c.requests, c.tokens, c.context,
              c.kv_heads * c.group, c.kv_heads, c.top_k, worst);

  // The last token alone must give the same bits.
  const int last = p.args.batch.num_tokens - 1;
  ops::SequenceSlice slice = to_host(p.args.batch.sequences, c.requests).back();
  slice.first_position += slice.num_tokens - 1;
  slice.first_token = 0;
  slice.num_tokens = 1;
  AttentionDecodeArgs alone = p.args;
  alone.q += std::int64_t{last} * p.args.shape.num_heads * 128;
  if (!c.is_dense) alone.blocks += std::int64_t{last} * c.kv_heads * c.top_k;
  alone.batch = {.num_tokens = 1,
                 .num_sequences = 1,
                 .positions = p.args.batch.positions + last,
                 .sequence_of = to_device(std::vector<std::int32_t>{0}),
                 .sequences = to_device(std::vector<ops::SequenceSlice>{slice})};
  alone.out = device_array<float>(heads * 128);
  launch(c, alone, scratch, stream);
  require(cudaDeviceSynchronize(), "decode of one token");
  const std::int64_t row = std::int64_t{p.args.shape.num_heads} * 128;
  const auto same = to_host(alone.out, row);
  if (std::memcmp(same.data(), out.data() + last * row, static_cast<std::size_t>(row) * 4) != 0) {
    ++num_failures;
    std::printf("FAIL: the last token alone has other bits\n");
  }
  cudaFree(p.args.planes.pool);
  cudaFree(work);
}

void time_case(const Case& c, cudaStream_t stream, const char* shape = nullptr) {
  const double bytes =
      16.0 * c.requests * c.tokens * c.kv_heads * 2 * static_cast<double>(plane_bytes(c.dtype));
  const int sets = std::max(2, static_cast<int>(std::ceil(std::min(160e6 / bytes, 64.0))));
  Problem p = make_problem(c, sets);
  auto* const scratch = device_array<std::byte>(dense_decode_scratch_bytes(p.args, c.context));
  if (c.is_dense) {
    p.bytes = static_cast<double>(c.requests) * c.tokens * c.context / 128 * c.kv_heads * 2 *
              static_cast<double>(plane_bytes(c.dtype));
  }
  const double us = median_us(stream, sets, [&](int i) {
    p.args.blocks = c.is_dense ? nullptr : p.lists[static_cast<std::size_t>(i)];
    launch(c, p.args, scratch, stream);
  });
  char what[64];
  std::snprintf(what, sizeof what, "%s R%d Q%d at %d", name_of(c), c.requests, c.tokens, c.context);
  const double flops =
      p.bytes / static_cast<double>(plane_bytes(c.dtype)) * 128 * 128 * 2 * c.group;
  report(c.is_dense ? "dense_decode" : "sparse_decode", what, shape, us, p.bytes, flops,
         p.bytes / kCopyBandwidth * 1e6);
  cudaFree(p.args.planes.pool);
}

/// Indexer and sparse attention of one token; each launch another sequence, past the L2.
void time_chain(int context, cudaStream_t stream, const char* shape) {
  constexpr int kSequences = 4;
  Case c{kSequences, 1, context};
  Problem p = make_problem(c, 1, true);
  IndexDecodeArgs index{.index_q = p.args.q,
                        .shape = p.args.shape,
                        .batch = p.args.batch,
                        .planes = p.args.planes,
                        .max_slice_tokens = 1,
                        .num_positions = context,
                        .num_multiprocessors = num_multiprocessors(),
                        .blocks = device_array<std::int32_t>(64)};
  index.batch.num_tokens = 1;
  index.batch.num_sequences = 1;
  index.batch.sequence_of = to_device(std::vector<std::int32_t>{0});
  auto slices = to_host(p.args.batch.sequences, kSequences);
  for (ops::SequenceSlice& slice : slices) slice.first_token = 0;
  const ops::SequenceSlice* const sequences = to_device(slices);
  auto* const scratch = device_array<std::byte>(index_decode_scratch_bytes(index));
  const double us = median_us(stream, 2 * kSequences, [&](int i) {
    index.batch.sequences = sequences + i % kSequences;
    launch_index_decode(index, scratch, stream);
    AttentionDecodeArgs args = p.args;
    args.batch = index.batch;
    args.blocks = index.blocks;
    launch_sparse_decode(args, stream);
  });
  const double pages = context / 128.0 + 16 * 4 * 2;
  const double bytes = pages * static_cast<double>(plane_bytes(c.dtype));
  char what[64];
  std::snprintf(what, sizeof what, "nvfp4 e4m3 indexer + sparse at %d", context);
  report("msa_decode", what, shape, us, bytes, 2.0 * 128 * 4 * context,
         bytes / kCopyBandwidth * 1e6);
  cudaFree(p.args.planes.pool);
}

int run(const std::string& what) {
  cudaStream_t stream{};
  require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  constexpr auto kNvfp4 = CacheDType::kNvfp4;
  if (what == "profile") {
    for (const Case& c : {Case{32, 8, 32768}, Case{1, 1, 32768}}) {
      Problem p = make_problem(c, 1);
      launch(c, p.args, nullptr, stream);
      require(cudaDeviceSynchronize(), "sm90_sparse_decode");
    }
    return 0;
  }
  if (what == "bars") {
    time_case({1, 1, 131072}, stream);
    time_case({32, 8, 32768}, stream, "32x8 at 32K independent");
    time_chain(524288, stream, "1 over 512K");
    return 0;
  }
  if (what != "time") {
    for (const auto& [dtype, mode] : {std::pair{kNvfp4, DequantMode::kE4M3},
                                      {kNvfp4, DequantMode::kExact},
                                      {CacheDType::kFp8, DequantMode::kE4M3},
                                      {CacheDType::kFp8, DequantMode::kExact},
                                      {CacheDType::kBF16, DequantMode::kExact}}) {
      check({1, 1, 7, dtype, mode}, stream);
      check({3, 5, 4099, dtype, mode, 4, 16, 16, true}, stream);
      check({2, 3, 1000, dtype, mode, 2, 4, 4, true}, stream);
      check({20, 3, 3000, dtype, mode, 4, 16, 16, true}, stream);  // more CTAs than fit at once
      check({1, 1, 7, dtype, mode, 4, 16, 16, false, true}, stream);
      check({3, 2, 6011, dtype, mode, 2, 8, 16, true, true}, stream);
    }
    std::printf(num_failures == 0 ? "attention: all checks pass\n" : "attention: %d FAILURES\n",
                num_failures);
  }
  if (what != "check") {
    time_case({1, 1, 131072}, stream);
    time_case({1, 8, 131072}, stream);
    time_case({8, 8, 32768}, stream);
    time_case({32, 1, 32768}, stream);
    time_case({32, 8, 32768}, stream, "32x8 at 32K independent");
    time_case({32, 8, 131072}, stream);
    time_case({32, 8, 32768, kNvfp4, DequantMode::kExact}, stream);
    time_case({32, 8, 32768, CacheDType::kFp8}, stream);
    time_case({32, 8, 32768, CacheDType::kBF16}, stream);
    time_chain(32768, stream, nullptr);
    time_chain(131072, stream, nullptr);
    time_chain(524288, stream, "1 over 512K");
    for (const int context : {32768, 131072, 524288}) {
      time_case({1, 1, context, kNvfp4, DequantMode::kE4M3, 4, 16, 16, false, true}, stream);
    }
    time_case({1, 8, 131072, kNvfp4, DequantMode::kE4M3, 4, 16, 16, false, true}, stream);
  }
  return num_failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace winnow::cuda::bench

int main(int argc, char** argv) { return winnow::cuda::bench::run(argc > 1 ? argv[1] : "all"); }
