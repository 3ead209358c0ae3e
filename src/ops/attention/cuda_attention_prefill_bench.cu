// Checks and times cuda_prefill.cu. The reference follows the binding order of cache_fragments.cuh
// with mma.sync, one token and KV head a warp, so its bits must agree; float64 checks some of it.
#include <cmath>
#include <cstring>
#include <string>

#include "ops/attention/cuda_fast_decode.h"
#include "ops/attention/cuda_prefill.h"
#include "ops/attention/cuda_prefill_reference.cuh"
#include "ops/cuda/cache_fragments.cuh"
#include "ops/cuda/prefill_bench.cuh"
#include "ops/index_topk/cuda_prefill.h"

namespace winnow::bench {
namespace {

using cuda::AttentionPrefillArgs;

enum class Lists { kRandom, kOverlap, kDense };
inline const char* name(Lists lists) {
  constexpr const char* kNames[] = {"random", "overlap", "dense"};
  return kNames[static_cast<int>(lists)];
}

struct Case {
  Kind kind;
  int heads;
  int kv_heads;
  int top_k;
  Lists lists;
  std::vector<Sequence> sequences;
};

/// Overlapping lists drop their two oldest blocks from token to token, so that four neighbours name
/// 22 distinct blocks; the local block is in every list.
std::vector<std::int32_t> make_lists(const Case& c) {
  std::vector<std::int32_t> lists;
  std::uint64_t seed = 1;
  for (const Sequence& s : c.sequences) {
    std::vector<std::vector<std::int32_t>> current(static_cast<std::size_t>(c.kv_heads));
    for (int t = 0; t < s.num_tokens; ++t) {
      const int last = (s.end - s.num_tokens + t) / 128;
      for (int h = 0; h < c.kv_heads; ++h) {
        auto& list = current[static_cast<std::size_t>(h)];
        const auto wanted = static_cast<std::size_t>(std::min(c.top_k - 1, last));
        const std::size_t kept =
            c.lists == Lists::kRandom ? 0 : wanted - std::min<std::size_t>(wanted, 2);
        std::erase(list, last);
        while (list.size() > kept) list.erase(list.begin());
        while (list.size() < wanted) {
          const auto block = static_cast<std::int32_t>(hash(++seed) % static_cast<unsigned>(last));
          if (std::find(list.begin(), list.end(), block) == list.end()) list.push_back(block);
        }
        std::vector<std::int32_t> sorted = list;
        sorted.push_back(last);
        std::sort(sorted.begin(), sorted.end());
        sorted.resize(static_cast<std::size_t>(c.top_k), -1);
        lists.insert(lists.end(), sorted.begin(), sorted.end());
      }
    }
  }
  return lists;
}

class Setup {
 public:
  Setup(const Case& c, int layers) : batch_(c.sequences), case_(c) {
    const int planes = layers * c.kv_heads * 2;
    row_bytes_ = plane_bytes(c.kind) * planes;
    pool_ = device_array<std::uint8_t>(row_bytes_ * batch_.num_blocks());
    const PlaneSet set{pool_, row_bytes_, plane_bytes(c.kind), planes};
    fill_pool<<<1024, 256>>>(c.kind, set, batch_.num_blocks());
    poison_pool<<<static_cast<unsigned>(c.sequences.size()), 128>>>(c.kind, set, batch_.device());
    count_ = std::int64_t{batch_.device().num_tokens} * c.heads * 128;
    q_ = device_array<float>(count_);
    fill_queries<<<1024, 256>>>(c.kind, q_, count_, 7);
    out_ = device_array<float>(count_);
    if (c.lists != Lists::kDense) {
      lists_ = make_lists(c);
      blocks_ = device_copy(lists_);
    }
    CHECK(cudaDeviceSynchronize());
  }
  ~Setup() {
    cudaFree(pool_);
    cudaFree(q_);
    cudaFree(out_);
    cudaFree(blocks_);
  }

  AttentionPrefillArgs args(int layer) const {
    AttentionPrefillArgs a;
    a.q = q_;
    a.shape.num_heads = case_.heads;
    a.shape.num_kv_heads = case_.kv_heads;
    a.shape.head_dim = 128;
    a.shape.num_index_heads = blocks_ != nullptr ? case_.kv_heads : 0;
    a.shape.top_k_blocks = case_.top_k;
    a.scale = 0.08838834764F * 0.25F;
    a.batch = batch_.device();
    a.planes.pool = reinterpret_cast<std::byte*>(pool_);
    a.planes.row_bytes = row_bytes_;
    a.planes.block_tokens = 128;
    a.planes.mode = case_.kind == Kind::kNvfp4Exact ? DequantMode::kExact : DequantMode::kE4M3;
    const bool is_nvfp4 = dtype_of(case_.kind) == CacheDType::kNvfp4;
    const std::int64_t bytes = plane_bytes(case_.kind);
    const auto plane = [&](std::int64_t offset) -> cuda::HeadPlanes {
      return {.data_offset = offset,
              .scale_offset = offset + 128 * 64,
              .head_stride = 2 * bytes,
              .data_stride = static_cast<std::int32_t>(is_nvfp4 ? 64 : bytes / 128),
              .scale_stride = is_nvfp4 ? 8 : 0,
              .dim = 128,
              .dtype = dtype_of(case_.kind)};
    };
    const std::int64_t first = layer * case_.kv_heads * 2 * bytes;
    a.planes.k = plane(first);
    a.planes.v = plane(first + bytes);
    a.blocks = blocks_;
    a.out = out_;
    return a;
  }
  std::int64_t count() const { return count_; }
  const Batch& batch() const { return batch_; }
  const std::vector<std::int32_t>& lists() const { return lists_; }

 private:
  Batch batch_;
  Case case_;
  std::int64_t row_bytes_ = 0;
  std::int64_t count_ = 0;
  std::uint8_t* pool_ = nullptr;
  float* q_ = nullptr;
  float* out_ = nullptr;
  std::int32_t* blocks_ = nullptr;
  std::vector<std::int32_t> lists_;
};

float operand_value(Kind kind, float x) {
  return kind == Kind::kBF16 ? __bfloat162float(__float2bfloat16_rn(x))
                             : __half2float(__float2half_rn(x));
}

/// ‖out - float64‖ / ‖float64‖ over some heads.
double sampled_error(const Case& c, const Setup& setup, const std::vector<float>& out) {
  const AttentionPrefillArgs args = setup.args(1);
  const auto q = host_copy(args.q, setup.count());
  const auto positions = host_copy(args.batch.positions, args.batch.num_tokens);
  const auto sequence_of = host_copy(args.batch.sequence_of, args.batch.num_tokens);
  const auto slices = host_copy(args.batch.sequences, args.batch.num_sequences);
  double error = 0;
  double norm = 0;
  for (int i = 0; i < 12; ++i) {
    const std::int64_t token =
        hash(static_cast<std::uint64_t>(i) + 5) % static_cast<unsigned>(args.batch.num_tokens);
    const int head =
        static_cast<int>(hash(static_cast<std::uint64_t>(i) + 77) % static_cast<unsigned>(c.heads));
    const int kv_head = head / (c.heads / c.kv_heads);
    const int position = positions[static_cast<std::size_t>(token)];
    std::vector<double> scores;
    std::vector<double> sum(128, 0.0);
    std::vector<std::vector<std::uint8_t>> values;
    std::vector<int> tokens_of;
    const float* const row = q.data() + (token * c.heads + head) * 128;
    for (int n = 0; n < (c.lists == Lists::kDense ? position / 128 + 1 : c.top_k); ++n) {
      const int block = c.lists == Lists::kDense
                            ? n
                            : setup.lists()[static_cast<std::size_t>(
                                  (token * c.kv_heads + kv_head) * c.top_k + n)];
      if (block < 0) break;
      std::int32_t pool_row = 0;
      CHECK(
          cudaMemcpy(&pool_row,
                     slices[static_cast<std::size_t>(sequence_of[static_cast<std::size_t>(token)])]
                             .block_table +
                         block,
                     4, cudaMemcpyDeviceToHost));
      const auto bytes = plane_bytes(c.kind);
      const auto k = host_copy(reinterpret_cast<const std::uint8_t*>(args.planes.row(pool_row)) +
                                   args.planes.k.data(kv_head, 0),
                               bytes);
      values.push_back(host_copy(reinterpret_cast<const std::uint8_t*>(args.planes.row(pool_row)) +
                                     args.planes.v.data(kv_head, 0),
                                 bytes));
      for (int t = 0; t < 128 && block * 128 + t <= position; ++t) {
        double x = 0;
        for (int d = 0; d < 128; ++d) {
          x += static_cast<double>(operand_value(c.kind, row[d])) *
               cache_value(c.kind, k.data(), t, d);
        }
        scores.push_back(x * args.scale);
        tokens_of.push_back(static_cast<int>(values.size() - 1) * 128 + t);
      }
    }
    const double maximum = *std::max_element(scores.begin(), scores.end());
    double weight = 0;
    for (std::size_t j = 0; j < scores.size(); ++j) {
      const double p = std::exp(scores[j] - maximum);
      weight += p;
      const auto& v = values[static_cast<std::size_t>(tokens_of[j] / 128)];
      for (int d = 0; d < 128; ++d)
        sum[static_cast<std::size_t>(d)] +=
            p * cache_value(c.kind, v.data(), tokens_of[j] % 128, d);
    }
    for (int d = 0; d < 128; ++d) {
      const double want = sum[static_cast<std::size_t>(d)] / weight;
      const double got = out[static_cast<std::size_t>((token * c.heads + head) * 128 + d)];
      error += (got - want) * (got - want);
      norm += want * want;
    }
  }
  return std::sqrt(error / norm);
}

bool check(const char* label, const Case& c) {
  const Setup setup(c, 2);
  const AttentionPrefillArgs args = setup.args(1);
  const auto bytes = static_cast<std::size_t>(setup.count()) * 4;
  CHECK(cudaMemset(args.out, 0xFF, bytes));
  run_reference(c.kind, args);
  const auto want = host_copy(args.out, setup.count());
  CHECK(cudaMemset(args.out, 0xFF, bytes));
  cuda::launch_attention_prefill(args, nullptr);
  CHECK(cudaGetLastError());
  CHECK(cudaDeviceSynchronize());
  const auto got = host_copy(args.out, setup.count());
  std::int64_t wrong = 0;
  std::int64_t first = -1;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::memcmp(&got[i], &want[i], 4) != 0) {
      ++wrong;
      if (first < 0) first = static_cast<std::int64_t>(i);
    }
  }
  const double error = sampled_error(c, setup, got);
  std::printf("check %-12s %-6s %-7s heads %2d/%d top %2d: %lld of %zu differ, error %.1e\n", label,
              name(c.kind), name(c.lists), c.heads, c.kv_heads, c.top_k,
              static_cast<long long>(wrong), got.size(), error);
  if (wrong != 0) {
    std::printf("  token %lld head %lld dim %lld: got %.9g want %.9g\n",
                static_cast<long long>(first / 128 / c.heads),
                static_cast<long long>(first / 128 % c.heads), static_cast<long long>(first % 128),
                static_cast<double>(got[static_cast<std::size_t>(first)]),
                static_cast<double>(want[static_cast<std::size_t>(first)]));
  }
  return wrong == 0 && error < 6e-3;
}

/// Short slices through this kernel and through those for decoding: the same bits.
bool check_decode(const Case& c) {
  const Setup setup(c, 2);
  const AttentionPrefillArgs args = setup.args(1);
  const cuda::AttentionDecodeArgs decode{.q = args.q,
                                         .shape = args.shape,
                                         .scale = args.scale,
                                         .batch = args.batch,
                                         .planes = args.planes,
                                         .blocks = args.blocks,
                                         .out = args.out};
  const auto bytes = static_cast<std::size_t>(setup.count()) * 4;
  CHECK(cudaMemset(args.out, 0xFF, bytes));
  if (c.lists == Lists::kDense) {
    const int num_positions = setup.batch().num_positions();
    auto* const scratch =
        device_array<std::byte>(cuda::dense_decode_scratch_bytes(decode, num_positions));
    cuda::launch_dense_decode(decode, num_positions, 132, scratch, nullptr);
    CHECK(cudaDeviceSynchronize());
    cudaFree(scratch);
  } else {
    cuda::launch_sparse_decode(decode, nullptr);
  }
  const auto want = host_copy(args.out, setup.count());
  CHECK(cudaMemset(args.out, 0xFF, bytes));
  cuda::launch_attention_prefill(args, nullptr);
  CHECK(cudaGetLastError());
  CHECK(cudaDeviceSynchronize());
  const auto got = host_copy(args.out, setup.count());
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    wrong += std::memcmp(&got[i], &want[i], 4) != 0 ? 1 : 0;
  }
  std::printf("check against decoding %-6s %-7s heads %2d/%d: %lld of %zu differ\n", name(c.kind),
              name(c.lists), c.heads, c.kv_heads, static_cast<long long>(wrong), got.size());
  return wrong == 0;
}

void time(Kind kind, Lists lists, int num_tokens, int end, int replays) {
  const Case c{kind, 64, 4, 16, lists, {{num_tokens, end}}};
  const std::int64_t bytes = std::int64_t{(end + 127) / 128} * plane_bytes(kind) * 8;
  const int layers =
      replays == 1
          ? 1
          : static_cast<int>(std::clamp<std::int64_t>((std::int64_t{130} << 20) / bytes + 1, 2, 8));
  const Setup setup(c, layers);
  const double us = median_us(layers, replays, [&](int i, cudaStream_t s) {
    cuda::launch_attention_prefill(setup.args(i), s);
  });
  double keys = 0;
  double distinct = 0;
  for (int t = 0; t < num_tokens; ++t) {
    const int seen = end - num_tokens + t + 1;
    keys += lists == Lists::kDense ? seen : std::min(seen, 15 * 128 + (seen - 1) % 128 + 1);
  }
  if (lists != Lists::kDense) {
    for (int tile = 0; tile < num_tokens / 4 * 4;
         ++tile) {  // head tile % 4 of tokens tile / 4 * 4 …
      std::vector<std::int32_t> all;
      for (int t = 0; t < 4; ++t) {
        const std::size_t list = static_cast<std::size_t>((tile / 4 * 4 + t) * 4 + tile % 4) * 16;
        for (std::size_t i = 0; i < 16; ++i) {
          if (setup.lists()[list + i] >= 0) all.push_back(setup.lists()[list + i]);
        }
      }
      std::sort(all.begin(), all.end());
      distinct += static_cast<double>(std::unique(all.begin(), all.end()) - all.begin());
    }
    distinct /= num_tokens / 4 * 4;
  }
  const double flops = keys * 64 * 4 * 128;
  std::printf(
      "time %-6s %-7s M %5d end %6d: %9.1f us %6.1f TFLOP/s  floor %8.1f us  %.2f of it  (%.1f "
      "blocks a four)\n",
      name(kind), name(lists), num_tokens, end, us, flops / us * 1e-6, flops / 790e12 * 1e6,
      flops / 790e12 * 1e6 / us, distinct);
  if (kind == Kind::kNvfp4 && num_tokens == 8192 && end == 65536 && lists != Lists::kDense) {
    std::printf("sparse_prefill,8K ending at 64K %s,%.1f,%lld,%.4g,%.1f\n", name(lists), us,
                static_cast<long long>(bytes), flops, flops / 790e12 * 1e6);
  }
}

/// The indexer and attention of a sparse layer in one graph. The indexer's own lists over random
/// keys would be independent of each other; attention reads overlapping ones instead.
void time_chain(int num_tokens, int end) {
  const Kind kind = Kind::kNvfp4;
  const int layers = 2;
  const Setup setup({kind, 64, 4, 16, Lists::kOverlap, {{num_tokens, end}}}, layers);
  const std::int64_t key_bytes = plane_bytes(kind) * setup.batch().num_blocks();
  auto* const keys = device_array<std::uint8_t>(key_bytes * layers);
  const PlaneSet set{keys, plane_bytes(kind) * layers, plane_bytes(kind), layers};
  fill_pool<<<1024, 256>>>(kind, set, setup.batch().num_blocks());
  auto* const q = device_array<float>(std::int64_t{num_tokens} * 4 * 128);
  fill_queries<<<1024, 256>>>(kind, q, std::int64_t{num_tokens} * 4 * 128, 11);
  auto* const blocks = device_array<std::int32_t>(std::int64_t{num_tokens} * 4 * 16);
  const std::int64_t scratch_bytes = cuda::index_prefill_scratch_bytes(num_tokens, 1, end, 4, 132);
  auto* const scratch = device_array<std::byte>(scratch_bytes);
  const double us = median_us(layers, 30, [&](int i, cudaStream_t s) {
    cuda::IndexPrefillArgs a;
    a.index_q = q;
    a.shape = setup.args(i).shape;
    a.shape.index_head_dim = 128;
    a.batch = setup.batch().device();
    a.planes.pool = reinterpret_cast<std::byte*>(keys);
    a.planes.row_bytes = set.row_bytes;
    a.planes.block_tokens = 128;
    a.planes.index_k = {.data_offset = i * plane_bytes(kind),
                        .scale_offset = i * plane_bytes(kind) + 128 * 64,
                        .data_stride = 64,
                        .scale_stride = 8,
                        .dim = 128,
                        .dtype = CacheDType::kNvfp4};
    a.num_positions = end;
    a.num_multiprocessors = 132;
    a.blocks = blocks;
    cuda::launch_index_prefill(a, scratch, scratch_bytes, s);
    cuda::launch_attention_prefill(setup.args(i), s);
  });
  double pairs = 0;
  double selected = 0;
  for (int t = end - num_tokens; t < end; ++t) {
    pairs += t + 1;
    selected += std::min(t + 1, 15 * 128 + t % 128 + 1);
  }
  const double flops = pairs * 4 * 2 * 128 + selected * 64 * 4 * 128;
  std::printf("time nvfp4 indexer and attention, M %d end %d: %.1f us, floor %.1f us\n", num_tokens,
              end, us, flops / 790e12 * 1e6);
  std::printf("msa_prefill,%d over 128K,%.1f,%lld,%.4g,%.1f\n", num_tokens, us,
              static_cast<long long>(key_bytes * 9), flops, flops / 790e12 * 1e6);
  cudaFree(keys);
  cudaFree(q);
  cudaFree(blocks);
  cudaFree(scratch);
}

bool check_all(bool is_small) {
  bool ok = true;
  if (is_small) {
    const std::vector<Sequence> small = {{11, 500}, {0, 128}, {1, 2500}};
    for (const Kind kind : {Kind::kNvfp4, Kind::kNvfp4Exact, Kind::kFp8, Kind::kBF16}) {
      ok = check("small", {kind, 64, 4, 16, Lists::kOverlap, small}) && ok;
      ok = check("small", {kind, 8, 2, 4, Lists::kDense, small}) && ok;
    }
    return ok;
  }
  const std::vector<Sequence> mixed = {{70, 1337},  {0, 128}, {1, 5000}, {129, 129},
                                       {64, 16384}, {8, 640}, {77, 4125}};
  for (const Kind kind : {Kind::kNvfp4, Kind::kNvfp4Exact, Kind::kFp8, Kind::kBF16}) {
    ok = check("mixed", {kind, 64, 4, 16, Lists::kOverlap, mixed}) && ok;
    ok = check("mixed", {kind, 64, 4, 16, Lists::kRandom, mixed}) && ok;
    ok = check("tiny", {kind, 8, 2, 4, Lists::kOverlap, mixed}) && ok;
    ok =
        check("mixed", {kind, 16, 2, 16, Lists::kDense, {{70, 1337}, {9, 5000}, {130, 130}}}) && ok;
  }
  const std::vector<Sequence> slices = {{8, 640}, {1, 5000}, {16, 16384}, {13, 4105}, {2, 2}};
  for (const Kind kind : {Kind::kNvfp4, Kind::kNvfp4Exact, Kind::kFp8, Kind::kBF16}) {
    ok = check_decode({kind, 64, 4, 16, Lists::kOverlap, slices}) && ok;
    ok = check_decode({kind, 8, 2, 4, Lists::kRandom, slices}) && ok;
    ok = check_decode({kind, 64, 4, 16, Lists::kDense, slices}) && ok;
  }
  return check("top 11", {Kind::kNvfp4, 24, 3, 11, Lists::kRandom, mixed}) && ok;
}

void time_all(bool is_short) {
  for (const Lists lists : {Lists::kOverlap, Lists::kRandom}) {
    time(Kind::kNvfp4, lists, 8192, 65536, 30);
  }
  time(Kind::kNvfp4Exact, Lists::kOverlap, 8192, 65536, 30);
  time(Kind::kFp8, Lists::kOverlap, 8192, 65536, 30);
  time(Kind::kBF16, Lists::kOverlap, 8192, 65536, 30);
  time(Kind::kNvfp4, Lists::kOverlap, 512, 65536, 30);
  time(Kind::kNvfp4, Lists::kOverlap, 2048, 65536, 30);
  time(Kind::kNvfp4, Lists::kDense, 2048, 32768, 16);
  if (is_short) return;
  time(Kind::kNvfp4, Lists::kOverlap, 32768, 131072, 30);
  time(Kind::kNvfp4, Lists::kDense, 8192, 131072, 5);
  time_chain(8192, 131072);
}

}  // namespace
}  // namespace winnow::bench

/// `check`, `check small` (for compute-sanitizer), `time`, `quick` and `quick sparse` (to compare
/// variants), `one` (a single launch, for a profiler).
int main(int argc, char** argv) {
  using namespace winnow::bench;
  const std::string mode = argc > 1 ? argv[1] : "check";
  if (mode == "check") {
    const bool ok = check_all(argc > 2);
    std::printf("cuda_attention_prefill_bench: %s\n", ok ? "all equal" : "FAILED");
    return ok ? 0 : 1;
  }
  if (mode == "one") {
    time(Kind::kNvfp4, Lists::kOverlap, 8192, 65536, 1);
    return 0;
  }
  if (mode == "quick") {
    time(Kind::kNvfp4, Lists::kOverlap, 8192, 65536, 30);
    time(Kind::kNvfp4, Lists::kRandom, 8192, 65536, 20);
    if (argc > 2) return 0;
    time(Kind::kBF16, Lists::kOverlap, 8192, 65536, 20);
    time(Kind::kNvfp4, Lists::kDense, 2048, 32768, 10);
    return 0;
  }
  time_all(argc > 2);
  std::printf("cuda_attention_prefill_bench: timed\n");
  return 0;
}
