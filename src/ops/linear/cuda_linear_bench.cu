// The fast linear kernels at MiniMax-M3's shapes. `check` compares results with sums in double
// precision and, bit by bit, with the same token in another batch, and exits with 1 at the first
// fault; `time` prints times beside their floors: the larger of the weights' bytes and the flops of
// bf16. qkv_insert is timed whole, from its input in fp32 to rows of the cache.
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "ops/cuda/check.h"
#include "ops/linear/cuda_fast.h"
#include "ops/linear/cuda_linear_reference.cuh"
#include "ops/qkv_insert/cuda_finish_heads.h"

namespace winnow::cuda {

#ifdef WINNOW_BENCH_ALONE  // built from the kernels' files only
void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  std::printf("%s: %s\n", call, cudaGetErrorString(status));
  std::exit(1);
}
#endif

namespace bench {

constexpr double kBytesPerSecond = 4.26e12;
constexpr double kFlopsPerSecond = 803e12;
constexpr int kMultiprocessors = 132;

struct Shape {
  const char* name;
  QuantScheme scheme;
  int rows;
  int cols;
};

/// Waits; ends the program when the device takes longer than any of these kernels should.
void wait(cudaStream_t stream, const char* what) {
  const auto begin = std::chrono::steady_clock::now();
  for (;;) {
    const cudaError_t status = cudaStreamQuery(stream);
    if (status == cudaSuccess) return;
    if (status != cudaErrorNotReady) check(status, what);
    if (std::chrono::steady_clock::now() - begin > std::chrono::seconds(3)) {
      std::printf("STUCK: %s\n", what);
      std::fflush(stdout);
      std::_Exit(1);
    }
  }
}

template <typename T>
T* allocate(std::int64_t count) {
  void* p = nullptr;
  check(cudaMalloc(&p, static_cast<std::size_t>(count) * sizeof(T)), "cudaMalloc");
  return static_cast<T*>(p);
}

/// Median microseconds of one of `calls` calls in a captured graph.
double time_graph(cudaStream_t stream, int calls, int replays, const std::function<void(int)>& call,
                  const char* name = "replay") {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin capture");
  for (int i = 0; i < calls; ++i) call(i);
  check(cudaStreamEndCapture(stream, &graph), "end capture");
  check(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  std::vector<double> times;
  for (int i = 0; i < replays + 3; ++i) {
    check(cudaEventRecord(begin, stream), "record");
    check(cudaGraphLaunch(exec, stream), "launch");
    check(cudaEventRecord(end, stream), "record");
    wait(stream, name);
    float ms = 0.0F;
    check(cudaEventElapsedTime(&ms, begin, end), "elapsed");
    if (i >= 3) times.push_back(static_cast<double>(ms) * 1000.0 / calls);
  }
  std::ranges::sort(times);
  check(cudaGraphExecDestroy(exec), "destroy");
  check(cudaGraphDestroy(graph), "destroy");
  return times[times.size() / 2];
}

class Bench {
 public:
  Bench(cudaStream_t stream, const Shape& shape, int max_tokens)
      : stream_(stream), shape_(shape), max_tokens_(max_tokens) {
    w_.scheme = shape.scheme;
    w_.rows = shape.rows;
    w_.num_tiles = (shape.rows + 15) / 16;
    w_.num_chunks = shape.cols / 64;
    w_.matrix_scale = shape.scheme == QuantScheme::kNvfp4 ? 0.37F : 1.0F;
    chunk_ = static_cast<int>(chunk_bytes(shape.scheme));
    bytes_ = w_.num_tiles * w_.num_chunks * chunk_;
    copies_ = static_cast<int>(std::clamp<std::int64_t>(250'000'000 / bytes_ + 1, 2, 16));
    weights_ = allocate<std::uint8_t>(bytes_ * copies_);
    fill_weights<<<1056, 256, 0, stream>>>(weights_, bytes_ * copies_,
                                           static_cast<int>(shape.scheme), chunk_, 1234567);
    x_ = allocate<float>(std::int64_t{max_tokens} * shape.cols);
    fill_inputs<<<1056, 256, 0, stream>>>(x_, std::int64_t{max_tokens} * shape.cols, shape.cols);
    y_ = allocate<float>(std::int64_t{max_tokens} * shape.rows);
    first_y_ = allocate<float>(std::int64_t{max_tokens} * shape.rows);
    scratch_bytes_ = std::int64_t{320} << 20;
    scratch_ = allocate<std::byte>(scratch_bytes_);
    errors_ = allocate<Errors>(1);
    counters_ = allocate<std::uint32_t>(1024);
    check(cudaMemsetAsync(counters_, 0, 4096, stream), "counters");
    check(cudaStreamSynchronize(stream), "fill");
  }
  ~Bench() {
    for (void* p : {static_cast<void*>(weights_), static_cast<void*>(x_), static_cast<void*>(y_),
                    static_cast<void*>(first_y_), static_cast<void*>(scratch_),
                    static_cast<void*>(errors_), static_cast<void*>(counters_)}) {
      cudaFree(p);
    }
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  FastLinear linear(int copy, int num_tokens, float* y) const {
    FastLinear linear{.w = w_,
                      .x = x_,
                      .x_stride = shape_.cols,
                      .y = y,
                      .y_stride = shape_.rows,
                      .num_tokens = num_tokens};
    linear.w.data = reinterpret_cast<const std::byte*>(weights_ + copy * bytes_);
    return linear;
  }

  void run(int copy, int num_tokens, float* y, bool packed) const {
    if (packed) {
      pack_decode_input(stream_, x_, shape_.cols, num_tokens, w_.num_chunks, scratch_);
    }
    decode_linear(stream_, linear(copy, num_tokens, y), packed ? scratch_ : nullptr,
                  kMultiprocessors);
  }

  int block_tokens(int num_tokens) const {
    return prefill_block_tokens(shape_.rows, num_tokens, w_.num_chunks, kMultiprocessors);
  }
  void pack_prefill(int num_tokens, int block) const {
    pack_prefill_input(stream_, x_, shape_.cols, num_tokens, w_.num_chunks, block, scratch_);
  }
  void run_prefill(int copy, int num_tokens, float* y, int block, bool cut) const {
    pack_prefill(num_tokens, block);
    prefill_linear(
        stream_, linear(copy, num_tokens, y),
        {.packed = scratch_,
         .partials =
             cut ? scratch_ + (scratch_bytes_ - prefill_partial_bound(kMultiprocessors)) : nullptr,
         .counters = counters_},
        block, kMultiprocessors);
  }
  bool has_prefill() const { return has_prefill_kernel(w_); }
  bool is_direct(int num_tokens) const {
    return takes_direct_input(w_, num_tokens, kMultiprocessors);
  }

  /// The first call's y is what the bits of later ones are compared with: pass the largest first.
  bool is_right(const std::function<void(float*)>& call, int num_tokens, const char* kernel) {
    check(cudaMemsetAsync(y_, 0xFF, std::size_t{4} * num_tokens * shape_.rows, stream_), "poison");
    check(cudaMemsetAsync(errors_, 0, sizeof(Errors), stream_), "errors");
    call(y_);
    const int stride = num_tokens > 64 ? num_tokens / 32 : 1;
    const int tokens = (num_tokens + stride - 1) / stride;
    const int row_step = shape_.rows > 4096 ? 13 : 1;
    const std::int64_t warps = std::int64_t{(shape_.rows + row_step - 1) / row_step} * tokens;
    check_outputs<<<static_cast<unsigned>((warps + 7) / 8), 256, 0, stream_>>>(
        weights_, static_cast<int>(shape_.scheme), static_cast<int>(w_.num_chunks), w_.matrix_scale,
        x_, y_, shape_.rows, row_step, tokens, stride, errors_);
    if (has_first_) {
      compare_bits<<<1056, 256, 0, stream_>>>(
          reinterpret_cast<std::uint32_t*>(y_), reinterpret_cast<std::uint32_t*>(first_y_),
          std::int64_t{std::min(num_tokens, first_tokens_)} * shape_.rows, errors_);
    } else {
      check(cudaMemcpyAsync(first_y_, y_, std::size_t{4} * num_tokens * shape_.rows,
                            cudaMemcpyDeviceToDevice, stream_),
            "copy");
      has_first_ = true;
      first_tokens_ = num_tokens;
    }
    Errors errors{};
    check(cudaMemcpyAsync(&errors, errors_, sizeof errors, cudaMemcpyDeviceToHost, stream_),
          "copy");
    wait(stream_, (std::string(kernel) + " M=" + std::to_string(num_tokens)).c_str());
    double worst = 0.0;
    std::memcpy(&worst, &errors.worst, sizeof worst);
    const double norm = std::sqrt(errors.squares / errors.reference);
    const bool right = norm < 1e-5 && worst < 2e-6 && errors.wrong_bits == 0;
    if (!right) {
      std::printf(
          "WRONG %s %s M=%d: norm of error %.3g, worst %.3g of sum |x w|, %llu other bits\n",
          shape_.name, kernel, num_tokens, norm, worst, errors.wrong_bits);
    }
    if (errors.num_wrong > 0) {
      std::printf("  %llu far off:", errors.num_wrong);
      for (unsigned long long i = 0; i < std::min(errors.num_wrong, 8ULL); ++i) {
        std::printf(" [%d][%d] %g not %g;", errors.wrong[i][0], errors.wrong[i][1],
                    errors.values[i][0], errors.values[i][1]);
      }
      std::printf("\n");
    }
    worst_ = std::max(worst_, worst);
    return right;
  }

  void print(const char* kernel, int num_tokens, double us) const {
    const double bytes = static_cast<double>(bytes_);
    const double flops = 2.0 * num_tokens * shape_.rows * shape_.cols;
    const double floor = std::max(bytes / kBytesPerSecond, flops / kFlopsPerSecond) * 1e6;
    std::printf("%-22s %-8s M=%-5d %8.2f us %7.2f TB/s %7.1f TFLOP/s  floor %.2f us  %.2f\n",
                shape_.name, kernel, num_tokens, us, bytes / us * 1e-6, flops / us * 1e-6, floor,
                floor / us);
  }

  /// name,shape,us,bytes,flops,floor_us
  void print_csv(const char* name, int num_tokens, double us) const {
    const double bytes = static_cast<double>(bytes_);
    const double flops = 2.0 * num_tokens * shape_.rows * shape_.cols;
    std::printf("%s,M = %d,%.2f,%.0f,%.0f,%.2f\n", name, num_tokens, us, bytes, flops,
                std::max(bytes / kBytesPerSecond, flops / kFlopsPerSecond) * 1e6);
  }

  cudaStream_t stream() const { return stream_; }
  int copies() const { return copies_; }
  float* y() const { return y_; }
  double worst() const { return worst_; }
  std::byte* scratch() const { return scratch_; }

 private:
  cudaStream_t stream_;
  Shape shape_;
  int max_tokens_;
  MatrixPart w_;
  int chunk_ = 0;
  std::int64_t bytes_ = 0;
  int copies_ = 0;
  std::uint8_t* weights_ = nullptr;
  float* x_ = nullptr;
  float* y_ = nullptr;
  float* first_y_ = nullptr;
  std::byte* scratch_ = nullptr;
  std::int64_t scratch_bytes_ = 0;
  Errors* errors_ = nullptr;
  std::uint32_t* counters_ = nullptr;
  bool has_first_ = false;
  int first_tokens_ = 0;
  double worst_ = 0.0;
};

/// What finish_heads() needs at M3's shape: 77 heads, one layer's NVFP4 planes, one sequence.
class HeadsBench {
 public:
  explicit HeadsBench(cudaStream_t stream) {
    constexpr int kBlock = 128;
    constexpr int kPositions = 8192;
    constexpr std::int64_t kPlane = kBlock * 72;
    norm_ = allocate<float>(128);
    rope_ = allocate<float>(std::int64_t{kPositions} * 32);
    q_ = allocate<float>(std::int64_t{kPositions} * 64 * 128);
    index_q_ = allocate<float>(std::int64_t{kPositions} * 4 * 128);
    positions_ = allocate<std::int32_t>(kPositions);
    sequence_of_ = allocate<std::int32_t>(kPositions);
    block_table_ = allocate<std::int32_t>(kPositions / kBlock);
    slice_ = allocate<ops::SequenceSlice>(1);
    pool_ = allocate<std::byte>(kPositions / kBlock * 9 * kPlane);
    fill_inputs<<<1, 128, 0, stream>>>(norm_, 128, 128);
    fill_inputs<<<256, 256, 0, stream>>>(rope_, std::int64_t{kPositions} * 32, 32);
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

/// The whole operation, as fast::qkv_insert submits it.
void time_qkv_insert(cudaStream_t stream, const Bench& bench) {
  const HeadsBench heads(stream);
  for (const int m : {1, 2, 4, 8, 16, 32, 512, 2048, 8192}) {
    const auto call = [&](int i) {
      const int copy = i % bench.copies();
      if (m <= 64) {
        bench.run(copy, m, bench.y(), !bench.is_direct(m));
      } else {
        bench.run_prefill(copy, m, bench.y(), bench.block_tokens(m), true);
      }
      finish_heads(stream, heads.heads(), bench.y(), 0, m);
    };
    const double us = time_graph(stream, m <= 64 ? 16 : 4, m <= 64 ? 30 : 12, call);
    bench.print("insert", m, us);
    if (m == 1 || m >= 512) bench.print_csv("qkv_insert", m, us);
  }
}

const Shape kCheckedShapes[] = {{"odd 1000x576", QuantScheme::kMxfp8, 1000, 576},
                                {"bf16 1024x2048", QuantScheme::kBF16, 1024, 2048},
                                {"nvfp4 6144x3072", QuantScheme::kNvfp4, 6144, 3072},
                                {"qkv 9856x6144", QuantScheme::kMxfp8, 9856, 6144},
                                {"bf16 20480x1024", QuantScheme::kBF16, 20480, 1024},
                                {"gate_up 24576x6144", QuantScheme::kMxfp8, 24576, 6144}};

bool check_shape(cudaStream_t stream, const Shape& shape) {
  const int most = shape.rows == 9856 ? 2048 : 600;
  Bench bench(stream, shape, most);
  if (bench.has_prefill()) {
    for (const int m : {most, 512, 300, 129, 64}) {
      for (const int block : {256, 128}) {
        for (const bool cut : {false, true}) {
          const std::string name =
              "prefill of " + std::to_string(block) + (cut ? ", cut" : ", whole");
          if (!bench.is_right([&](float* y) { bench.run_prefill(0, m, y, block, cut); }, m,
                              name.c_str())) {
            return false;
          }
        }
      }
    }
  }
  for (const int m : {64, 33, 32, 17, 16, 13, 8, 7, 5, 4, 3, 2, 1}) {
    for (const bool packed : {true, false}) {
      if (!packed && !bench.is_direct(m)) continue;
      if (!bench.is_right([&](float* y) { bench.run(0, m, y, packed); }, m,
                          packed ? "decode" : "decode, direct")) {
        return false;
      }
    }
  }
  std::printf("%s: right, worst error %.3g of sum |x w|\n", shape.name, bench.worst());
  return true;
}

int check_all(cudaStream_t stream) {
  for (const Shape& shape : kCheckedShapes) {
    if (!check_shape(stream, shape)) return 1;
  }
  std::printf("cuda_linear_bench: all right\n");
  return 0;
}

void time_decode(cudaStream_t stream, const Bench& bench, int calls) {
  for (const int m : {1, 2, 4, 8, 16, 32, 64}) {
    for (const bool packed : {false, true}) {
      if (packed ? m > 2 && bench.is_direct(m) : !bench.is_direct(m)) continue;
      bench.print(packed ? "decode p" : "decode", m, time_graph(stream, calls, 30, [&](int i) {
                    bench.run(i % bench.copies(), m, bench.y(), packed);
                  }));
    }
  }
}

void time_prefill(cudaStream_t stream, const Bench& bench, int most) {
  for (const int m : {128, 512, 1024, 2048, 8192}) {
    if (m > most) continue;
    const int block = bench.block_tokens(m);
    bench.print(block == 128 ? "n128" : "n256", m, time_graph(stream, 4, 12, [&](int i) {
                  bench.run_prefill(i % bench.copies(), m, bench.y(), block, true);
                }));
  }
}

int time_all(cudaStream_t stream) {
  const Shape shapes[] = {{"qkv 9856x6144", QuantScheme::kMxfp8, 9856, 6144},
                          {"out 6144x8192", QuantScheme::kMxfp8, 6144, 8192},
                          {"down 6144x12288", QuantScheme::kMxfp8, 6144, 12288},
                          {"gate_up 24576x6144", QuantScheme::kMxfp8, 24576, 6144},
                          {"head bf16 200064x6144", QuantScheme::kBF16, 200064, 6144}};
  for (const Shape& shape : shapes) {
    const bool is_head = shape.rows > 100000;
    const int most = is_head ? 128 : 8192;
    const Bench bench(stream, shape, most);
    time_decode(stream, bench, is_head ? 4 : 16);
    time_prefill(stream, bench, most);
    if (shape.rows == 9856) time_qkv_insert(stream, bench);
  }
  std::printf("cuda_linear_bench: timed\n");
  return 0;
}

}  // namespace bench
}  // namespace winnow::cuda

int main(int argc, char** argv) {
  using namespace winnow::cuda;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  const std::string verb = argc > 1 ? argv[1] : "";
  if (verb == "check") return bench::check_all(stream);
  if (verb == "time") return bench::time_all(stream);
  std::printf("usage: cuda_linear_bench check|time\n");
  return 2;
}
