// The weights that the decoder needs, as typed views into the mapped checkpoint: this folder alone
// knows tensor names. Source: spec/model.md section 2. Nothing is copied but vectors (norms, router
// bias), which are widened to float.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/tensor_view.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/model_config.h"
#include "checkpoint/problem_list.h"
#include "formats/bulk_codecs.h"
#include "formats/quant_scheme.h"

namespace winnow {

/// W [rows = outputs][cols = inputs], row-major, as stored. By scheme:
///   kF32, kBF16  data F32 / BF16 [rows, cols]; no scales
///   kMxfp8       data F8_E4M3 [rows, cols]; scales U8 (E8M0) [rows, cols / 32]
///   kNvfp4       data U8 [rows, cols / 2], low nibble first; scales F8_E4M3 [rows, cols / 16];
///                w = code * scale * global_scale
struct WeightMatrix {
  std::string name;  // of the module, e.g. "language_model.model.layers.0.self_attn.q_proj"
  QuantScheme scheme = QuantScheme::kF32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  TensorView data;
  TensorView scales;  // data null without scales
  /// Multiplies; already inverted where the file's weight_global_scale divides. 1 unless kNvfp4.
  float global_scale = 1.F;

  std::int64_t num_bytes() const {
    return data.num_bytes() + (scales.data ? scales.num_bytes() : 0);
  }
};

/// An MLP or expert: down(swiglu(gate(h), up(h))). In an expert w1 is gate, w3 up, w2 down.
struct GatedMlp {
  WeightMatrix gate;  // [intermediate][hidden]
  WeightMatrix up;    // [intermediate][hidden]
  WeightMatrix down;  // [hidden][intermediate]
};

struct MoeWeights {
  WeightMatrix router;             // [experts][hidden], F32 as published (BF16 is taken as it is)
  std::vector<float> router_bias;  // [experts] e_score_correction_bias: enters the choice only
  std::vector<GatedMlp> experts;   // [experts]
  GatedMlp shared;
};

struct IndexWeights {
  WeightMatrix q;             // [index_heads * index_head_dim][hidden]
  WeightMatrix k;             // [index_head_dim][hidden]
  std::vector<float> q_norm;  // [index_head_dim]
  std::vector<float> k_norm;  // [index_head_dim]
};

/// Norm weights are raw: the norm multiplies by (1 + w) in FP32.
struct LayerWeights {
  std::vector<float> input_norm;           // [hidden]
  std::vector<float> post_attention_norm;  // [hidden]
  WeightMatrix q;                          // [heads * head_dim][hidden]
  WeightMatrix k;                          // [kv_heads * head_dim][hidden]
  WeightMatrix v;                          // [kv_heads * head_dim][hidden]
  WeightMatrix o;                          // [hidden][heads * head_dim]
  std::vector<float> q_norm;               // [head_dim], shared by all heads
  std::vector<float> k_norm;               // [head_dim]
  std::optional<IndexWeights> index;       // in sparse layers
  std::variant<GatedMlp, MoeWeights> mlp;
};

/// A tensor of the file that serving text does not use, with the reason.
struct IgnoredTensor {
  std::string name;
  std::int64_t num_bytes = 0;
  const char* reason = "";
  bool is_part_of_another_model = true;  // vision, MTP, drafter; else a left-over of quantisation
};

struct ModelWeights {
  WeightMatrix embed;  // [vocab][hidden]
  std::vector<LayerWeights> layers;
  std::vector<float> final_norm;  // [hidden]
  WeightMatrix lm_head;           // [vocab][hidden]; the embedding's views when tied
  std::vector<IgnoredTensor> ignored;
};

struct WeightLoadOptions {
  /// Reads every scale and refuses NaN, negative or useless ones: one bad scale silences a matrix
  /// or fills it with NaN. Touches the scale bytes of the whole checkpoint once.
  bool check_scales = true;
  /// Leaves them mapped for the packer that comes next; else their pages are let go once checked.
  bool keep_scales = true;
};

/// Matches the checkpoint with the config: every tensor the model needs must be there with the
/// expected shape and a dtype that is read, and every tensor of the file must be used or ignored on
/// purpose (vision, MTP, drafter, activation scales). Views live as long as `checkpoint`.
/// Throws Error{kInvalidCheckpoint} that lists the problems.
ModelWeights load_weights(const Checkpoint& checkpoint, const ModelConfig& config,
                          const WeightLoadOptions& options = {});

/// Adds problems instead of throwing for them; what has a problem is then incomplete.
ModelWeights load_weights(const Checkpoint& checkpoint, const ModelConfig& config,
                          const WeightLoadOptions& options, ProblemList& problems);

/// Rows [row_begin, row_end) as float, [row_end - row_begin][cols]: MXFP8 e4m3 * 2^e, NVFP4
/// (code * scale) * global_scale. The reference path; the same bits with any `codecs`.
void dequantize_rows(const WeightMatrix& matrix, std::int64_t row_begin, std::int64_t row_end,
                     float* out, const BulkCodecs& codecs = kScalarCodecs);

/// Lets go of the matrix's pages: called by whoever has packed it (Checkpoint::drop).
void drop_pages(const Checkpoint& checkpoint, const WeightMatrix& matrix);

}  // namespace winnow
