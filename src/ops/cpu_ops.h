// The operations of the CPU backend, one cpu.cpp in each operation's folder. None holds state; the
// same kernels run for every batch shape, so a result depends on its own row alone.
#pragma once

#include <cstdint>
#include <span>

#include "ops/cpu_kernels.h"

namespace winnow::ops {
struct AttentionParams;
struct DraftAttentionParams;
struct DraftHeadsParams;
struct DraftInsertParams;
struct EmbedParams;
struct IndexTopkParams;
struct LinearParams;
struct LoraParams;
struct MlpParams;
struct MoeParams;
struct OpContext;
struct QkvInsertParams;
struct RmsNormParams;
}  // namespace winnow::ops

namespace winnow::cpu {

void embed(const Kernels& kernels, const ops::OpContext& context, const ops::EmbedParams& params);
void rms_norm(const Kernels& kernels, const ops::OpContext& context,
              const ops::RmsNormParams& params);
void linear(const Kernels& kernels, const ops::OpContext& context, const ops::LinearParams& params);
void lora(const Kernels& kernels, const ops::OpContext& context, const ops::LoraParams& params);
void qkv_insert(const Kernels& kernels, const ops::OpContext& context,
                const ops::QkvInsertParams& params);
void index_topk(const Kernels& kernels, const ops::OpContext& context,
                const ops::IndexTopkParams& params);
void attention(const Kernels& kernels, const ops::OpContext& context,
               const ops::AttentionParams& params);
void mlp(const Kernels& kernels, const ops::OpContext& context, const ops::MlpParams& params);
void moe(const Kernels& kernels, const ops::OpContext& context, const ops::MoeParams& params);
void draft_insert(const Kernels& kernels, const ops::OpContext& context,
                  const ops::DraftInsertParams& params);
void draft_heads(const Kernels& kernels, const ops::OpContext& context,
                 const ops::DraftHeadsParams& params);
void draft_attention(const Kernels& kernels, const ops::OpContext& context,
                     const ops::DraftAttentionParams& params);

}  // namespace winnow::cpu
