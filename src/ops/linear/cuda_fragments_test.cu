// Every NVFP4 code under every scale and every MXFP8 element under every scale that fits, at every
// place of a fragment, against formats/*.h. Self-contained: exits with 1 and a line per fault.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>
#include <vector>

#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/e8m0.h"
#include "ops/linear/cuda_fragments.cuh"

namespace winnow::cuda {
namespace {

using Fragment = std::uint32_t[4];

struct Nvfp4Case {
  std::uint32_t words[4];
  std::uint32_t top;
  std::uint32_t bottom;
};

__global__ void decode_nvfp4(const Nvfp4Case* cases, int count, Fragment* out) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= count) return;
  const Nvfp4Case& x = cases[i];
  const Nvfp4RowScales top = decode_nvfp4_scales(x.top);
  const Nvfp4RowScales bottom = decode_nvfp4_scales(x.bottom);
  nvfp4_fragment<0>(x.words[0], top, bottom, out[4 * i]);
  nvfp4_fragment<1>(x.words[1], top, bottom, out[4 * i + 1]);
  nvfp4_fragment<2>(x.words[2], top, bottom, out[4 * i + 2]);
  nvfp4_fragment<3>(x.words[3], top, bottom, out[4 * i + 3]);
}

struct Mxfp8Case {
  std::uint32_t words[2];
  std::uint32_t scales;
};

__global__ void decode_mxfp8(const Mxfp8Case* cases, int count, Fragment* out) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= count) return;
  const Mxfp8Case& x = cases[i];
  mxfp8_fragment(x.words[0], x.words[1], decode_mxfp8_scale<0>(x.scales),
                 decode_mxfp8_scale<2>(x.scales), out[2 * i]);
  mxfp8_fragment(x.words[0], x.words[1], decode_mxfp8_scale<1>(x.scales),
                 decode_mxfp8_scale<3>(x.scales), out[2 * i + 1]);
}

template <typename Case, typename Kernel>
std::vector<std::uint32_t> run(const std::vector<Case>& cases, int fragments, Kernel kernel) {
  Case* in = nullptr;
  Fragment* out = nullptr;
  const std::size_t num = cases.size();
  std::vector<std::uint32_t> host(num * static_cast<std::size_t>(fragments) * 4);
  cudaMalloc(&in, num * sizeof(Case));
  cudaMalloc(&out, host.size() * 4);
  cudaMemset(out, 0xEE, host.size() * 4);
  cudaMemcpy(in, cases.data(), num * sizeof(Case), cudaMemcpyHostToDevice);
  kernel<<<static_cast<unsigned>((num + 127) / 128), 128>>>(in, static_cast<int>(num), out);
  cudaMemcpy(host.data(), out, host.size() * 4, cudaMemcpyDeviceToHost);
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess) std::printf("%s\n", cudaGetErrorString(status));
  cudaFree(in);
  cudaFree(out);
  return host;
}

float half_value(std::uint32_t word, int half) {
  const std::uint32_t bits = (word >> (16 * half) & 0xFFFFU) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

int faults = 0;

void expect(float got, float expected, const char* what, int a, int b, int place) {
  if (got == expected) return;
  if (++faults <= 10) {
    std::printf("%s element %d scale %d place %d: %a, expected %a\n", what, a, b, place,
                static_cast<double>(got), static_cast<double>(expected));
  }
}

void check_nvfp4() {
  std::vector<Nvfp4Case> cases;
  for (std::uint32_t scale = 0; scale < 0x7F; ++scale) {
    for (std::uint32_t shift = 0; shift < 16; ++shift) {
      Nvfp4Case x{};
      for (int s = 0; s < 4; ++s) {
        for (int i = 0; i < 8; ++i) {
          const std::uint32_t code =
              (static_cast<std::uint32_t>(i) * 5 + shift + static_cast<std::uint32_t>(s)) % 16;
          const std::uint32_t scale_of_row =
              (scale + static_cast<std::uint32_t>(s) * 31 + (i / 2 % 2 == 0 ? 0U : 64U)) % 0x7F;
          if (scale_of_row == 0) continue;  // packed as zeros
          x.words[s] ^= nvfp4_place(code, i);
        }
        const auto rotated = static_cast<std::uint32_t>(s) * 31;
        x.top |=
            std::uint32_t{pack_nvfp4_scale(static_cast<std::uint8_t>((scale + rotated) % 0x7F))}
            << (8 * s);
        x.bottom |= std::uint32_t{pack_nvfp4_scale(
                        static_cast<std::uint8_t>((scale + rotated + 64) % 0x7F))}
                    << (8 * s);
      }
      cases.push_back(x);
    }
  }
  const std::vector<std::uint32_t> got = run(cases, 4, decode_nvfp4);
  for (std::size_t n = 0; n < cases.size(); ++n) {
    for (int s = 0; s < 4; ++s) {
      for (int i = 0; i < 8; ++i) {
        const std::uint32_t code = nvfp4_code(cases[n].words[s], i);
        const std::uint32_t scales = i / 2 % 2 == 0 ? cases[n].top : cases[n].bottom;
        const std::uint32_t scale = scales >> (8 * s) & 0xFFU;
        const std::uint32_t word =
            got[(n * 4 + static_cast<std::size_t>(s)) * 4 + static_cast<std::size_t>(i / 2)];
        expect(half_value(word, i % 2) * kNvfp4FragmentScale,
               decode_e2m1(static_cast<std::uint8_t>(code)) *
                   nvfp4_scale_value(static_cast<std::uint8_t>(scale)),
               "NVFP4", static_cast<int>(code), static_cast<int>(scale), s * 8 + i);
      }
    }
  }
  std::printf("NVFP4: %zu values\n", cases.size() * 32);
}

void check_mxfp8() {
  std::vector<Mxfp8Case> cases;
  for (std::uint32_t scale = 10; scale <= 134; ++scale) {
    for (std::uint32_t shift = 0; shift < 256; ++shift) {
      Mxfp8Case x{};
      for (int i = 0; i < 8; ++i) {
        std::uint32_t element = (shift + static_cast<std::uint32_t>(i) * 37) % 256;
        if ((element & 0x7FU) == kE4m3NaN) element = 1;
        const int byte = mxfp8_byte(i);
        x.words[byte / 4] |= element << (byte % 4 * 8);
      }
      for (std::uint32_t k = 0; k < 4; ++k)
        x.scales |= (10 + (scale - 10 + k * 29) % 125) << (8 * k);
      cases.push_back(x);
    }
  }
  const std::vector<std::uint32_t> got = run(cases, 2, decode_mxfp8);
  for (std::size_t n = 0; n < cases.size(); ++n) {
    for (int h = 0; h < 2; ++h) {
      for (int i = 0; i < 8; ++i) {
        const int byte = mxfp8_byte(i);
        const std::uint32_t element = cases[n].words[byte / 4] >> (byte % 4 * 8) & 0xFFU;
        const std::uint32_t scale = cases[n].scales >> (8 * (h + 2 * (i / 2 % 2))) & 0xFFU;
        const std::uint32_t word =
            got[(n * 2 + static_cast<std::size_t>(h)) * 4 + static_cast<std::size_t>(i / 2)];
        expect(half_value(word, i % 2),
               decode_e4m3(static_cast<std::uint8_t>(element)) *
                   decode_e8m0(static_cast<std::uint8_t>(scale)),
               "MXFP8", static_cast<int>(element), static_cast<int>(scale), h * 8 + i);
      }
    }
  }
  std::printf("MXFP8: %zu values\n", cases.size() * 16);
}

}  // namespace
}  // namespace winnow::cuda

int main() {
  winnow::cuda::check_nvfp4();
  winnow::cuda::check_mxfp8();
  std::printf("fragments: %d faults\n", winnow::cuda::faults);
  return winnow::cuda::faults == 0 ? 0 : 1;
}
