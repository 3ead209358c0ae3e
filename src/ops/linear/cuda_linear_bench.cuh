// What the benchmarks of linear and of the operations that project share: one matrix of random
// weights, its input and output, and their check.
#pragma once

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

namespace winnow::cuda {

#ifdef WINNOW_BENCH_ALONE  // built from the kernels' files only
void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  std::printf("%s: %s\n", call, cudaGetErrorString(status));
  std::exit(1);
}
#endif

namespace bench {

inline constexpr double kBytesPerSecond = 4.26e12;
inline constexpr double kFlopsPerSecond = 803e12;
inline constexpr int kMultiprocessors = 132;

struct Shape {
  const char* name;
  QuantScheme scheme;
  int rows;
  int cols;
};

/// Waits; ends the program when the device takes longer than any of these kernels should.
inline void wait(cudaStream_t stream, const char* what) {
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
inline double time_graph(cudaStream_t stream, int calls, int replays,
                         const std::function<void(int)>& call, const char* name = "replay") {
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
    const int middle = middle_tokens(w_, num_tokens);
    if (packed && middle > 0) {
      pack_prefill(num_tokens, middle);
      return middle_linear(stream_, linear(copy, num_tokens, y), scratch_, kMultiprocessors);
    }
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

}  // namespace bench
}  // namespace winnow::cuda
