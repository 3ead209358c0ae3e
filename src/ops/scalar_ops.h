// The reference operations, one scalar.cpp in each operation's folder.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

namespace winnow::ops {
struct AttentionParams;
struct DraftAttentionParams;
struct DraftHeadsParams;
struct DraftInsertParams;
struct EmbedParams;
struct IndexTopkParams;
struct KeepRowsParams;
struct LinearParams;
struct LoraParams;
struct MatrixSource;
struct MlpParams;
struct MoeParams;
struct OpContext;
class PackedMatrix;
struct QkvInsertParams;
struct RmsNormParams;
}  // namespace winnow::ops

namespace winnow::scalar {

std::unique_ptr<ops::PackedMatrix> pack(std::span<const ops::MatrixSource> stacked);
void keep_rows(const ops::OpContext& context, const ops::KeepRowsParams& params);
void embed(const ops::OpContext& context, const ops::EmbedParams& params);
void rms_norm(const ops::OpContext& context, const ops::RmsNormParams& params);
void linear(const ops::OpContext& context, const ops::LinearParams& params);
void lora(const ops::OpContext& context, const ops::LoraParams& params);
void qkv_insert(const ops::OpContext& context, const ops::QkvInsertParams& params);
void index_topk(const ops::OpContext& context, const ops::IndexTopkParams& params);
void attention(const ops::OpContext& context, const ops::AttentionParams& params);
void mlp(const ops::OpContext& context, const ops::MlpParams& params);
void moe(const ops::OpContext& context, const ops::MoeParams& params);
void draft_insert(const ops::OpContext& context, const ops::DraftInsertParams& params);
void draft_heads(const ops::OpContext& context, const ops::DraftHeadsParams& params);
void draft_attention(const ops::OpContext& context, const ops::DraftAttentionParams& params);

// Pieces that other reference operations are made of; none touches the context's scratch.

/// One row: out = x · rsqrt(mean(x²) + eps) · (offset + weight). out may be x.
void rms_norm_row(const float* x, const float* weight, float offset, float eps, std::int64_t width,
                  float* out);

/// Floats that mlp_in() needs of `workspace` for up to kMlpChunk tokens at a time.
inline constexpr std::int64_t kMlpChunk = 64;
std::int64_t mlp_workspace_floats(std::int64_t width);
void mlp_in(const ops::OpContext& context, const ops::MlpParams& params, float* workspace);

}  // namespace winnow::scalar
