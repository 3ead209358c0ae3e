// Linear for at most 16 tokens and matrices that one wave of small blocks covers: a block for each
// tile of 16 rows. Five such blocks fit on a multiprocessor, and they may start while the kernel
// before still runs: their first chunks of weights are then on the way before x is there. Floor:
// bytes of the weights over memory bandwidth.
// MXFP8 for two to eight tokens is cuda_fast_decode_stream.cu's instead.
//
// A block that converts x itself saves a launch for one token of the fused QKV (16.8 us, not 17.2)
// and loses elsewhere (output projection 17.3 us, not 16.4).
#include "ops/linear/cuda_fast_decode_small.cuh"

#include <cuda_runtime.h>

#include "ops/cuda/check.h"
#include "ops/cuda/launch.cuh"
#include "ops/linear/cuda_fast.h"

namespace winnow::cuda {
namespace linear_decode {

template <typename C>
__global__ void __launch_bounds__(kSmallThreads, C::kBlocks)
    sm90_linear_decode_small(const DecodeParams p) {
  __shared__ float partials[C::kSharedFloats];
  ptx::griddepcontrol_launch_dependents();
  SmallTile<C> tile;
  tile.begin(p, static_cast<int>(blockIdx.x));
  ptx::griddepcontrol_wait();
  tile.finish(p, partials);
}

template <typename C>
void launch_small_config(cudaStream_t stream, const DecodeParams& params) {
  launch_overlapping(
      sm90_linear_decode_small<C>,
      {.grid = dim3(static_cast<unsigned>(params.num_tiles)), .block = dim3(kSmallThreads)}, stream,
      params, "sm90_linear_decode_small");
}

template <QuantScheme S>
void launch_small_scheme(cudaStream_t stream, const DecodeParams& params, int num_multiprocessors) {
  // BF16 chunks are twice as long as MXFP8's, so half as many are as many bytes in flight.
  constexpr int kDepth = S == QuantScheme::kBF16 ? 2 : 4;
  if (params.num_tokens > kTokenTile) {
    launch_small_config<SmallConfig<S, 2, 4, 3>>(stream, params);
  } else if (params.num_tiles <= 3 * num_multiprocessors) {
    launch_small_config<SmallConfig<S, 1, kDepth + kDepth / 2, 3>>(stream, params);
  } else {
    launch_small_config<SmallConfig<S, 1, kDepth, kSmallTiles>>(stream, params);
  }
}

bool launch_small(cudaStream_t stream, QuantScheme scheme, const DecodeParams& params,
                  int num_multiprocessors) {
  // Sixteen tokens' x leaves registers for three blocks a multiprocessor.
  const int most_tiles = params.num_tokens <= kTokenTile ? kSmallTiles : 3;
  if (params.num_tokens > 2 * kTokenTile || params.num_tiles > most_tiles * num_multiprocessors) {
    return false;
  }
  return with_fast_scheme(scheme, [&]<QuantScheme S>() {
    launch_small_scheme<S>(stream, params, num_multiprocessors);
  });
}

}  // namespace linear_decode
}  // namespace winnow::cuda
