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

/// Whether no part needs a packed copy of x.
bool is_direct(const Context& context, const FastProjection& p) {
  if (p.x_stride % 2 != 0 || reinterpret_cast<std::uintptr_t>(p.x) % sizeof(float2) != 0) {
    return false;
  }
  for (int part = 0; part < p.w.count; ++part) {
    if (!takes_direct_input(p.w.parts[static_cast<std::size_t>(part)], p.num_tokens,
                            context.num_multiprocessors())) {
      return false;
    }
  }
  return true;
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

/// middle_tokens() of all parts; 0 where they differ.
int common_middle_tokens(const FastParts& w, std::int64_t num_tokens) {
  int tokens = middle_tokens(w.parts[0], num_tokens);
  for (int part = 1; part < w.count; ++part) {
    if (middle_tokens(w.parts[static_cast<std::size_t>(part)], num_tokens) != tokens) tokens = 0;
  }
  return tokens;
}

void project_few(Context& context, const FastProjection& p, std::byte* packed) {
  for (std::int64_t first = 0; first < p.num_tokens; first += kMaxDecodeTokens) {
    const std::int64_t count = std::min(kMaxDecodeTokens, p.num_tokens - first);
    if (const int block = common_middle_tokens(p.w, count); block > 0) {
      pack_prefill_input(context.stream(), p.x + first * p.x_stride, p.x_stride, count,
                         p.w.num_chunks(), block, packed);
      for (int part = 0; part < p.w.count; ++part) {
        middle_linear(context.stream(), linear_of(p, part, first, count), packed,
                      context.num_multiprocessors());
      }
      continue;
    }
    const bool direct = is_direct(context, p);
    if (!direct) {
      pack_decode_input(context.stream(), p.x + first * p.x_stride, p.x_stride, count,
                        p.w.num_chunks(), packed);
    }
    for (int part = 0; part < p.w.count; ++part) {
      decode_linear(context.stream(), linear_of(p, part, first, count), direct ? nullptr : packed,
                    context.num_multiprocessors());
    }
  }
}

constexpr std::int64_t kRoundTokens = 256;  // rounds but the last are multiples of it

void project_many(Context& context, const FastProjection& p, std::byte* workspace,
                  std::int64_t workspace_bytes) {
  const std::int64_t num_chunks = p.w.num_chunks();
  const int multiprocessors = context.num_multiprocessors();
  std::int64_t rows = 0;
  for (int part = 0; part < p.w.count; ++part) {
    rows += p.w.parts[static_cast<std::size_t>(part)].rows;
  }
  const int block = prefill_block_tokens(rows, p.num_tokens, num_chunks, multiprocessors);
  const std::int64_t packed_bytes = packed_prefill_bytes(p.num_tokens, num_chunks, block);
  const bool has_partials =
      packed_bytes + prefill_partial_bound(context.num_multiprocessors()) <= workspace_bytes;
  pack_prefill_input(context.stream(), p.x, p.x_stride, p.num_tokens, num_chunks, block, workspace);
  for (int part = 0; part < p.w.count; ++part) {
    prefill_linear(context.stream(), linear_of(p, part, 0, p.num_tokens),
                   {.packed = workspace,
                    .partials = has_partials ? workspace + packed_bytes : nullptr,
                    .counters = context.counters()},
                   block, multiprocessors);
  }
}

bool has_prefill(const FastParts& w) {
  for (int part = 0; part < w.count; ++part) {
    if (!has_prefill_kernel(w.parts[static_cast<std::size_t>(part)])) return false;
  }
  return true;
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

ProjectionRound plan_round(Context& context, std::int64_t num_tokens, std::int64_t num_chunks,
                           std::int64_t token_bytes) {
  if (num_tokens <= kMaxDecodeTokens) {
    return {num_tokens, packed_decode_bytes(num_tokens, num_chunks)};
  }
  constexpr std::int64_t kAlignments = 4096;  // of what is taken from scratch
  const std::int64_t scratch = context.scratch().num_bytes() - kAlignments;
  const std::int64_t piece =
      kRoundTokens * token_bytes + packed_prefill_bytes(kRoundTokens, num_chunks, kRoundTokens);
  const std::int64_t partials = prefill_partial_bound(context.num_multiprocessors());
  const std::int64_t room = scratch - partials >= piece ? scratch - partials : scratch;
  const std::int64_t tokens =
      std::min(num_tokens, std::max(room / piece, std::int64_t{1}) * kRoundTokens);
  return {tokens, packed_prefill_bytes(tokens, num_chunks, kRoundTokens) + scratch - room};
}

void project(Context& context, const FastProjection& projection, std::byte* workspace,
             std::int64_t workspace_bytes) {
  if (projection.num_tokens <= kMaxDecodeTokens || !has_prefill(projection.w)) {
    project_few(context, projection, workspace);
  } else {
    project_many(context, projection, workspace, workspace_bytes);
  }
}

namespace fast {

void linear(const ops::OpContext& context, const ops::LinearParams& params) {
  const FastParts parts = fast_parts(*params.w);
  if (parts.count == 0) return exact::linear(context, params);
  if (params.num_rows == 0) return;
  DeviceScratch& scratch = context.cuda->scratch();
  const ProjectionRound round = plan_round(*context.cuda, params.num_rows, parts.num_chunks(), 0);
  std::byte* const workspace = scratch.take(round.workspace_bytes);
  for (std::int64_t first = 0; first < params.num_rows; first += round.num_tokens) {
    project(*context.cuda,
            {.w = parts,
             .x = params.x + first * params.x_stride,
             .x_stride = params.x_stride,
             .y = params.y + first * params.y_stride,
             .y_stride = params.y_stride,
             .num_tokens = std::min(round.num_tokens, params.num_rows - first),
             .accumulate = params.accumulate},
            workspace, round.workspace_bytes);
  }
  scratch.reset();
}

}  // namespace fast
}  // namespace winnow::cuda
