// The operations of the CUDA backend, one cuda*.cu in each operation's folder. All pointers of the
// parameters are device pointers; work is only submitted to the context's stream, nothing waits
// and nothing allocates, so that a step can be captured in a graph.
//
// Two sets. `exact` follows the operation's written reduction order and gives the scalar
// reference's bits for every shape and format. `fast` uses tensor cores where a shape has a kernel
// (head_dim 128, blocks of 128, top-16, hidden sizes in multiples of 64): its own order, fixed by
// the row's shape as well, so a result never depends on the batch.
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
class ExpertTable;
struct IndexTopkParams;
struct KeepRowsParams;
struct LinearParams;
struct LoraParams;
struct LoraSite;
class LoraTable;
struct MatrixShape;
struct MatrixSource;
struct MlpParams;
struct MlpWeights;
struct MoeParams;
struct OpContext;
class PackedMatrix;
struct QkvInsertParams;
struct RmsNormParams;
struct SampleParams;
}  // namespace winnow::ops

namespace winnow::cuda {
class Context;

std::unique_ptr<ops::PackedMatrix> pack(Context& context,
                                        std::span<const ops::MatrixSource> stacked);
std::unique_ptr<ops::PackedMatrix> make_random(Context& context,
                                               std::span<const ops::MatrixShape> stacked,
                                               std::uint64_t seed);
std::unique_ptr<ops::ExpertTable> bind_experts(Context& context,
                                               std::span<const ops::MlpWeights> experts,
                                               const ops::MlpWeights& shared);
std::unique_ptr<ops::LoraTable> bind_lora(Context& context,
                                          std::span<const ops::LoraSite* const> sites);

/// One way only: the token is a matter of integers and of single roundings in a written order.
void sample(const ops::OpContext& context, const ops::SampleParams& params);

namespace exact {
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
}  // namespace exact

// Each falls back to `exact` for a shape it has no kernel for.
namespace fast {
void rms_norm(const ops::OpContext& context, const ops::RmsNormParams& params);
void linear(const ops::OpContext& context, const ops::LinearParams& params);
void qkv_insert(const ops::OpContext& context, const ops::QkvInsertParams& params);
void index_topk(const ops::OpContext& context, const ops::IndexTopkParams& params);
void attention(const ops::OpContext& context, const ops::AttentionParams& params);
void mlp(const ops::OpContext& context, const ops::MlpParams& params);
void moe(const ops::OpContext& context, const ops::MoeParams& params);
void draft_attention(const ops::OpContext& context, const ops::DraftAttentionParams& params);
}  // namespace fast

}  // namespace winnow::cuda
