// Checks and times cuda_prefill.cu. The reference computes every score by mma.sync in the binding
// order (so its bits must agree), compares samples with float64, and selects by scanning.
#include <cmath>
#include <cstring>
#include <string>

#include "ops/cuda/cache_fragments.cuh"
#include "ops/cuda/prefill_bench.cuh"
#include "ops/index_topk/cuda_fast_decode.h"
#include "ops/index_topk/cuda_prefill.h"

namespace winnow::bench {
namespace {

using cuda::IndexPrefillArgs;

/// scores [rows][num_blocks]; one warp scores 16 rows (of one token range) against one block.
template <cuda::CacheFormat F>
__global__ void reference_scores(Kind kind, IndexPrefillArgs args, int num_blocks, float* scores) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int g = lane / 4;
  const int c = lane % 4;
  const int heads = args.shape.num_index_heads;
  const std::int64_t rows = std::int64_t{args.batch.num_tokens} * heads;
  const std::int64_t first = std::int64_t{blockIdx.y} * 16;
  const int block = static_cast<int>(blockIdx.x);
  __shared__ std::uint32_t keys[128][65];
  // Rows of a warp may belong to different sequences: the block is decoded for each row's own.
  for (int half = 0; half < 16; ++half) {
    const std::int64_t row = first + half;
    if (row >= rows) break;
    const int token = static_cast<int>(row / heads);
    const int position = args.batch.positions[token];
    if (block * 128 > position) {
      if (lane == 0) scores[row * num_blocks + block] = -INFINITY;
      continue;
    }
    const bool is_new =
        half == 0 || args.batch.sequence_of[token] != args.batch.sequence_of[(row - 1) / heads] ||
        block * 128 > args.batch.positions[(row - 1) / heads];
    if (is_new) {
      const auto* plane = reinterpret_cast<const std::uint8_t*>(
          args.planes.row(args.batch.pool_row(token, block)) + args.planes.index_k.data_offset);
      __syncwarp();
      for (int i = lane; i < 128 * 64; i += 32) {
        const int t = i / 64;
        const int d = cuda::key_dim(F, i % 64 / 8, i % 8 * 2);
        keys[t][i % 64] = cuda::pack_operands<F>(cache_value(kind, plane, t, d),
                                                 cache_value(kind, plane, t, d + 1));
      }
      __syncwarp();
    }
    // Only row 0 of the 16 is used: slow and plain.
    float best = -INFINITY;
    const float* const q = args.index_q + row * 128;
    for (int n = 0; n < 16; ++n) {
      float d[4] = {0, 0, 0, 0};
      for (int k = 0; k < 8; ++k) {
        std::uint32_t a[4] = {0, 0, 0, 0};
        for (int i = 0; i < 2; ++i) {
          const float* const x = q + cuda::key_dim(F, k, 2 * c + 8 * i);
          if (g == 0) a[2 * i] = cuda::pack_operands<F>(x[0], x[1]);
        }
        cuda::mma<F>(d, a, keys[8 * n + g][8 * k + c], keys[8 * n + g][8 * k + c + 4]);
      }
      for (int i = 0; i < 2; ++i) {
        const int key = block * 128 + 8 * n + 2 * c + i;
        if (g == 0 && key <= position) best = fmaxf(best, d[i]);
      }
    }
    for (int step = 16; step > 0; step /= 2) best = fmaxf(best, __shfl_xor_sync(~0U, best, step));
    if (lane == 0) scores[row * num_blocks + block] = best;
  }
}

/// As scalar.cpp selects. Destroys nothing; one thread a row.
__global__ void reference_select(IndexPrefillArgs args, int num_blocks, const float* scores,
                                 std::int32_t* out) {
  const ops::AttentionShape& shape = args.shape;
  const std::int64_t row = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x;
  if (row >= std::int64_t{args.batch.num_tokens} * shape.num_index_heads) return;
  const int last = args.batch.positions[row / shape.num_index_heads] / 128;
  const float* const s = scores + row * num_blocks;
  std::int32_t chosen[16];
  int count = 0;
  const auto precedence = [&](int b) {
    if (b > last - shape.local_blocks) return 0;
    return b < shape.init_blocks ? 1 : 2;
  };
  while (count < shape.top_k_blocks) {
    int best = -1;
    for (int b = 0; b <= last; ++b) {
      const int p = precedence(b);
      if (p == 2 && s[b] == -INFINITY) continue;
      bool is_taken = false;
      for (int i = 0; i < count; ++i) is_taken = is_taken || chosen[i] == b;
      if (is_taken) continue;
      if (best < 0) {
        best = b;
        continue;
      }
      const int pb = precedence(best);
      const bool is_better = p != pb                     ? p < pb
                             : p == 2 && s[b] != s[best] ? s[b] > s[best]
                                                         : b < best;
      if (is_better) best = b;
    }
    if (best < 0) break;
    chosen[count++] = best;
  }
  for (int i = 1; i < count; ++i) {
    for (int j = i; j > 0 && chosen[j] < chosen[j - 1]; --j) {
      const int t = chosen[j];
      chosen[j] = chosen[j - 1];
      chosen[j - 1] = t;
    }
  }
  for (int i = 0; i < shape.top_k_blocks; ++i) {
    out[row * shape.top_k_blocks + i] = i < count ? chosen[i] : -1;
  }
}

struct Case {
  Kind kind;
  int heads;
  int top_k;
  int local;
  int init;
  std::vector<Sequence> sequences;
};

class Setup {
 public:
  Setup(const Case& c, int num_planes) : batch_(c.sequences), case_(c), num_planes_(num_planes) {
    row_bytes_ = plane_bytes(c.kind) * num_planes;
    pool_ = device_array<std::uint8_t>(row_bytes_ * batch_.num_blocks());
    const PlaneSet set{pool_, row_bytes_, plane_bytes(c.kind), num_planes};
    fill_pool<<<1024, 256>>>(c.kind, set, batch_.num_blocks());
    poison_pool<<<static_cast<unsigned>(c.sequences.size()), 128>>>(c.kind, set, batch_.device());
    rows_ = std::int64_t{batch_.device().num_tokens} * c.heads;
    q_ = device_array<float>(rows_ * 128);
    fill_queries<<<1024, 256>>>(c.kind, q_, rows_ * 128, 7);
    blocks_ = device_array<std::int32_t>(rows_ * c.top_k);
    scratch_bytes_ = cuda::index_prefill_scratch_bytes(args(0), std::int64_t{1} << 40);
    scratch_ = device_array<std::byte>(scratch_bytes_);
    CHECK(cudaDeviceSynchronize());
  }
  ~Setup() {
    cudaFree(pool_);
    cudaFree(q_);
    cudaFree(blocks_);
    cudaFree(scratch_);
  }

  IndexPrefillArgs args(int plane) const {
    IndexPrefillArgs a{.index_q = q_,
                       .shape = {.num_index_heads = case_.heads,
                                 .index_head_dim = 128,
                                 .top_k_blocks = case_.top_k,
                                 .local_blocks = case_.local,
                                 .init_blocks = case_.init},
                       .batch = batch_.device(),
                       .planes = {},
                       .num_positions = batch_.num_positions(),
                       .num_multiprocessors = 132,
                       .blocks = blocks_};
    a.planes.pool = reinterpret_cast<std::byte*>(pool_);
    a.planes.row_bytes = row_bytes_;
    a.planes.block_tokens = 128;
    a.planes.mode = case_.kind == Kind::kNvfp4Exact ? DequantMode::kExact : DequantMode::kE4M3;
    a.planes.has_index = true;
    const bool is_nvfp4 = dtype_of(case_.kind) == CacheDType::kNvfp4;
    const auto offset = plane * plane_bytes(case_.kind);
    a.planes.index_k = {
        .data_offset = offset,
        .scale_offset = offset + 128 * 64,
        .data_stride = static_cast<std::int32_t>(is_nvfp4 ? 64 : plane_bytes(case_.kind) / 128),
        .scale_stride = is_nvfp4 ? 8 : 0,
        .dim = 128,
        .dtype = dtype_of(case_.kind)};
    return a;
  }
  /// The least scratch from now on: blocks are converted on their way.
  void convert_on_the_way() { scratch_bytes_ = cuda::index_prefill_scratch_bytes(args(0), 0); }
  void run(int plane, cudaStream_t stream) const {
    cuda::launch_index_prefill(args(plane), scratch_, scratch_bytes_, stream);
  }
  std::int64_t rows() const { return rows_; }
  const Batch& batch() const { return batch_; }
  const std::uint8_t* pool() const { return pool_; }
  std::int64_t row_bytes() const { return row_bytes_; }

 private:
  Batch batch_;
  Case case_;
  int num_planes_;
  std::int64_t row_bytes_ = 0;
  std::int64_t rows_ = 0;
  std::uint8_t* pool_ = nullptr;
  float* q_ = nullptr;
  std::int32_t* blocks_ = nullptr;
  std::byte* scratch_ = nullptr;
  std::int64_t scratch_bytes_ = 0;
};

/// What the tensor cores are fed of a query.
float operand_value(Kind kind, float x) {
  return kind == Kind::kBF16 ? __bfloat162float(__float2bfloat16_rn(x))
                             : __half2float(__float2half_rn(x));
}

/// Largest |score - float64| / Σ|q·k| of some rows and blocks.
double sampled_error(const Case& c, const Setup& setup, const IndexPrefillArgs& args,
                     const std::vector<float>& scores, int num_blocks) {
  const auto pool = host_copy(setup.pool(), setup.row_bytes() * setup.batch().num_blocks());
  const auto q = host_copy(args.index_q, setup.rows() * 128);
  const auto positions = host_copy(args.batch.positions, args.batch.num_tokens);
  const auto sequence_of = host_copy(args.batch.sequence_of, args.batch.num_tokens);
  const auto slices = host_copy(args.batch.sequences, args.batch.num_sequences);
  double worst = 0;
  for (int i = 0; i < 64; ++i) {
    const std::int64_t row = hash(static_cast<std::uint64_t>(i) + 99) % setup.rows();
    const std::int64_t token = row / c.heads;
    const int position = positions[token];
    const int block = static_cast<int>(hash(static_cast<std::uint64_t>(i) + 999) %
                                       static_cast<unsigned>(position / 128 + 1));
    std::int32_t pool_row = 0;
    CHECK(cudaMemcpy(&pool_row, slices[sequence_of[token]].block_table + block, 4,
                     cudaMemcpyDeviceToHost));
    const std::uint8_t* plane =
        pool.data() + pool_row * setup.row_bytes() + args.planes.index_k.data_offset;
    double best = -INFINITY, weight = 0;
    for (int t = 0; t < 128 && block * 128 + t <= position; ++t) {
      double sum = 0, absolute = 0;
      for (int d = 0; d < 128; ++d) {
        const double p = static_cast<double>(operand_value(c.kind, q[row * 128 + d])) *
                         cache_value(c.kind, plane, t, d);
        sum += p;
        absolute += std::fabs(p);
      }
      best = std::max(best, sum);
      weight = std::max(weight, absolute);
    }
    worst = std::max(worst, std::fabs(best - scores[row * num_blocks + block]) / weight);
  }
  return worst;
}

/// The wrong entries and the reference's own error; -1 entries count.
bool check(const char* label, const Case& c, bool converts_on_the_way = false) {
  Setup setup(c, 2);
  if (converts_on_the_way) setup.convert_on_the_way();
  const IndexPrefillArgs args = setup.args(1);
  const int num_blocks = (setup.batch().num_positions() + 127) / 128;
  float* scores = device_array<float>(setup.rows() * num_blocks);
  auto* expected = device_array<std::int32_t>(setup.rows() * c.top_k);
  const dim3 grid(static_cast<unsigned>(num_blocks),
                  static_cast<unsigned>((setup.rows() + 15) / 16));
  switch (cuda::cache_format(dtype_of(c.kind), args.planes.mode)) {
    case cuda::CacheFormat::kNvfp4E4m3:
      reference_scores<cuda::CacheFormat::kNvfp4E4m3>
          <<<grid, 32>>>(c.kind, args, num_blocks, scores);
      break;
    case cuda::CacheFormat::kNvfp4Exact:
      reference_scores<cuda::CacheFormat::kNvfp4Exact>
          <<<grid, 32>>>(c.kind, args, num_blocks, scores);
      break;
    case cuda::CacheFormat::kFp8:
      reference_scores<cuda::CacheFormat::kFp8><<<grid, 32>>>(c.kind, args, num_blocks, scores);
      break;
    case cuda::CacheFormat::kBf16:
      reference_scores<cuda::CacheFormat::kBf16><<<grid, 32>>>(c.kind, args, num_blocks, scores);
      break;
  }
  reference_select<<<static_cast<unsigned>((setup.rows() + 63) / 64), 64>>>(args, num_blocks,
                                                                            scores, expected);
  CHECK(cudaMemset(args.blocks, 0x7B, static_cast<std::size_t>(setup.rows() * c.top_k) * 4));
  setup.run(1, nullptr);
  CHECK(cudaGetLastError());
  CHECK(cudaDeviceSynchronize());
  const auto got = host_copy(args.blocks, setup.rows() * c.top_k);
  const auto want = host_copy(expected, setup.rows() * c.top_k);
  std::int64_t wrong = 0, first = -1;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i] != want[i]) {
      ++wrong;
      if (first < 0) first = static_cast<std::int64_t>(i);
    }
  }
  const double error =
      sampled_error(c, setup, args, host_copy(scores, setup.rows() * num_blocks), num_blocks);
  std::printf(
      "check %-22s %-6s heads %d top %2d local %d init %d: %lld of %zu wrong, score error %.1e\n",
      label, name(c.kind), c.heads, c.top_k, c.local, c.init, static_cast<long long>(wrong),
      got.size(), error);
  if (wrong != 0) {
    const std::int64_t row = first / c.top_k;
    std::printf("  row %lld entry %lld: got", static_cast<long long>(row),
                static_cast<long long>(first % c.top_k));
    for (int i = 0; i < c.top_k; ++i)
      std::printf(" %d", got[static_cast<std::size_t>(row * c.top_k + i)]);
    std::printf("\n  want");
    for (int i = 0; i < c.top_k; ++i)
      std::printf(" %d", want[static_cast<std::size_t>(row * c.top_k + i)]);
    std::printf("\n");
  }
  cudaFree(scores);
  cudaFree(expected);
  return wrong == 0 && error < 4e-6;
}

/// Short slices through this kernel and through the one for decoding: the same blocks.
bool check_decode(const Case& c) {
  const Setup setup(c, 2);
  const IndexPrefillArgs args = setup.args(1);
  cuda::IndexDecodeArgs decode{.index_q = args.index_q,
                               .shape = args.shape,
                               .batch = args.batch,
                               .planes = args.planes,
                               .max_slice_tokens = cuda::kIndexDecodeTokens,
                               .num_positions = args.num_positions,
                               .num_multiprocessors = 132,
                               .blocks = args.blocks};
  auto* const scratch = device_array<std::byte>(cuda::index_decode_scratch_bytes(decode));
  CHECK(cudaMemset(args.blocks, 0x7B, static_cast<std::size_t>(setup.rows() * c.top_k) * 4));
  cuda::launch_index_decode(decode, scratch, nullptr);
  const auto want = host_copy(args.blocks, setup.rows() * c.top_k);
  CHECK(cudaMemset(args.blocks, 0x7B, static_cast<std::size_t>(setup.rows() * c.top_k) * 4));
  setup.run(1, nullptr);
  CHECK(cudaGetLastError());
  CHECK(cudaDeviceSynchronize());
  const auto got = host_copy(args.blocks, setup.rows() * c.top_k);
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < got.size(); ++i) wrong += got[i] != want[i] ? 1 : 0;
  std::printf("check against decoding %-6s heads %d top %2d: %lld of %zu differ\n", name(c.kind),
              c.heads, c.top_k, static_cast<long long>(wrong), got.size());
  cudaFree(scratch);
  return wrong == 0;
}

void time(Kind kind, int num_tokens, int end, int replays, bool converts_on_the_way = false) {
  const Case c{kind, 4, 16, 1, 0, {{num_tokens, end}}};
  const std::int64_t bytes = (end + 127) / 128 * plane_bytes(kind);
  const int planes =
      static_cast<int>(std::clamp<std::int64_t>((std::int64_t{130} << 20) / bytes + 1, 2, 16));
  Setup setup(c, planes);
  if (converts_on_the_way) setup.convert_on_the_way();
  const double us = median_us(planes, replays, [&](int i, cudaStream_t s) { setup.run(i, s); });
  double pairs = 0;
  for (int t = 0; t < num_tokens; ++t) pairs += end - num_tokens + t + 1;
  const double flops = pairs * 4 * 2 * 128;
  const double floor = flops / 790e12 * 1e6;
  std::printf(
      "time %-6s M %5d end %6d: %8.1f us  %6.1f TFLOP/s  floor(bf16) %7.1f us  %.2f of it%s\n",
      name(kind), num_tokens, end, us, flops / us * 1e-6, floor, floor / us,
      converts_on_the_way ? ", converted on the way" : "");
  if (kind == Kind::kNvfp4 && num_tokens == 8192 && end == 131072 && !converts_on_the_way) {
    std::printf("index_prefill,8K ending at 128K,%.1f,%lld,%.4g,%.1f\n", us,
                static_cast<long long>(bytes), flops, floor);
  }
}

bool check_all(bool is_small) {
  bool ok = true;
  if (is_small) {
    const std::vector<Sequence> small = {{70, 500}, {0, 128}, {1, 2500}};
    for (const Kind kind : {Kind::kNvfp4, Kind::kNvfp4Exact, Kind::kFp8, Kind::kBF16}) {
      ok = check("small", {kind, 4, 16, 1, 0, small}) && ok;
      ok = check("prepared", {kind, 8, 16, 1, 0, {{520, 34000}}}) && ok;
    }
    return ok;
  }
  const std::vector<Sequence> mixed = {{300, 1337}, {0, 128}, {1, 5000}, {129, 129},
                                       {64, 16384}, {8, 640}, {77, 2125}};
  for (const Kind kind : {Kind::kNvfp4, Kind::kNvfp4Exact, Kind::kFp8, Kind::kBF16}) {
    ok = check("mixed", {kind, 4, 16, 1, 0, mixed}) && ok;
    ok = check("one sequence", {kind, 4, 16, 1, 0, {{1777, 30000}}}) && ok;
    ok = check("on the way", {kind, 4, 16, 1, 0, {{777, 9000}}}, true) && ok;
    ok = check("two prompts", {kind, 8, 16, 1, 0, {{700, 13000}, {333, 13500}}}) && ok;
    if (kind == Kind::kNvfp4 || kind == Kind::kBF16) {
      ok = check("no local", {kind, 4, 16, 0, 0, mixed}) && ok;
      ok = check("init, two local", {kind, 4, 16, 2, 3, mixed}) && ok;
      ok = check("tiny", {kind, 2, 4, 1, 0, mixed}) && ok;
      ok = check("one head", {kind, 1, 16, 1, 1, mixed}) && ok;
      ok = check("eight heads", {kind, 8, 7, 3, 6, mixed}) && ok;
      ok = check("three heads", {kind, 3, 5, 2, 9, mixed}) && ok;
    }
  }
  const std::vector<Sequence> slices = {{8, 640}, {1, 5000}, {16, 16384}, {13, 4105}, {2, 2}};
  for (const Kind kind : {Kind::kNvfp4, Kind::kNvfp4Exact, Kind::kFp8, Kind::kBF16}) {
    ok = check_decode({kind, 4, 16, 1, 0, slices}) && ok;
    ok = check_decode({kind, 2, 4, 1, 0, slices}) && ok;
  }
  return check("2048 to 32K", {Kind::kNvfp4, 4, 16, 1, 0, {{2048, 32768}}}) && ok;
}

void time_all() {
  for (const Kind kind : {Kind::kNvfp4, Kind::kNvfp4Exact, Kind::kFp8, Kind::kBF16}) {
    time(kind, 8192, 131072, 32);
  }
  time(Kind::kNvfp4, 8192, 131072, 32, true);
  time(Kind::kNvfp4, 512, 131072, 48);
  time(Kind::kNvfp4, 2048, 131072, 32);
  time(Kind::kNvfp4, 8192, 8192, 48);
  time(Kind::kNvfp4, 512, 16384, 48);
  time(Kind::kNvfp4, 2048, 32768, 48);
  time(Kind::kNvfp4, 32768, 32768, 30);
  time(Kind::kNvfp4, 32768, 131072, 30);
}

}  // namespace
}  // namespace winnow::bench

/// `check`, `check small` (for compute-sanitizer), `time`, `one` (a single launch, for a profiler).
int main(int argc, char** argv) {
  using namespace winnow::bench;
  const std::string mode = argc > 1 ? argv[1] : "check";
  if (mode == "check") {
    const bool ok = check_all(argc > 2);
    std::printf("cuda_index_prefill_bench: %s\n", ok ? "all equal" : "FAILED");
    return ok ? 0 : 1;
  }
  if (mode == "one") {
    time(Kind::kNvfp4, 8192, 131072, 1);
    return 0;
  }
  time_all();
  std::printf("cuda_index_prefill_bench: timed\n");
  return 0;
}
