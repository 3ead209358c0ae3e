#include "ops/bench/kernel_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <span>

#include "base/error.h"
#include "base/memory.h"
#include "ops/bench/m3_layer.h"
#include "ops/bench/stopwatch.h"
#include "ops/cpu_kernels.h"

namespace winnow::ops {
namespace {

/// Read in turn so that none is left in a cache from its last use: ten times the largest L3 slice a
/// core is likely to reach.
constexpr std::int64_t kColdBytes = std::int64_t{640} << 20;

constexpr std::int32_t kContext = 32 * 1024;
constexpr std::int32_t kPrefillTokens = 2048;
constexpr double kGiga = 1e9;

/// The last tokens of a long prompt, in one layer.
class Prefill {
 public:
  explicit Prefill(const Backend& backend) : backend_(backend), cache_(kContext) {
    constexpr AttentionShape kShape = kM3Attention;
    q_ = random_floats(kPrefillTokens * kShape.num_heads * kShape.head_dim, 1.0F, 13);
    index_q_ =
        random_floats(kPrefillTokens * kShape.num_index_heads * kShape.index_head_dim, 1.0F, 14);
    out_.resize(q_.size());
    blocks_.resize(
        static_cast<std::size_t>(kPrefillTokens * kShape.num_index_heads * kShape.top_k_blocks));
  }

  static std::string what() {
    return fmt::format("{}K tokens ending at {}K, nvfp4", kPrefillTokens / 1024, kContext / 1024);
  }

  void run_index(const OpContext& context) {
    backend_.index_topk(context, {.index_q = index_q_.data(),
                                  .shape = kM3Attention,
                                  .batch = cache_.batch(kPrefillTokens, kContext),
                                  .cache = cache_.view(),
                                  .blocks = blocks_.data()});
  }

  void run_attention(const OpContext& context, bool is_sparse) {
    backend_.attention(context, {.q = q_.data(),
                                 .shape = kM3Attention,
                                 .scale = 1.0F / std::sqrt(128.0F),
                                 .batch = cache_.batch(kPrefillTokens, kContext),
                                 .cache = cache_.view(),
                                 .blocks = is_sparse ? blocks_.data() : nullptr,
                                 .out = out_.data()});
  }

  /// Multiply-adds: keys that a query in the middle of the chunk sees, heads, dims.
  static double index_work() { return kPrefillTokens * kKeys * 4 * 128; }
  static double attention_work(bool is_sparse) {
    return kPrefillTokens * (is_sparse ? 16.0 * 128.0 : kKeys) * 64 * 2 * 128;
  }

 private:
  static constexpr double kKeys = kContext - kPrefillTokens / 2.0;

  const Backend& backend_;
  M3Cache cache_;
  std::vector<float> q_;
  std::vector<float> index_q_;
  std::vector<float> out_;
  std::vector<std::int32_t> blocks_;
};

class KernelBench {
 public:
  explicit KernelBench(const KernelBenchOptions& options)
      : options_(options),
        machine_(detect_machine()),
        backend_(make_backend(options.backend, machine_)),
        pool_(options.num_threads, options.pin_threads) {
    report_.machine = machine_.cpu_name;
    report_.backend = backend_.name;
    report_.commit = options.commit;
    report_.num_threads = pool_.num_threads();
  }

  void measure_machine() {
    const cpu::Kernels kernels = cpu::kernels_of(machine_.best_isa);
    const Buffer memory(kColdBytes, "bandwidth measurement");
    // Every page is written once: untouched ones would all read the same page of zeros.
    for (std::int64_t at = 0; at < kColdBytes; at += 4096) memory.data()[at] = std::byte{1};
    constexpr std::int64_t kPieceBytes = std::int64_t{16} << 20;  // about a weight matrix
    constexpr std::int64_t kPieces = kColdBytes / kPieceBytes;
    constexpr std::int64_t kParts = 64;
    std::uint32_t sink = 0;
    const Timing timing = time_each(options_.seconds_per_case / 2, kPieces, [&](std::int64_t i) {
      const std::byte* const piece = memory.data() + i * kPieceBytes;
      pool_.parallel_for(kParts, [&](std::int64_t part, int thread) {
        const std::uint32_t sum =
            kernels.table.memory->read(piece + part * (kPieceBytes / kParts), kPieceBytes / kParts);
        if (thread == 0) sink = sink + sum;
      });
    });
    // Neighbours come and go: the best of all tries in this run is what ratios are taken of.
    report_.read_bytes_per_second =
        std::max(report_.read_bytes_per_second, static_cast<double>(kPieceBytes) / timing.best);
    static_cast<void>(sink);
  }

  void gemv(const std::string& name, QuantScheme scheme, std::int64_t rows, std::int64_t cols) {
    const std::int64_t bytes =
        random_matrices(backend_, scheme, rows, cols, 1).front()->num_bytes();
    const std::int64_t count = std::max<std::int64_t>(2, (kColdBytes + bytes - 1) / bytes);
    const auto matrices = random_matrices(backend_, scheme, rows, cols, count);
    const std::vector<float> x = random_floats(cols, 1.0F, 9);
    std::vector<float> y(static_cast<std::size_t>(rows));
    const Timing timing = time_each(options_.seconds_per_case, count, [&](std::int64_t i) {
      backend_.linear(context(), {.x = x.data(),
                                  .x_stride = cols,
                                  .w = matrices[static_cast<std::size_t>(i)].get(),
                                  .y = y.data(),
                                  .y_stride = rows,
                                  .num_rows = 1});
    });
    add_bytes(name, fmt::format("{} x {}, cold", rows, cols), timing, bytes);
  }

  /// What an adapter of rank 16 on all five projections adds to the fused one, for one token.
  void lora_gemv() {
    constexpr std::int64_t kRank = 16;
    constexpr std::int64_t kParts[] = {64 * 128, 4 * 128, 4 * 128, 4 * 128, 128};
    constexpr std::int64_t kRows = 9856;
    const auto bf16 = [&](std::int64_t rows, std::int64_t cols, std::int64_t count) {
      return random_matrices(backend_, QuantScheme::kBF16, rows, cols, count);
    };
    const std::int64_t bytes = 5 * kRank * kM3Hidden * 2 + kRows * kRank * 2;
    const std::int64_t count = (kColdBytes + bytes - 1) / bytes;
    const auto a = bf16(5 * kRank, kM3Hidden, count);
    std::vector<std::vector<std::unique_ptr<PackedMatrix>>> b;
    for (const std::int64_t rows : kParts) b.push_back(bf16(rows, kRank, count));
    const std::vector<float> scales(5 * kRank, 2.0F);
    std::vector<std::vector<LoraPart>> parts(static_cast<std::size_t>(count));
    std::vector<LoraSite> sites;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      std::int64_t row = 0;
      for (std::size_t p = 0; p < b.size(); row += kParts[p++]) {
        parts[i].push_back({.b = b[p][i].get(),
                            .first_rank = static_cast<std::int64_t>(p) * kRank,
                            .first_row = row});
      }
      sites.push_back({.a = a[i].get(), .scales = scales.data(), .parts = parts[i]});
    }
    const std::vector<float> x = random_floats(kM3Hidden, 1.0F, 15);
    std::vector<float> y(static_cast<std::size_t>(kRows));
    constexpr std::int32_t kAdapter = 0;
    const Timing timing = time_each(options_.seconds_per_case, count, [&](std::int64_t i) {
      const LoraSite* const site = &sites[static_cast<std::size_t>(i)];
      backend_.lora(context(), {.rows = {.adapter_of = &kAdapter, .adapters = {&site, 1}},
                                .num_rows = 1,
                                .x = x.data(),
                                .x_stride = kM3Hidden,
                                .y = y.data(),
                                .y_stride = kRows});
    });
    add_bytes("lora_gemv", fmt::format("rank {} on {} x {}, cold", kRank, kRows, kM3Hidden), timing,
              bytes);
  }

  void gemm(const std::string& name, QuantScheme scheme, std::int64_t rows, std::int64_t cols,
            std::int64_t tokens) {
    const auto matrices = random_matrices(backend_, scheme, rows, cols, 1);
    const std::vector<float> x = random_floats(tokens * cols, 1.0F, 10);
    std::vector<float> y(static_cast<std::size_t>(tokens * rows));
    const Timing timing = time_calls(options_.seconds_per_case, [&] {
      backend_.linear(context(), {.x = x.data(),
                                  .x_stride = cols,
                                  .w = matrices.front().get(),
                                  .y = y.data(),
                                  .y_stride = rows,
                                  .num_rows = tokens});
    });
    add_arithmetic(name, fmt::format("{} x {} x {}", tokens, rows, cols), timing,
                   static_cast<double>(tokens) * static_cast<double>(rows * cols));
  }

  void layer_decode() {
    const std::int64_t limit =
        options_.memory_bytes > 0 ? options_.memory_bytes : available_memory_bytes() / 2;
    const std::int64_t num_experts = std::clamp<std::int64_t>(
        (limit - (std::int64_t{400} << 20)) / M3Layer::expert_bytes(), kM3TopExperts, 128);
    M3Cache cache(kContext);
    M3Layer layer(backend_, num_experts, kContext);
    // A token after token, each with its own choice of experts; so many that the weights of the
    // first are long gone when the last has run.
    constexpr std::int64_t kTokens = 16;
    const std::vector<float> inputs = random_floats(kTokens * kM3Hidden, 1.0F, 11);
    std::vector<float> x;
    const Timing timing = time_each(options_.seconds_per_case, kTokens, [&](std::int64_t t) {
      x.assign(inputs.begin() + t * kM3Hidden, inputs.begin() + (t + 1) * kM3Hidden);
      layer.run(backend_, context(), cache.batch(1, kContext), cache.view(), x.data());
    });
    constexpr std::int64_t kVector = 72;  // bytes of 128 values
    const std::int64_t cache_bytes =
        kContext * kVector + 4 * 16 * 128 * 2 * kVector;  // index keys; K and V of 16 blocks
    add_bytes("layer_decode",
              fmt::format("1 token at {}K, {} experts", kContext / 1024, num_experts), timing,
              layer.bytes_per_token() + cache_bytes);
  }

  void index_decode() {
    M3Cache cache(4 * kContext);
    const AttentionShape shape = kM3Attention;
    const std::vector<float> index_q =
        random_floats(shape.num_index_heads * shape.index_head_dim, 1.0F, 12);
    std::vector<std::int32_t> blocks(
        static_cast<std::size_t>(shape.num_index_heads * shape.top_k_blocks));
    const Timing timing = time_calls(options_.seconds_per_case, [&] {
      backend_.index_topk(context(), {.index_q = index_q.data(),
                                      .shape = shape,
                                      .batch = cache.batch(1, 4 * kContext),
                                      .cache = cache.view(),
                                      .blocks = blocks.data()});
    });
    add_bytes("index_decode", "1 token at 128K, nvfp4", timing, std::int64_t{72} * 4 * kContext);
  }

  void index_prefill() {
    Prefill prefill(backend_);
    add_arithmetic("index_prefill", prefill.what(),
                   time_calls(options_.seconds_per_case, [&] { prefill.run_index(context()); }),
                   prefill.index_work());
  }

  void prefill() {
    Prefill prefill(backend_);
    const Timing sparse = time_calls(options_.seconds_per_case, [&] {
      prefill.run_index(context());
      prefill.run_attention(context(), true);
    });
    add_arithmetic("sparse_prefill", prefill.what() + ", with indexer", sparse,
                   prefill.index_work() + prefill.attention_work(true));
    const Timing dense =
        time_calls(options_.seconds_per_case, [&] { prefill.run_attention(context(), false); });
    add_arithmetic("dense_prefill", prefill.what(), dense, prefill.attention_work(false));
    report_.sparse_prefill_gain = dense.best / sparse.best;
  }

  void measure_arithmetic() {
    const cpu::Kernels kernels = cpu::kernels_of(machine_.best_isa);
    constexpr std::int64_t kSteps = 1 << 16;
    float sink = 0;
    const Timing timing = time_calls(options_.seconds_per_case / 4, [&] {
      pool_.parallel_for(pool_.num_threads(), [&](std::int64_t, int thread) {
        const float sum = kernels.table.memory->multiply_add(kSteps);
        if (thread == 0) sink = sink + sum;
      });
    });
    static_cast<void>(sink);
    report_.multiply_adds_per_second =
        static_cast<double>(kSteps * kMultiplyAddsPerStep * pool_.num_threads()) / timing.best;
  }

  /// Floors are filled in at the end, from the best bandwidth of the run.
  KernelBenchReport finish() {
    for (std::size_t i = 0; i < floors_.size(); ++i) {
      KernelMeasurement& m = report_.measurements[i];
      const Floor& floor = floors_[i];
      const bool is_bytes = floor.bytes > 0;
      const double rate =
          is_bytes ? report_.read_bytes_per_second : report_.multiply_adds_per_second;
      m.floor_seconds = (is_bytes ? floor.bytes : floor.multiply_adds) / rate;
      m.floor = is_bytes ? fmt::format("{:.1f} MB at {:.1f} GB/s", floor.bytes / 1e6, rate / kGiga)
                         : fmt::format("{:.1f} G multiply-adds at {:.0f} G/s",
                                       floor.multiply_adds / kGiga, rate / kGiga);
    }
    return std::move(report_);
  }

 private:
  struct Floor {
    double bytes = 0;
    double multiply_adds = 0;
  };

  OpContext context() { return {.pool = &pool_, .scratch = &scratch_}; }

  void add(const std::string& name, const std::string& shape, const Timing& timing, Floor floor) {
    report_.measurements.push_back({.name = name,
                                    .shape = shape,
                                    .best_seconds = timing.best,
                                    .median_seconds = timing.median,
                                    .floor = {}});
    floors_.push_back(floor);
  }
  void add_bytes(const std::string& name, const std::string& shape, const Timing& timing,
                 std::int64_t bytes) {
    add(name, shape, timing, {.bytes = static_cast<double>(bytes)});
  }
  void add_arithmetic(const std::string& name, const std::string& shape, const Timing& timing,
                      double multiply_adds) {
    add(name, shape, timing, {.multiply_adds = multiply_adds});
  }

  KernelBenchOptions options_;
  Machine machine_;
  Backend backend_;
  ThreadPool pool_;
  Scratch scratch_;
  KernelBenchReport report_;
  std::vector<Floor> floors_;
};

struct Case {
  const char* name;
  void (*run)(KernelBench&);
};

constexpr Case kCases[] = {
    {"nvfp4_gemv", [](KernelBench& b) { b.gemv("nvfp4_gemv", QuantScheme::kNvfp4, 3072, 6144); }},
    {"nvfp4_down_gemv",
     [](KernelBench& b) { b.gemv("nvfp4_down_gemv", QuantScheme::kNvfp4, 6144, 3072); }},
    {"mxfp8_gemv", [](KernelBench& b) { b.gemv("mxfp8_gemv", QuantScheme::kMxfp8, 9856, 6144); }},
    {"bf16_gemv", [](KernelBench& b) { b.gemv("bf16_gemv", QuantScheme::kBF16, 16384, 6144); }},
    {"lora_gemv", [](KernelBench& b) { b.lora_gemv(); }},
    {"nvfp4_gemm",
     [](KernelBench& b) { b.gemm("nvfp4_gemm", QuantScheme::kNvfp4, 3072, 6144, 64); }},
    {"mxfp8_gemm",
     [](KernelBench& b) { b.gemm("mxfp8_gemm", QuantScheme::kMxfp8, 6144, 6144, 256); }},
    {"layer_decode", [](KernelBench& b) { b.layer_decode(); }},
    {"index_decode", [](KernelBench& b) { b.index_decode(); }},
    {"index_prefill", [](KernelBench& b) { b.index_prefill(); }},
    {"prefill", [](KernelBench& b) { b.prefill(); }},
};

void check_names(const std::vector<std::string>& only) {
  for (const std::string& name : only) {
    if (std::ranges::find(kCases, name, &Case::name) != std::end(kCases)) continue;
    throw Error(ErrorCode::kInvalidArgument, fmt::format("benchmark '{}' is not one of {}", name,
                                                         fmt::join(kernel_bench_cases(), ", ")));
  }
}

}  // namespace

std::vector<std::string> kernel_bench_cases() {
  std::vector<std::string> names;
  for (const Case& c : kCases) names.emplace_back(c.name);
  return names;
}

KernelBenchReport run_kernel_bench(const KernelBenchOptions& options,
                                   const std::function<void(const std::string&)>& progress) {
  check_names(options.only);
  KernelBench bench(options);
  bench.measure_arithmetic();
  for (const Case& c : kCases) {
    if (!options.only.empty() && std::ranges::find(options.only, c.name) == options.only.end()) {
      continue;
    }
    if (progress) progress(c.name);
    bench.measure_machine();
    c.run(bench);
  }
  bench.measure_machine();
  return bench.finish();
}

}  // namespace winnow::ops
