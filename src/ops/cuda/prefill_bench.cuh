// What the benchmarks of the prefill kernels share: a random cache with poisoned unwritten slots, a
// batch on the device, and medians of graph replays.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "ops/cuda/cache_planes.h"

#define CHECK(call)                                                                          \
  do {                                                                                       \
    const cudaError_t status_ = (call);                                                      \
    if (status_ != cudaSuccess) {                                                            \
      std::printf("%s:%d %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(status_)); \
      std::exit(1);                                                                          \
    }                                                                                        \
  } while (false)

namespace winnow::bench {

enum class Kind { kNvfp4, kNvfp4Exact, kFp8, kBF16 };
inline const char* name(Kind kind) {
  constexpr const char* kNames[] = {"nvfp4", "nvfp4x", "fp8", "bf16"};
  return kNames[static_cast<int>(kind)];
}
inline CacheDType dtype_of(Kind kind) {
  if (kind == Kind::kFp8) return CacheDType::kFp8;
  return kind == Kind::kBF16 ? CacheDType::kBF16 : CacheDType::kNvfp4;
}
__host__ __device__ inline std::int64_t plane_bytes(Kind kind) {
  if (kind == Kind::kFp8) return 128 * 128;
  return kind == Kind::kBF16 ? 128 * 256 : 128 * 72;
}
__host__ __device__ inline bool rounds_query(Kind kind) {
  return kind == Kind::kNvfp4 || kind == Kind::kFp8;
}

__host__ __device__ inline std::uint32_t hash(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return static_cast<std::uint32_t>((x ^ (x >> 31)) >> 16);
}
__host__ __device__ inline float e4m3_value(std::uint32_t byte) {
  const int exponent = static_cast<int>(byte >> 3 & 15);
  const float mantissa = static_cast<float>(byte & 7) / 8.0F;
  const float magnitude =
      exponent == 0 ? mantissa * 0x1p-6F : ldexpf(1.0F + mantissa, exponent - 7);
  return (byte & 0x80) != 0 ? -magnitude : magnitude;
}
/// Nearest E4M3 value, ties to even: the reference's own, of finite |x|.
__host__ __device__ inline float round_e4m3(float x) {
  const float magnitude = fabsf(x);
  if (magnitude >= 448.0F) return copysignf(448.0F, x);
  int exponent = 0;
  frexpf(magnitude, &exponent);
  const float unit = ldexpf(1.0F, exponent - 1 < -6 ? -9 : exponent - 4);
  return copysignf(rintf(magnitude / unit) * unit, x);
}

/// Fills [0, num_bytes) of one layer's plane of one block.
__device__ inline std::uint8_t cache_byte(Kind kind, std::uint64_t seed, std::int64_t i) {
  const std::uint32_t h = hash(seed * 0x100000001ULL + static_cast<std::uint64_t>(i));
  if (kind == Kind::kFp8) {
    return static_cast<std::uint8_t>((h & 0x80) | (0x20 + (h >> 8) % 0x22));
  }
  if (kind == Kind::kBF16) {
    if ((i & 1) == 0) return static_cast<std::uint8_t>(h);
    return static_cast<std::uint8_t>((h & 0x80) | (0x3E + (h >> 8) % 2));
  }
  if (i >= 128 * 64) return static_cast<std::uint8_t>(0x28 + h % 16);
  std::uint32_t byte = h & 0xFF;
  if ((byte & 0xF) == 8) byte &= 0xF0;
  if (byte >> 4 == 8) byte &= 0x0F;
  return static_cast<std::uint8_t>(byte);
}

/// Value d of token t of a plane, by plain arithmetic.
__host__ __device__ inline float cache_value(Kind kind, const std::uint8_t* plane, int t, int d) {
  if (kind == Kind::kFp8) return e4m3_value(plane[t * 128 + d]);
  if (kind == Kind::kBF16) {
    const std::uint32_t bits = plane[t * 256 + 2 * d] | plane[t * 256 + 2 * d + 1] << 8;
    union {
      std::uint32_t u;
      float f;
    } x{bits << 16};
    return x.f;
  }
  const std::uint32_t code = plane[t * 64 + d / 2] >> (4 * (d % 2)) & 15;
  constexpr float kMagnitudes[] = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};
  float x = kMagnitudes[code & 7] * e4m3_value(plane[128 * 64 + t * 8 + d / 16] & 0x7F);
  if (kind == Kind::kNvfp4) x = round_e4m3(x);
  return (code & 8) != 0 ? -x : x;
}

/// Token t of a plane becomes 0xFF bytes, NaN in every format.
inline __device__ void poison_token(Kind kind, std::uint8_t* plane, int t) {
  const int data = kind == Kind::kFp8 ? 128 : kind == Kind::kBF16 ? 256 : 64;
  for (int i = 0; i < data; ++i) plane[t * data + i] = 0xFF;
  if (data == 64) {
    for (int i = 0; i < 8; ++i) plane[128 * 64 + t * 8 + i] = 0xFF;
  }
}

struct PlaneSet {
  std::uint8_t* pool;
  std::int64_t row_bytes;
  std::int64_t plane_bytes;
  int num_planes;
};

static __global__ void fill_pool(Kind kind, PlaneSet set, std::int64_t num_rows) {
  const std::int64_t total = num_rows * set.row_bytes;
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < total;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    const std::int64_t plane = i / set.plane_bytes;
    set.pool[i] = cache_byte(kind, static_cast<std::uint64_t>(plane), i % set.plane_bytes);
  }
}

/// Slots of each sequence's last block past its end.
static __global__ void poison_pool(Kind kind, PlaneSet set, winnow::cuda::DeviceBatch batch) {
  const ops::SequenceSlice slice = batch.sequences[blockIdx.x];
  const int end = slice.first_position + slice.num_tokens;
  if (end % 128 == 0 || slice.num_tokens == 0) return;
  std::uint8_t* const row = set.pool + slice.block_table[end / 128] * set.row_bytes;
  const int t = static_cast<int>(threadIdx.x);
  if (t < end % 128) return;
  for (int p = 0; p < set.num_planes; ++p) poison_token(kind, row + p * set.plane_bytes, t);
}

/// Uniform in ±3, as a cache of `kind` wants its queries.
static __global__ void fill_queries(Kind kind, float* q, std::int64_t count, std::uint64_t seed) {
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    const float x =
        static_cast<float>(hash(seed << 40 ^ static_cast<std::uint64_t>(i)) & 0xFFFFFF) * 0x1p-24F;
    const float value = 6.0F * x - 3.0F;
    q[i] = rounds_query(kind) ? round_e4m3(value) : value;
  }
}

template <typename T>
T* device_array(std::int64_t count) {
  void* p = nullptr;
  CHECK(cudaMalloc(&p, static_cast<std::size_t>(count) * sizeof(T)));
  return static_cast<T*>(p);
}
template <typename T>
T* device_copy(const std::vector<T>& host) {
  T* const p = device_array<T>(static_cast<std::int64_t>(std::max<std::size_t>(host.size(), 1)));
  CHECK(cudaMemcpy(p, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
  return p;
}
template <typename T>
std::vector<T> host_copy(const T* device, std::int64_t count) {
  std::vector<T> host(static_cast<std::size_t>(count));
  CHECK(cudaMemcpy(host.data(), device, host.size() * sizeof(T), cudaMemcpyDeviceToHost));
  return host;
}

struct Sequence {
  int num_tokens;
  int end;  // of the context, in positions
};

/// A batch of sequences whose blocks lie shuffled in a pool.
class Batch {
 public:
  explicit Batch(const std::vector<Sequence>& sequences) {
    std::int64_t blocks = 0;
    for (const Sequence& s : sequences) blocks += (s.end + 127) / 128;
    num_blocks_ = std::max<std::int64_t>(blocks, 1);
    std::vector<std::int32_t> rows(static_cast<std::size_t>(num_blocks_));
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::int32_t>(i);
    for (std::size_t i = rows.size() - 1; i > 0; --i) std::swap(rows[i], rows[hash(i) % (i + 1)]);
    table_ = device_copy(rows);
    std::vector<std::int32_t> positions, sequence_of;
    std::vector<ops::SequenceSlice> slices;
    std::int64_t first_block = 0;
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      const Sequence& sequence = sequences[s];
      slices.push_back({.first_token = static_cast<std::int32_t>(positions.size()),
                        .num_tokens = sequence.num_tokens,
                        .first_position = sequence.end - sequence.num_tokens,
                        .block_table = table_ + first_block});
      for (int i = 0; i < sequence.num_tokens; ++i) {
        positions.push_back(sequence.end - sequence.num_tokens + i);
        sequence_of.push_back(static_cast<std::int32_t>(s));
      }
      first_block += (sequence.end + 127) / 128;
      num_positions_ = std::max(num_positions_, sequence.end);
    }
    batch_ = {.num_tokens = static_cast<std::int32_t>(positions.size()),
              .num_sequences = static_cast<std::int32_t>(sequences.size()),
              .positions = device_copy(positions),
              .sequence_of = device_copy(sequence_of),
              .sequences = device_copy(slices)};
  }
  ~Batch() {
    cudaFree(table_);
    cudaFree(const_cast<std::int32_t*>(batch_.positions));
    cudaFree(const_cast<std::int32_t*>(batch_.sequence_of));
    cudaFree(const_cast<ops::SequenceSlice*>(batch_.sequences));
  }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  const winnow::cuda::DeviceBatch& device() const { return batch_; }
  std::int64_t num_blocks() const { return num_blocks_; }
  int num_positions() const { return num_positions_; }

 private:
  winnow::cuda::DeviceBatch batch_;
  std::int32_t* table_ = nullptr;
  std::int64_t num_blocks_ = 0;
  int num_positions_ = 0;
};

/// Median microseconds of `launch(i)`, i = 0 … rotations - 1 being different inputs, each as a
/// graph. Fewer replays when one takes long, at least `min_replays`.
template <typename Launch>
double median_us(int rotations, int replays, Launch&& launch) {
  cudaStream_t stream = nullptr;
  CHECK(cudaStreamCreate(&stream));
  std::vector<cudaGraphExec_t> graphs(static_cast<std::size_t>(rotations));
  for (int i = 0; i < rotations; ++i) {
    cudaGraph_t graph = nullptr;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    launch(i, stream);
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&graphs[static_cast<std::size_t>(i)], graph, 0));
    CHECK(cudaGraphDestroy(graph));
  }
  cudaEvent_t begin = nullptr, end = nullptr;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  std::vector<double> times;
  for (int i = -rotations; i < replays; ++i) {
    CHECK(cudaEventRecord(begin, stream));
    CHECK(cudaGraphLaunch(graphs[static_cast<std::size_t>((i + rotations) % rotations)], stream));
    CHECK(cudaEventRecord(end, stream));
    CHECK(cudaEventSynchronize(end));
    float ms = 0;
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 0) times.push_back(1000.0 * ms);
  }
  for (cudaGraphExec_t graph : graphs) CHECK(cudaGraphExecDestroy(graph));
  CHECK(cudaEventDestroy(begin));
  CHECK(cudaEventDestroy(end));
  CHECK(cudaStreamDestroy(stream));
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2),
                   times.end());
  return times[times.size() / 2];
}

}  // namespace winnow::bench
