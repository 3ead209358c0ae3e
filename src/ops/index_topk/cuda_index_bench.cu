// Checks the decode indexer against a float64 reference and times it.
//   cuda_index_bench [check|time|bars|profile]     (bars: few shapes; profile: single launches, for
//   ncu)
// Floor: index pages once per sequence.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "ops/cuda/bench.cuh"
#include "ops/cuda/bench_pages.cuh"
#include "ops/index_topk/cuda_fast_decode.h"

namespace winnow::cuda::bench {
namespace {

constexpr int kHeads = 4;

struct Case {
  int requests = 1;
  int tokens = 1;            // of each request
  std::int64_t context = 0;  // of the longest request, its new tokens included
  CacheDType dtype = CacheDType::kNvfp4;
  DequantMode mode = DequantMode::kE4M3;
  bool is_ragged = false;  // requests of different lengths, not multiples of 128
};

const char* name_of(const Case& c) {
  if (c.dtype == CacheDType::kBF16) return "bf16";
  if (c.dtype == CacheDType::kFp8) return "fp8";
  return c.mode == DequantMode::kE4M3 ? "nvfp4 e4m3" : "nvfp4 exact";
}

/// Device copies of a case: `sets` pools' worth of pages behind as many block tables.
struct Problem {
  IndexDecodeArgs args;
  std::vector<ops::SequenceSlice*> sets;
  std::vector<int> lengths;
  std::int64_t max_blocks = 0;
  std::byte* scratch = nullptr;
  double bytes = 0;
};

Problem make_problem(const Case& c, int sets) {
  Problem p;
  std::int64_t total_blocks = 0;
  for (int r = 0; r < c.requests; ++r) {
    const std::int64_t length =
        c.is_ragged ? std::max<std::int64_t>(c.tokens, c.context - 131 * r - r * c.context / 16)
                    : c.context;
    p.lengths.push_back(static_cast<int>(length));
    const std::int64_t blocks = (length + 127) / 128;
    p.max_blocks = std::max(p.max_blocks, blocks);
    total_blocks += blocks;
  }
  const std::int64_t rows = total_blocks * sets;
  const std::int64_t row_bytes = plane_bytes(c.dtype) + 256;
  auto* const pool = device_array<std::byte>(rows * row_bytes);
  HeadPlanes plane = make_plane(c.dtype, 128, 0);
  fill_plane<<<2048, 256>>>(pool, row_bytes, rows, plane, 0, 11);

  std::vector<std::int32_t> order(static_cast<std::size_t>(rows));
  for (std::int64_t i = 0; i < rows; ++i) order[static_cast<std::size_t>(i)] = static_cast<int>(i);
  for (std::int64_t i = rows - 1; i > 0; --i) {
    std::swap(
        order[static_cast<std::size_t>(i)],
        order[random_bits(5, static_cast<std::uint64_t>(i)) % static_cast<std::uint64_t>(i + 1)]);
  }
  std::int32_t* const tables = to_device(order);
  const int num_tokens = c.requests * c.tokens;
  std::vector<std::int32_t> positions, sequence_of;
  std::int64_t used = 0;
  for (int s = 0; s < sets; ++s) {
    std::vector<ops::SequenceSlice> slices;
    for (int r = 0; r < c.requests; ++r) {
      const int length = p.lengths[static_cast<std::size_t>(r)];
      slices.push_back({.first_token = r * c.tokens,
                        .num_tokens = c.tokens,
                        .first_position = length - c.tokens,
                        .block_table = tables + used});
      const int last = (length + 127) / 128 - 1;
      poison_plane<<<1, 128>>>(pool + order[static_cast<std::size_t>(used + last)] * row_bytes,
                               plane, 0, length - 128 * last);
      used += last + 1;
      if (s > 0) continue;
      for (int t = 0; t < c.tokens; ++t) {
        positions.push_back(length - c.tokens + t);
        sequence_of.push_back(r);
      }
    }
    p.sets.push_back(to_device(slices));
  }
  std::vector<float> q(static_cast<std::size_t>(num_tokens * kHeads * 128));
  for (std::size_t i = 0; i < q.size(); ++i) {
    float x = random_normal(77, i);
    const bool casts = c.mode == DequantMode::kE4M3 && c.dtype != CacheDType::kBF16;
    if (casts) x = static_cast<float>(round_e4m3(x));
    q[i] = x;
  }
  CachePlanes planes;
  planes.pool = pool;
  planes.row_bytes = row_bytes;
  planes.block_tokens = 128;
  planes.mode = c.mode;
  planes.has_index = true;
  planes.index_k = plane;
  p.args = {.index_q = to_device(q),
            .shape = {.num_heads = 64,
                      .num_kv_heads = 4,
                      .head_dim = 128,
                      .num_index_heads = kHeads,
                      .index_head_dim = 128,
                      .top_k_blocks = 16},
            .batch = {.num_tokens = num_tokens,
                      .num_sequences = c.requests,
                      .positions = to_device(positions),
                      .sequence_of = to_device(sequence_of),
                      .sequences = p.sets[0]},
            .planes = planes,
            .max_slice_tokens = c.tokens,
            .num_positions = static_cast<std::int32_t>(c.context),
            .num_multiprocessors = num_multiprocessors()};
  p.args.blocks = device_array<std::int32_t>(num_tokens * kHeads * 16);
  p.scratch = device_array<std::byte>(index_decode_scratch_bytes(p.args));
  p.bytes = static_cast<double>(total_blocks) * static_cast<double>(plane_bytes(c.dtype));
  return p;
}

/// scores[column][block], float64; queries rounded to the operand type as the kernel does.
__global__ void reference_scores(IndexDecodeArgs args, std::int64_t max_blocks, double* scores) {
  const int column = static_cast<int>(blockIdx.y);
  const int t = column / kHeads;
  const int position = args.batch.positions[t];
  const ops::SequenceSlice& slice = args.batch.sequences[args.batch.sequence_of[t]];
  for (std::int64_t b = blockIdx.x; b <= position / 128; b += gridDim.x) {
    __shared__ double best[128];
    const int key = static_cast<int>(threadIdx.x);
    double sum = -INFINITY;
    if (b * 128 + key <= position) {
      const std::byte* const row = args.planes.row(slice.block_table[b]);
      sum = 0;
      for (int d = 0; d < 128; ++d) {
        const float x = args.index_q[std::int64_t{column} * 128 + d];
        const double q = args.planes.index_k.dtype == CacheDType::kBF16
                             ? static_cast<double>(__bfloat162float(__float2bfloat16_rn(x)))
                             : static_cast<double>(__half2float(__float2half_rn(x)));
        sum += q * plane_value(row, args.planes.index_k, args.planes.mode, 0, key, d);
      }
    }
    best[key] = sum;
    __syncthreads();
    for (int half = 64; half > 0; half /= 2) {
      if (key < half) best[key] = fmax(best[key], best[key + half]);
      __syncthreads();
    }
    if (key == 0) scores[column * max_blocks + b] = best[0];
    __syncthreads();
  }
}

int num_failures = 0;

void fail(const Case& c, int column, const char* what, double a, double b) {
  if (++num_failures <= 12) {
    std::printf("FAIL %s R%d Q%d %lld column %d: %s (%.9g, %.9g)\n", name_of(c), c.requests,
                c.tokens, static_cast<long long>(c.context), column, what, a, b);
  }
}

void check_column(const Case& c, int column, int position, const double* scores,
                  const std::int32_t* blocks) {
  const int local = position / 128;
  std::vector<char> chosen(static_cast<std::size_t>(local + 1), 0);
  int count = 0;
  for (int i = 0; i < 16; ++i) {
    const int b = blocks[i];
    if (b == -1) break;
    if (b < 0 || b > local) return fail(c, column, "block out of range", b, local);
    if (i > 0 && blocks[i - 1] >= b) return fail(c, column, "not ascending", blocks[i - 1], b);
    chosen[static_cast<std::size_t>(b)] = 1;
    ++count;
  }
  for (int i = count; i < 16; ++i) {
    if (blocks[i] != -1) return fail(c, column, "not -1 after the end", i, blocks[i]);
  }
  if (count != std::min(16, local + 1)) return fail(c, column, "count", count, local + 1);
  if (chosen[static_cast<std::size_t>(local)] == 0) return fail(c, column, "local block", 0, 0);
  double worst_chosen = INFINITY;
  double best_left = -INFINITY;
  for (int b = 0; b < local; ++b) {
    if (chosen[static_cast<std::size_t>(b)] != 0) {
      worst_chosen = std::min(worst_chosen, scores[b]);
    } else {
      best_left = std::max(best_left, scores[b]);
    }
  }
  // fp32 accumulation of 128 products of unit variance.
  const double tolerance = 2e-5 * std::max(1.0, std::fabs(worst_chosen));
  if (worst_chosen < best_left - tolerance)
    fail(c, column, "better block left", worst_chosen, best_left);
}

void check(const Case& c, cudaStream_t stream) {
  Problem p = make_problem(c, 1);
  const int columns = p.args.batch.num_tokens * kHeads;
  double* const scores = device_array<double>(columns * p.max_blocks);
  reference_scores<<<dim3(512, static_cast<unsigned>(columns)), 128>>>(p.args, p.max_blocks,
                                                                       scores);
  require(cudaMemset(p.args.blocks, 0x7B, static_cast<std::size_t>(columns) * 64), "poison");
  require(cudaMemset(p.scratch, 0xEE, static_cast<std::size_t>(index_decode_scratch_bytes(p.args))),
          "poison");
  require(cudaDeviceSynchronize(), "reference");
  launch_index_decode(p.args, p.scratch, stream);
  require(cudaDeviceSynchronize(), "sm90_index_decode");
  const auto blocks = to_host(p.args.blocks, columns * 16);
  const auto reference = to_host(scores, columns * p.max_blocks);
  const auto positions = to_host(p.args.batch.positions, p.args.batch.num_tokens);
  for (int i = 0; i < columns; ++i) {
    check_column(c, i, positions[static_cast<std::size_t>(i / kHeads)],
                 reference.data() + i * p.max_blocks, blocks.data() + i * 16);
  }
  // Each token alone must give the same blocks.
  IndexDecodeArgs alone = p.args;
  alone.batch.num_sequences = 1;
  alone.batch.num_tokens = 1;
  alone.batch.sequence_of = to_device(std::vector<std::int32_t>{0});
  alone.max_slice_tokens = 1;
  std::int32_t* const all_alone = device_array<std::int32_t>(columns * 16);
  const auto slices = to_host(p.sets[0], c.requests);
  for (int t = 0; t < p.args.batch.num_tokens; ++t) {
    ops::SequenceSlice slice = slices[static_cast<std::size_t>(t / c.tokens)];
    slice.first_position += t % c.tokens;
    slice.first_token = 0;
    slice.num_tokens = 1;
    alone.batch.sequences = to_device(std::vector<ops::SequenceSlice>{slice});
    alone.batch.positions = p.args.batch.positions + t;
    alone.index_q = p.args.index_q + std::int64_t{t} * kHeads * 128;
    alone.blocks = all_alone + std::int64_t{t} * kHeads * 16;
    launch_index_decode(alone, p.scratch, stream);
  }
  require(cudaDeviceSynchronize(), "sm90_index_decode, tokens alone");
  const auto same = to_host(all_alone, columns * 16);
  for (int i = 0; i < columns * 16; ++i) {
    if (same[static_cast<std::size_t>(i)] != blocks[static_cast<std::size_t>(i)]) {
      fail(c, i / 16, "differs from the token alone", blocks[static_cast<std::size_t>(i)],
           same[static_cast<std::size_t>(i)]);
      break;
    }
  }
  cudaFree(p.args.planes.pool);
}

void time_case(const Case& c, cudaStream_t stream, const char* shape = nullptr) {
  const double blocks = static_cast<double>(c.requests) * static_cast<double>(c.context) / 128;
  const double bytes = blocks * static_cast<double>(plane_bytes(c.dtype));
  const int sets = std::max(1, static_cast<int>(std::ceil(std::min(160e6 / bytes, 40.0))));
  Problem p = make_problem(c, sets);
  const int launches = std::max(sets, 4);
  const double us = median_us(stream, launches, [&](int i) {
    p.args.batch.sequences = p.sets[static_cast<std::size_t>(i % sets)];
    launch_index_decode(p.args, p.scratch, stream);
  });
  char what[64];
  std::snprintf(what, sizeof what, "%s R%d Q%d at %lld", name_of(c), c.requests, c.tokens,
                static_cast<long long>(c.context));
  const double flops = 2.0 * 128 * kHeads * c.requests * c.tokens * static_cast<double>(c.context);
  report("index_decode", what, shape, us, p.bytes, flops, p.bytes / kCopyBandwidth * 1e6);
  cudaFree(p.args.planes.pool);
}

int run(const std::string& what) {
  cudaStream_t stream{};
  require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  constexpr auto kNvfp4 = CacheDType::kNvfp4;
  if (what == "profile") {
    for (const Case& c : {Case{8, 8, 524288}, Case{8, 8, 32768}, Case{1, 1, 524288}}) {
      Problem p = make_problem(c, 1);
      launch_index_decode(p.args, p.scratch, stream);
      require(cudaDeviceSynchronize(), "sm90_index_decode");
    }
    return 0;
  }
  if (what == "bars") {
    time_case({8, 8, 4096}, stream);
    time_case({8, 8, 131072}, stream, "8x8 at 128K");
    time_case({8, 8, 524288}, stream, "8x8 at 512K");
    time_case({1, 1, 524288}, stream);
    return 0;
  }
  if (what != "time") {
    for (const auto& [dtype, mode] : {std::pair{kNvfp4, DequantMode::kE4M3},
                                      {kNvfp4, DequantMode::kExact},
                                      {CacheDType::kFp8, DequantMode::kE4M3},
                                      {CacheDType::kFp8, DequantMode::kExact},
                                      {CacheDType::kBF16, DequantMode::kExact}}) {
      check({1, 1, 5, dtype, mode}, stream);
      check({1, 1, 4096, dtype, mode}, stream);
      check({3, 3, 1500, dtype, mode, true}, stream);
      check({8, 8, 4099, dtype, mode, true}, stream);
      check({2, 16, 32768, dtype, mode, true}, stream);
      check({40, 2, 2900, dtype, mode, true}, stream);
    }
    check({1, 1, 524288, kNvfp4, DequantMode::kE4M3}, stream);
    check({2, 8, 524284, kNvfp4, DequantMode::kE4M3, true}, stream);
    std::printf(num_failures == 0 ? "index: all checks pass\n" : "index: %d FAILURES\n",
                num_failures);
  }
  if (what != "check") {
    time_case({8, 8, 4096}, stream);
    time_case({8, 8, 32768}, stream, "8x8 at 32K");
    time_case({8, 8, 131072}, stream, "8x8 at 128K");
    time_case({8, 8, 524288}, stream, "8x8 at 512K");
    for (const std::int64_t context : {4096, 32768, 131072, 524288}) {
      time_case({1, 1, context}, stream);
    }
    time_case({1, 8, 131072}, stream);
    time_case({8, 4, 524288}, stream);
    time_case({8, 1, 524288}, stream);
    time_case({8, 8, 524288, kNvfp4, DequantMode::kExact}, stream);
    time_case({8, 8, 524288, CacheDType::kFp8}, stream);
    time_case({8, 8, 524288, CacheDType::kBF16}, stream);
  }
  return num_failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace winnow::cuda::bench

int main(int argc, char** argv) { return winnow::cuda::bench::run(argc > 1 ? argv[1] : "all"); }
