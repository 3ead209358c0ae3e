// qkv_insert at MiniMax-M3's shape, 77 heads of 128 over NVFP4 cache planes, from its input in fp32
// to rows of the cache. `check` compares queries and rows, bit by bit, with the epilogue computed
// on the host from the same projection, and exits with 1 at the first fault; `time` prints times
// beside the floor of the projection.
#include <array>

#include "formats/e2m1.h"
#include "formats/nvfp4_cache.h"
#include "ops/linear/cuda_linear_bench.cuh"
#include "ops/qkv_insert/cuda_finish_heads.h"

namespace winnow::cuda {
namespace bench {

/// What finish_heads() needs at M3's shape: 77 heads, one layer's NVFP4 planes, one sequence.
class HeadsBench {
 public:
  static constexpr int kBlock = 128;
  static constexpr int kPositions = 8192;
  static constexpr std::int64_t kPlane = kBlock * 72;
  static constexpr std::int64_t kPoolBytes = kPositions / kBlock * 9 * kPlane;

  explicit HeadsBench(cudaStream_t stream) {
    norm_ = allocate<float>(128);
    rope_ = allocate<float>(std::int64_t{kPositions} * 32);
    q_ = allocate<float>(std::int64_t{kPositions} * 64 * 128);
    index_q_ = allocate<float>(std::int64_t{kPositions} * 4 * 128);
    positions_ = allocate<std::int32_t>(kPositions);
    sequence_of_ = allocate<std::int32_t>(kPositions);
    block_table_ = allocate<std::int32_t>(kPositions / kBlock);
    slice_ = allocate<ops::SequenceSlice>(1);
    pool_ = allocate<std::byte>(kPoolBytes);
    fill_inputs<<<1, 128, 0, stream>>>(norm_, 128, 128);
    fill_inputs<<<256, 256, 0, stream>>>(rope_, std::int64_t{kPositions} * 32, 32);
    wait(stream, "heads");
    check(cudaMemset(sequence_of_, 0, kPositions * 4), "memset");
    std::vector<std::int32_t> numbers(kPositions);
    for (int i = 0; i < kPositions; ++i) numbers[static_cast<std::size_t>(i)] = i;
    check(cudaMemcpy(positions_, numbers.data(), kPositions * 4, cudaMemcpyHostToDevice), "copy");
    check(cudaMemcpy(block_table_, numbers.data(), kPositions / kBlock * 4, cudaMemcpyHostToDevice),
          "copy");
    const ops::SequenceSlice slice{.num_tokens = kPositions, .block_table = block_table_};
    check(cudaMemcpy(slice_, &slice, sizeof slice, cudaMemcpyHostToDevice), "copy");
    const auto plane = [&](int first, std::int64_t head_stride) {
      return HeadPlanes{.data_offset = first * kPlane,
                        .scale_offset = first * kPlane + kBlock * 64,
                        .head_stride = head_stride,
                        .data_stride = 64,
                        .scale_stride = 8,
                        .dim = 128,
                        .dtype = CacheDType::kNvfp4};
    };
    heads_ = {.q_norm = norm_,
              .k_norm = norm_,
              .index_q_norm = norm_,
              .index_k_norm = norm_,
              .eps = 1e-6F,
              .rope = {.cos = rope_, .sin = rope_},
              .num_heads = 64,
              .num_kv_heads = 4,
              .num_index_heads = 4,
              .batch = {.num_tokens = kPositions,
                        .num_sequences = 1,
                        .positions = positions_,
                        .sequence_of = sequence_of_,
                        .sequences = slice_},
              .planes = {.pool = pool_,
                         .row_bytes = 9 * kPlane,
                         .block_tokens = kBlock,
                         .casts_query = true,
                         .casts_index_query = true,
                         .has_index = true,
                         .k = plane(0, 2 * kPlane),
                         .v = plane(1, 2 * kPlane),
                         .index_k = plane(8, 0)},
              .q = q_,
              .index_q = index_q_};
  }
  ~HeadsBench() {
    for (void* p : {static_cast<void*>(norm_), static_cast<void*>(rope_), static_cast<void*>(q_),
                    static_cast<void*>(index_q_), static_cast<void*>(positions_),
                    static_cast<void*>(sequence_of_), static_cast<void*>(block_table_),
                    static_cast<void*>(slice_), static_cast<void*>(pool_)}) {
      cudaFree(p);
    }
  }
  HeadsBench(const HeadsBench&) = delete;
  HeadsBench& operator=(const HeadsBench&) = delete;

  const FinishHeads& heads() const { return heads_; }
  std::int64_t pool_bytes() const { return kPoolBytes; }

 private:
  float* norm_ = nullptr;
  float* rope_ = nullptr;
  float* q_ = nullptr;
  float* index_q_ = nullptr;
  std::int32_t* positions_ = nullptr;
  std::int32_t* sequence_of_ = nullptr;
  std::int32_t* block_table_ = nullptr;
  ops::SequenceSlice* slice_ = nullptr;
  std::byte* pool_ = nullptr;
  FinishHeads heads_;
};

template <typename T>
std::vector<T> to_host(const T* from, std::int64_t count) {
  std::vector<T> out(static_cast<std::size_t>(count));
  check(cudaMemcpy(out.data(), from, out.size() * sizeof(T), cudaMemcpyDeviceToHost), "copy");
  return out;
}

/// Queries and pool, as a call leaves them.
struct Outputs {
  std::vector<float> q;
  std::vector<float> index_q;
  std::vector<std::byte> pool;
};

/// The epilogue in the order of cuda_finish_head.cuh, which is that of the reference.
class HostHeads {
 public:
  explicit HostHeads(const FinishHeads& heads)
      : heads_(heads),
        norm_(to_host(heads.q_norm, 128)),
        rope_(to_host(heads.rope.cos, std::int64_t{HeadsBench::kPositions} * 32)) {}

  /// Token t stands at position t, in row t / 128 of the pool.
  void finish(int token, int head, const float* projected, Outputs& out) const {
    std::array<float, 128> v;
    std::copy_n(projected, 128, v.begin());
    const bool is_value = head >= 68 && head < 72;
    if (!is_value) norm_and_rotate(v, token);
    if (head < 64) return store_query(v, out.q.data() + (std::int64_t{token} * 64 + head) * 128);
    if (head >= 72 && head < 76) {
      return store_query(v, out.index_q.data() + (std::int64_t{token} * 4 + head - 72) * 128);
    }
    const CachePlanes& planes = heads_.planes;
    const HeadPlanes& plane = is_value ? planes.v : head < 68 ? planes.k : planes.index_k;
    const int number = is_value ? head - 68 : head < 68 ? head - 64 : 0;
    std::byte* const row = out.pool.data() + token / planes.block_tokens * planes.row_bytes;
    const int slot = token % planes.block_tokens;
    store_nvfp4(v, row + plane.data(number, slot), row + plane.scales(number, slot));
  }

 private:
  void norm_and_rotate(std::array<float, 128>& v, int token) const {
    std::array<float, 16> chains{};
    for (std::size_t i = 0; i < 128; ++i) chains[i % 16] = std::fma(v[i], v[i], chains[i % 16]);
    for (std::size_t half = 8; half > 0; half /= 2) {
      for (std::size_t i = 0; i < half; ++i) chains[i] += chains[i + half];
    }
    const float inverse = 1.0F / std::sqrt(chains[0] / 128.0F + heads_.eps);
    for (std::size_t i = 0; i < 128; ++i) v[i] = (v[i] * inverse) * (1.0F + norm_[i]);
    for (std::size_t i = 0; i < 32; ++i) {
      const float at = rope_[static_cast<std::size_t>(token) * 32 + i];  // cosine and sine alike
      const float a = v[i];
      const float b = v[i + 32];
      v[i] = std::fma(-b, at, a * at);
      v[i + 32] = std::fma(a, at, b * at);
    }
  }
  static void store_query(const std::array<float, 128>& v, float* out) {
    for (std::size_t i = 0; i < 128; ++i) out[i] = decode_e4m3(encode_e4m3(v[i]));
  }
  static void store_nvfp4(const std::array<float, 128>& v, std::byte* data, std::byte* scales) {
    for (std::size_t group = 0; group < 8; ++group) {
      float largest = 0.0F;
      for (std::size_t i = 0; i < 16; ++i)
        largest = std::max(largest, std::fabs(v[group * 16 + i]));
      const std::uint8_t scale = nvfp4_cache_scale(largest);
      scales[group] = static_cast<std::byte>(scale);
      std::array<unsigned, 16> codes;
      for (std::size_t i = 0; i < 16; ++i) {
        const float x = v[group * 16 + i];
        const unsigned magnitude = e2m1_magnitude(std::fabs(x), decode_e4m3(scale));
        codes[i] = magnitude | (x < 0.0F && magnitude != 0 ? 8U : 0U);
      }
      for (std::size_t i = 0; i < 8; ++i) {
        data[group * 8 + i] = static_cast<std::byte>(codes[2 * i] | codes[2 * i + 1] << 4);
      }
    }
  }

  FinishHeads heads_;
  std::vector<float> norm_;
  std::vector<float> rope_;
};

/// The operation as fast::qkv_insert submits it.
void run_qkv(cudaStream_t stream, const Bench& bench, const FinishHeads& heads, int copy, int m) {
  if (m <= kMaxDecodeTokens) {
    bench.run(copy, m, bench.y(), !bench.is_direct(m));
  } else {
    bench.run_prefill(copy, m, bench.y(), bench.block_tokens(m), true);
  }
  finish_heads(stream, heads, bench.y(), 0, m);
}

template <typename T>
bool is_same(const std::vector<T>& expected, const std::vector<T>& actual, const char* what,
             int m) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (std::memcmp(&expected[i], &actual[i], sizeof(T)) == 0) continue;
    std::printf("WRONG %s of M=%d at %zu: %g, not %g\n", what, m, i, static_cast<double>(actual[i]),
                static_cast<double>(expected[i]));
    return false;
  }
  return true;
}

bool is_right(cudaStream_t stream, const Bench& bench, const HeadsBench& heads, int m) {
  const FinishHeads& p = heads.heads();
  const std::int64_t num_q = std::int64_t{m} * 64 * 128;
  const std::int64_t num_index_q = std::int64_t{m} * 4 * 128;
  check(cudaMemsetAsync(p.q, 0xFF, num_q * 4, stream), "poison");
  check(cudaMemsetAsync(p.index_q, 0xFF, num_index_q * 4, stream), "poison");
  check(cudaMemsetAsync(p.planes.pool, 0xFF, heads.pool_bytes(), stream), "poison");
  run_qkv(stream, bench, p, 0, m);
  wait(stream, "qkv_insert");
  const Outputs actual{to_host(p.q, num_q), to_host(p.index_q, num_index_q),
                       to_host(p.planes.pool, heads.pool_bytes())};

  const std::vector<float> y = to_host(bench.y(), std::int64_t{m} * 9856);
  const HostHeads host(p);
  Outputs expected{std::vector<float>(actual.q.size()), std::vector<float>(actual.index_q.size()),
                   std::vector<std::byte>(actual.pool.size(), std::byte{0xFF})};
  for (int token = 0; token < m; ++token) {
    for (int head = 0; head < 77; ++head) {
      host.finish(token, head, y.data() + std::int64_t{token} * 9856 + head * 128, expected);
    }
  }
  const auto as_numbers = [](const std::vector<std::byte>& bytes) {
    return std::vector<std::uint8_t>(
        reinterpret_cast<const std::uint8_t*>(bytes.data()),
        reinterpret_cast<const std::uint8_t*>(bytes.data()) + bytes.size());
  };
  return is_same(expected.q, actual.q, "queries", m) &&
         is_same(expected.index_q, actual.index_q, "index queries", m) &&
         is_same(as_numbers(expected.pool), as_numbers(actual.pool), "pool", m);
}

int check_all(cudaStream_t stream, const Bench& bench, const HeadsBench& heads) {
  for (const int m : {1, 2, 5, 8, 9, 16, 17, 33, 64, 129, 300}) {
    if (!is_right(stream, bench, heads, m)) return 1;
  }
  std::printf("cuda_qkv_bench: all right\n");
  return 0;
}

int time_all(cudaStream_t stream, const Bench& bench, const HeadsBench& heads) {
  for (const int m : {1, 2, 4, 8, 12, 16, 32, 64, 512, 2048, 8192}) {
    const double us = time_graph(stream, m <= 64 ? 16 : 4, m <= 64 ? 30 : 12, [&](int i) {
      run_qkv(stream, bench, heads.heads(), i % bench.copies(), m);
    });
    bench.print("insert", m, us);
    if (m == 1 || m >= 512) bench.print_csv("qkv_insert", m, us);
  }
  return 0;
}

}  // namespace bench
}  // namespace winnow::cuda

int main(int argc, char** argv) {
  using namespace winnow::cuda;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const std::string verb = argc > 1 ? argv[1] : "";
  if (verb != "check" && verb != "time") {
    std::printf("usage: cuda_qkv_bench check|time\n");
    return 2;
  }
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  const bench::Bench projection(stream, {"qkv 9856x6144", winnow::QuantScheme::kMxfp8, 9856, 6144},
                                verb == "check" ? 512 : bench::HeadsBench::kPositions);
  const bench::HeadsBench heads(stream);
  return verb == "check" ? bench::check_all(stream, projection, heads)
                         : bench::time_all(stream, projection, heads);
}
