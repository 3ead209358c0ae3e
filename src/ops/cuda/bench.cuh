// What the kernels' own benchmarks share: a stream, random data on the device, and times of
// captured launches. A benchmark checks its kernel first; fail() ends the program.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

namespace winnow::cuda::bench {

inline void require(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::printf("FAIL %s: %s\n", what, cudaGetErrorString(status));
  std::exit(1);
}

inline int num_multiprocessors() {
  int count = 0;
  require(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0), "device attribute");
  return count;
}

/// Memory of the device for the life of the program.
template <typename T>
T* device_array(std::int64_t count) {
  void* pointer = nullptr;
  require(cudaMalloc(&pointer, static_cast<std::size_t>(count) * sizeof(T)), "cudaMalloc");
  return static_cast<T*>(pointer);
}
template <typename T>
T* to_device(const std::vector<T>& values) {
  T* const pointer = device_array<T>(static_cast<std::int64_t>(values.size()));
  require(cudaMemcpy(pointer, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
          "copy to device");
  return pointer;
}
template <typename T>
std::vector<T> to_host(const T* pointer, std::int64_t count) {
  std::vector<T> values(static_cast<std::size_t>(count));
  require(cudaMemcpy(values.data(), pointer, values.size() * sizeof(T), cudaMemcpyDeviceToHost),
          "copy to host");
  return values;
}

/// Counter-based: the same seed and index give the same bits anywhere (Steele et al., SplitMix64).
__host__ __device__ inline std::uint64_t random_bits(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t z = seed * 0xD1342543DE82EF95ULL + (index + 1) * 0x9E3779B97F4A7C15ULL;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ z >> 27) * 0x94D049BB133111EBULL;
  return z ^ z >> 31;
}
/// About N(0, 1): the sum of four uniform parts.
__host__ __device__ inline float random_normal(std::uint64_t seed, std::uint64_t index) {
  const std::uint64_t bits = random_bits(seed, index);
  float sum = 0.0F;
  for (int i = 0; i < 4; ++i) sum += static_cast<float>(bits >> (16 * i) & 0xFFFFU) - 32767.5F;
  return sum * (1.7320508F / 65536.0F);
}

/// Median time in microseconds of one of `launches` captured together, over `repeats` replays.
/// Launch i should read other memory than launch i - 1, past twice the L2 altogether.
inline double median_us(cudaStream_t stream, int launches, const std::function<void(int)>& launch,
                        int repeats = 31) {
  cudaGraph_t graph{};
  cudaGraphExec_t executable{};
  require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin capture");
  for (int i = 0; i < launches; ++i) launch(i);
  require(cudaStreamEndCapture(stream, &graph), "end capture");
  require(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
  cudaEvent_t begin{}, end{};
  require(cudaEventCreate(&begin), "event");
  require(cudaEventCreate(&end), "event");
  for (int i = 0; i < 3; ++i) require(cudaGraphLaunch(executable, stream), "graph launch");
  std::vector<float> times;
  for (int i = 0; i < repeats; ++i) {
    require(cudaEventRecord(begin, stream), "record");
    require(cudaGraphLaunch(executable, stream), "graph launch");
    require(cudaEventRecord(end, stream), "record");
    require(cudaEventSynchronize(end), "replay");
    float milliseconds = 0.0F;
    require(cudaEventElapsedTime(&milliseconds, begin, end), "elapsed");
    times.push_back(milliseconds);
  }
  std::nth_element(times.begin(), times.begin() + repeats / 2, times.end());
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  return 1e3 * static_cast<double>(times[static_cast<std::size_t>(repeats / 2)]) / launches;
}

/// |out - expected| / |expected| of one row.
inline double relative_error(const float* out, const double* expected, std::int64_t count) {
  double error = 0;
  double norm = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const double d = static_cast<double>(out[i]) - expected[i];
    error += d * d;
    norm += expected[i] * expected[i];
  }
  return std::sqrt(error / norm);
}

/// What a device-to-device copy reaches on an H200, read plus written: the ceiling of all floors.
inline constexpr double kCopyBandwidth = 4.26e12;

/// One line for people and, with a shape that bench/peers knows, one for its table.
inline void report(const char* name, const char* what, const char* shape, double us, double bytes,
                   double flops, double floor_us) {
  std::printf("%-14s %-40s %8.2f us  %7.1f GB/s  floor %7.2f us  %.2f of it\n", name, what, us,
              bytes / us / 1e3, floor_us, floor_us / us);
  if (shape != nullptr) {
    std::printf("%s,%s,%.3f,%.0f,%.0f,%.3f\n", name, shape, us, bytes, flops, floor_us);
  }
}

}  // namespace winnow::cuda::bench
