#include "ops/linear/cuda_fast.h"

#include <algorithm>
#include <cstdint>

#include "ops/cuda/context.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/op_context.h"

namespace winnow::cuda {
namespace {

/// Whether `next`'s tiles follow `part`'s in memory and in rows, as one part would have them.
bool continues(const MatrixPart& part, const MatrixPart& next) {
  return part.scheme == next.scheme && part.matrix_scale == next.matrix_scale &&
         part.rows % kTileRows == 0 && part.first_row + part.rows == next.first_row &&
         part.data + part.num_tiles * part.num_chunks * chunk_bytes(part.scheme) == next.data;
}

/// Rows of x that the decode kernel reads as pairs of floats.
bool is_direct(const FastProjection& p) {
  return p.num_tokens <= kMaxDirectTokens && p.x_stride % 2 == 0 &&
         reinterpret_cast<std::uintptr_t>(p.x) % sizeof(float2) == 0;
}

FastLinear linear_of(const FastProjection& p, int part, std::int64_t first, std::int64_t count) {
  return {.w = p.w.parts[static_cast<std::size_t>(part)],
          .x = p.x + first * p.x_stride,
          .x_stride = p.x_stride,
          .y = p.y + first * p.y_stride,
          .y_stride = p.y_stride,
          .num_tokens = count,
          .accumulate = p.accumulate};
}

void project_few(CUstream_st* stream, const FastProjection& p, std::byte* packed) {
  for (std::int64_t first = 0; first < p.num_tokens; first += kMaxDecodeTokens) {
    const std::int64_t count = std::min(kMaxDecodeTokens, p.num_tokens - first);
    const bool direct = is_direct(p);
    if (!direct) {
      pack_decode_input(stream, p.x + first * p.x_stride, p.x_stride, count, p.w.num_chunks(),
                        packed);
    }
    for (int part = 0; part < p.w.count; ++part) {
      decode_linear(stream, linear_of(p, part, first, count), direct ? nullptr : packed);
    }
  }
}

void project_many(const Context& context, const FastProjection& p, std::byte* packed,
                  std::int64_t num_bytes) {
  const std::int64_t num_chunks = p.w.num_chunks();
  const std::int64_t round =
      std::max(num_bytes / packed_bytes(kLeastPackedTokens, num_chunks), std::int64_t{1}) *
      kLeastPackedTokens;
  std::int64_t rows = 0;
  for (int part = 0; part < p.w.count; ++part) {
    rows += p.w.parts[static_cast<std::size_t>(part)].rows;
  }
  for (std::int64_t first = 0; first < p.num_tokens; first += round) {
    const std::int64_t count = std::min(round, p.num_tokens - first);
    const int block = prefill_block_tokens(rows, count, context.num_multiprocessors());
    pack_prefill_input(context.stream(), p.x + first * p.x_stride, p.x_stride, count, num_chunks,
                       block, packed);
    for (int part = 0; part < p.w.count; ++part) {
      prefill_linear(context.stream(), linear_of(p, part, first, count), packed, block,
                     context.num_multiprocessors());
    }
  }
}

}  // namespace

FastParts fast_parts(const ops::PackedMatrix& w) {
  FastParts out;
  if (w.cols() % kChunkCols != 0) return out;
  for (const MatrixPart& part : static_cast<const CudaMatrix&>(w).parts()) {
    if (part.rows == 0) continue;
    if (!part.fits_bf16) return {};
    if (out.count > 0) {
      MatrixPart& last = out.parts[static_cast<std::size_t>(out.count - 1)];
      if (continues(last, part)) {
        last.rows += part.rows;
        last.num_tiles += part.num_tiles;
        continue;
      }
    }
    if (out.count == FastParts::kMost) return {};
    out.parts[static_cast<std::size_t>(out.count++)] = part;
  }
  return out;
}

std::int64_t packed_bytes(std::int64_t num_tokens, std::int64_t num_chunks) {
  if (num_tokens <= kMaxDecodeTokens) return packed_decode_bytes(num_tokens, num_chunks);
  return packed_prefill_bytes(num_tokens, num_chunks, kLeastPackedTokens);
}

void project(const Context& context, const FastProjection& projection, std::byte* packed,
             std::int64_t num_bytes) {
  bool has_prefill = true;
  for (int part = 0; part < projection.w.count; ++part) {
    has_prefill =
        has_prefill && has_prefill_kernel(projection.w.parts[static_cast<std::size_t>(part)]);
  }
  if (projection.num_tokens <= kMaxDecodeTokens || !has_prefill) {
    project_few(context.stream(), projection, packed);
  } else {
    project_many(context, projection, packed, num_bytes);
  }
}

namespace fast {

void linear(const ops::OpContext& context, const ops::LinearParams& params) {
  const FastParts parts = fast_parts(*params.w);
  if (parts.count == 0) return exact::linear(context, params);
  if (params.num_rows == 0) return;
  DeviceScratch& scratch = context.cuda->scratch();
  const std::int64_t num_bytes =
      std::min(packed_bytes(params.num_rows, parts.num_chunks()), scratch.num_bytes());
  project(*context.cuda,
          {.w = parts,
           .x = params.x,
           .x_stride = params.x_stride,
           .y = params.y,
           .y_stride = params.y_stride,
           .num_tokens = params.num_rows,
           .accumulate = params.accumulate},
          scratch.take(num_bytes), num_bytes);
  scratch.reset();
}

}  // namespace fast
}  // namespace winnow::cuda
