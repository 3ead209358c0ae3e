// Random experts and routers in the packed layout, and their products in double: what the MoE's
// benchmark multiplies and checks against.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "formats/e4m3.h"
#include "formats/e8m0.h"
#include "ops/moe/cuda_fast.h"

namespace winnow::cuda {

#ifdef WINNOW_SELF_CONTAINED  // built without the rest of winnow
inline void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  std::printf("%s: %s\n", call, cudaGetErrorString(status));
  std::exit(1);
}
#else
void check(cudaError_t status, const char* call);
#endif

namespace fast_moe {

struct Shape {
  int hidden = 6144;
  int width = 3072;
  int shared_width = 3072;
  int num_experts = 128;
  int top_k = 4;
  QuantScheme routed = QuantScheme::kNvfp4;
  QuantScheme shared = QuantScheme::kMxfp8;
};

__device__ std::uint32_t hash(std::uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ x >> 27) * 0x94D049BB133111EBULL;
  return static_cast<std::uint32_t>(x ^ x >> 31);
}

/// Standard normal from a counter.
__device__ float normal(std::uint64_t seed) {
  const float u = (static_cast<float>(hash(seed)) + 1.0F) * 0x1p-32F;
  const float v = static_cast<float>(hash(seed ^ 0x5555555555555555ULL)) * 0x1p-32F;
  return sqrtf(-2.0F * logf(u)) * cospif(2.0F * v);
}

/// Random chunks: codes uniform, scales in a narrow band, no NaN.
__global__ void fill_chunks(std::byte* data, std::int64_t num_words, int words_per_chunk,
                            QuantScheme scheme, std::uint64_t seed) {
  auto* const words = reinterpret_cast<std::uint32_t*>(data);
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < num_words; i += stride) {
    const std::uint32_t random = hash(seed + static_cast<std::uint64_t>(i));
    const auto at = static_cast<int>(i % words_per_chunk);
    std::uint32_t word = random;
    if (scheme == QuantScheme::kNvfp4 && at >= 128) {
      word = 0x58585858U + (random & 0x0F0F0F0FU);  // 2 … 7.5
    } else if (scheme == QuantScheme::kMxfp8 && at >= 256) {
      word = 0x72727272U + (random & 0x01010101U);  // 2^-13, 2^-12
    } else if (scheme == QuantScheme::kMxfp8) {
      word = random & 0xF7F7F7F7U;  // no NaN
    } else if (scheme == QuantScheme::kBF16) {
      const std::uint32_t bits = 0x3B003B00U;
      word = bits + (random & 0x80FF80FFU);
    }
    words[i] = word;
  }
}

__global__ void fill_normal(float* data, std::int64_t count, float scale, std::uint64_t seed) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    data[i] = scale * normal(seed + static_cast<std::uint64_t>(i) * 2);
  }
}

template <typename T>
T* device_array(std::int64_t count) {
  T* data = nullptr;
  check(cudaMalloc(&data, static_cast<std::size_t>(std::max<std::int64_t>(count, 1)) * sizeof(T)),
        "cudaMalloc");
  return data;
}

float* random_floats(std::int64_t count, float scale, std::uint64_t seed) {
  auto* const data = device_array<float>(count);
  fill_normal<<<1024, 256>>>(data, count, scale, seed << 40);
  return data;
}

MatrixPart random_part(QuantScheme scheme, int rows, int cols, std::uint64_t seed) {
  MatrixPart part{.scheme = scheme,
                  .rows = rows,
                  .num_tiles = rows / kTileRows,
                  .num_chunks = cols / kChunkCols,
                  .matrix_scale = scheme == QuantScheme::kNvfp4 ? 0x1.3p-10F : 1.0F,
                  .fits_bf16 = true};
  const std::int64_t bytes = part.num_tiles * part.num_chunks * chunk_bytes(scheme);
  auto* const data = device_array<std::byte>(bytes);
  fill_chunks<<<2048, 256>>>(data, bytes / 4, static_cast<int>(chunk_bytes(scheme)) / 4, scheme,
                             seed << 40);
  part.data = data;
  return part;
}

DeviceMlp random_mlp(QuantScheme scheme, int hidden, int width, std::uint64_t seed) {
  return {.gate = random_part(scheme, width, hidden, 3 * seed),
          .up = random_part(scheme, width, hidden, 3 * seed + 1),
          .down = random_part(scheme, hidden, width, 3 * seed + 2)};
}

/// An element of a packed matrix, from the layout's description alone.
__device__ double element(const MatrixPart& part, int row, int col) {
  const std::byte* const chunk =
      part.data + (row / 16 * part.num_chunks + col / 64) * chunk_bytes(part.scheme);
  const int r = row % 16;
  const int step = col % 64 / 16;
  const int k = col % 16;
  const int lane = r % 8 * 4 + k % 8 / 2;
  const int i = k / 8 * 4 + r / 8 * 2 + k % 2;
  const auto* const bytes = reinterpret_cast<const std::uint8_t*>(chunk);
  switch (part.scheme) {
    case QuantScheme::kNvfp4: {
      const std::uint32_t word = reinterpret_cast<const std::uint32_t*>(chunk)[lane * 4 + step];
      const std::uint32_t code = nvfp4_code(word, i);
      const std::uint8_t scale = bytes[512 + r % 8 * 8 + r / 8 * 4 + step];
      const std::uint32_t m = code & 7U;
      const double magnitude = m < 4 ? m * 0.5 : m < 6 ? m - 2.0 : m * 2.0 - 8.0;
      return (code & 8U ? -magnitude : magnitude) * static_cast<double>(nvfp4_scale_value(scale)) *
             static_cast<double>(part.matrix_scale);
    }
    case QuantScheme::kMxfp8: {
      const std::uint8_t value = bytes[step / 2 * 512 + lane * 16 + step % 2 * 8 + mxfp8_byte(i)];
      const std::uint8_t scale = bytes[1024 + r % 8 * 4 + r / 8 * 2 + step / 2];
      return static_cast<double>(decode_e4m3(value)) * static_cast<double>(decode_e8m0(scale));
    }
    case QuantScheme::kBF16:
      return static_cast<double>(__bfloat162float(
          reinterpret_cast<const __nv_bfloat16*>(chunk)[(step * 32 + lane) * 8 + i]));
    case QuantScheme::kF32:
      return static_cast<double>(reinterpret_cast<const float*>(chunk)[(step * 32 + lane) * 8 + i]);
  }
  return 0.0;
}

/// out[row] = Σ W[row][k] x[k] in double, one warp a row.
__global__ void reference_product(MatrixPart part, int rows, int cols, const double* x,
                                  double* out) {
  const int row = static_cast<int>(blockIdx.x);
  double sum = 0.0;
  for (int k = static_cast<int>(threadIdx.x); k < cols; k += 32)
    sum += element(part, row, k) * x[k];
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xFFFFFFFFU, sum, offset);
  if (threadIdx.x == 0) out[row] = sum;
  (void)rows;
}

std::vector<double> product(const MatrixPart& part, int rows, int cols,
                            const std::vector<double>& x) {
  auto* const in = device_array<double>(cols);
  auto* const out = device_array<double>(rows);
  std::vector<double> result(static_cast<std::size_t>(rows));
  check(cudaMemcpy(in, x.data(), x.size() * 8, cudaMemcpyHostToDevice), "copy");
  reference_product<<<static_cast<unsigned>(rows), 32>>>(part, rows, cols, in, out);
  check(cudaMemcpy(result.data(), out, result.size() * 8, cudaMemcpyDeviceToHost), "copy");
  cudaFree(in);
  cudaFree(out);
  return result;
}

template <typename T>
std::vector<T> to_host(const T* data, std::int64_t count) {
  std::vector<T> host(static_cast<std::size_t>(count));
  check(cudaMemcpy(host.data(), data, host.size() * sizeof(T), cudaMemcpyDeviceToHost), "copy");
  return host;
}

/// One set of weights; several routers and shared experts stand for several layers.
struct Model {
  Shape shape;
  std::vector<DeviceMlp> experts;
  std::vector<DeviceMlp*> tables;  // [layer]
  std::vector<DeviceMlp> shared;   // [layer]
  std::vector<MatrixPart> routers;
  float* bias = nullptr;

  Model(const Shape& s, int num_layers) : shape(s) {
    for (int e = 0; e < s.num_experts; ++e) {
      experts.push_back(random_mlp(s.routed, s.hidden, s.width, static_cast<std::uint64_t>(e)));
    }
    for (int l = 0; l < num_layers; ++l) {
      std::vector<DeviceMlp> table = experts;
      if (s.shared_width > 0) {
        shared.push_back(
            random_mlp(s.shared, s.hidden, s.shared_width, static_cast<std::uint64_t>(1000 + l)));
        table.push_back(shared.back());
      }
      tables.push_back(device_array<DeviceMlp>(std::ssize(table)));
      check(cudaMemcpy(tables.back(), table.data(), table.size() * sizeof(DeviceMlp),
                       cudaMemcpyHostToDevice),
            "copy");
      MatrixPart router{.scheme = QuantScheme::kF32,
                        .rows = s.num_experts,
                        .num_tiles = (s.num_experts + 15) / 16,
                        .num_chunks = s.hidden / 64};
      router.data = reinterpret_cast<const std::byte*>(random_floats(
          router.num_tiles * 16 * s.hidden, 0.02F, static_cast<std::uint64_t>(2000 + l)));
      routers.push_back(router);
    }
    bias = random_floats(s.num_experts, 0.01F, 3000);
    check(cudaDeviceSynchronize(), "filling weights");
  }

  Layer layer(int l, const float* h, int num_tokens, float* y) const {
    return {.h = h,
            .num_tokens = num_tokens,
            .router = routers[static_cast<std::size_t>(l)].data,
            .router_bias = bias,
            .experts = tables[static_cast<std::size_t>(l)],
            .num_experts = shape.num_experts,
            .hidden = shape.hidden,
            .width = shape.width,
            .shared_width = shape.shared_width,
            .top_k = shape.top_k,
            .routed_scale = 2.0F,
            .alpha = 1.702F,
            .limit = 7.0F,
            .y = y};
  }
};

}  // namespace fast_moe
}  // namespace winnow::cuda
