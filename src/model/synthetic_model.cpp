#include "model/synthetic_model.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"

namespace winnow {
namespace {

constexpr QuantScheme kExperts = QuantScheme::kNvfp4;
constexpr QuantScheme kOthers = QuantScheme::kMxfp8;

std::int64_t scheme_bytes(QuantScheme scheme, std::int64_t values) {
  switch (scheme) {
    case QuantScheme::kNvfp4:
      return values / 2 + values / 16;
    case QuantScheme::kMxfp8:
      return values + values / 32;
    case QuantScheme::kBF16:
      return values * 2;
    case QuantScheme::kF32:
      return values * 4;
  }
  return 0;
}

class Maker {
 public:
  Maker(const ModelConfig& config, const ops::Backend& backend, const PackingProgress& progress)
      : config_(config), backend_(backend), progress_(progress) {
    if (!backend_.make_random) {
      throw Error(ErrorCode::kUnsupported,
                  "backend " + backend_.name + " does not make synthetic weights",
                  "use --device cuda");
    }
  }

  PackedWeights make() {
    PackedWeights weights;
    const std::int64_t hidden = config_.hidden_size;
    weights.lm_head = random({{QuantScheme::kBF16, config_.vocab_size, hidden}});
    weights.embedding_copy = table();
    weights.embedding = weights.embedding_copy.data();
    weights.final_norm = zeros(hidden);
    weights.layers.resize(config_.layers.size());
    for (std::size_t i = 0; i < weights.layers.size(); ++i) {
      fill_layer(config_.layers[i], weights.layers[i]);
      if (progress_) progress_(static_cast<std::int64_t>(i) + 1, std::ssize(weights.layers));
    }
    return weights;
  }

 private:
  std::unique_ptr<ops::PackedMatrix> random(const std::vector<ops::MatrixShape>& stacked) {
    return backend_.make_random(stacked, ++seed_);
  }
  ops::Array<float> zeros(std::int64_t count) { return {backend_.memory, count, "weights"}; }

  ops::Array<std::byte> table() {
    // bf16 values of both signs near 1: small patterns repeated, since only their size matters.
    const std::int64_t num_bytes = std::int64_t{config_.vocab_size} * config_.hidden_size * 2;
    ops::Array<std::byte> bytes(backend_.memory, num_bytes, "the embedding table");
    constexpr std::int64_t kPattern = std::int64_t{1} << 24;
    std::vector<std::uint16_t> pattern(kPattern / 2);
    std::uint32_t state = 1;
    for (std::uint16_t& value : pattern) {
      state = state * 1664525U + 1013904223U;
      value = static_cast<std::uint16_t>(0x3F00U | (state >> 16U & 0x807FU));
    }
    for (std::int64_t at = 0; at < num_bytes; at += kPattern) {
      backend_.memory->upload(bytes.data() + at, pattern.data(),
                              std::min(kPattern, num_bytes - at));
    }
    return bytes;
  }

  PackedMlp mlp(QuantScheme scheme, std::int64_t width) {
    const std::int64_t hidden = config_.hidden_size;
    PackedMlp packed;
    packed.gate_up = random({{scheme, width, hidden}, {scheme, width, hidden}});
    packed.down = random({{scheme, hidden, width}});
    return packed;
  }

  void fill_layer(const LayerConfig& layer, PackedLayer& packed) {
    const std::int64_t hidden = config_.hidden_size;
    const std::int64_t head = config_.head_dim;
    packed.input_norm = zeros(hidden);
    packed.attention_norm = zeros(hidden);
    packed.q_norm = zeros(head);
    packed.k_norm = zeros(head);
    std::vector<ops::MatrixShape> qkv{{kOthers, config_.num_heads * head, hidden},
                                      {kOthers, config_.num_kv_heads * head, hidden},
                                      {kOthers, config_.num_kv_heads * head, hidden}};
    if (layer.is_sparse_attention) {
      packed.index_q_norm = zeros(config_.index_head_dim);
      packed.index_k_norm = zeros(config_.index_head_dim);
      qkv.push_back({kOthers, config_.index_num_heads * config_.index_head_dim, hidden});
      qkv.push_back({kOthers, config_.index_head_dim, hidden});
    }
    packed.qkv = random(qkv);
    packed.output = random({{kOthers, hidden, config_.num_heads * head}});
    if (!layer.is_moe) {
      packed.mlp = mlp(kOthers, config_.dense_intermediate);
      return;
    }
    PackedMoe& moe = packed.moe;
    moe.router = random({{QuantScheme::kF32, config_.num_experts, hidden}});
    moe.router_bias = zeros(config_.num_experts);
    for (std::int32_t e = 0; e < config_.num_experts; ++e) {
      moe.experts.push_back(mlp(kExperts, config_.moe_intermediate));
    }
    moe.shared = mlp(kOthers, config_.shared_intermediate);
    for (const PackedMlp& expert : moe.experts) moe.expert_views.push_back(expert.view());
    if (backend_.bind_experts) {
      moe.table = backend_.bind_experts(moe.expert_views, moe.shared.view());
    }
  }

  const ModelConfig& config_;
  const ops::Backend& backend_;
  const PackingProgress& progress_;
  std::uint64_t seed_ = 0;
};

}  // namespace

ModelConfig m31_config(std::int32_t num_layers) {
  ModelConfig config;
  config.model_type = "minimax_m3_1";
  config.dtype = "bfloat16";
  config.vocab_size = 200064;
  config.hidden_size = 6144;
  config.num_layers = num_layers;
  config.layers.assign(static_cast<std::size_t>(num_layers),
                       {.is_sparse_attention = true, .is_moe = true});
  config.max_position_embeddings = 1 << 20;
  config.rms_eps = 1e-6;
  config.num_heads = 64;
  config.num_kv_heads = 4;
  config.head_dim = 128;
  config.rotary_dim = 64;
  config.rope_theta = 5e6;
  config.index_num_heads = 4;
  config.index_head_dim = 128;
  config.block_tokens = 128;
  config.top_k_blocks = 16;
  config.local_blocks = 1;
  config.init_blocks = 0;
  config.dense_intermediate = 12288;
  config.moe_intermediate = 3072;
  config.shared_intermediate = 3072;
  config.num_experts = 128;
  config.top_k_experts = 4;
  config.routed_scaling_factor = 2.0;
  config.swiglu_alpha = 1.702;
  config.swiglu_limit = 7.0;
  config.quantization.kv_cache = "NVFP4";
  return config;
}

std::int64_t m31_layer_bytes() {
  const ModelConfig config = m31_config(1);
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t heads =
      config.num_heads + 2 * config.num_kv_heads + config.index_num_heads + 1;
  const std::int64_t expert = 3 * hidden * config.moe_intermediate;
  return scheme_bytes(kOthers, heads * config.head_dim * hidden) +
         scheme_bytes(kOthers, std::int64_t{config.num_heads} * config.head_dim * hidden) +
         scheme_bytes(QuantScheme::kF32, config.num_experts * hidden) +
         scheme_bytes(kExperts, expert) * config.num_experts + scheme_bytes(kOthers, expert);
}

std::int64_t m31_head_bytes() {
  const ModelConfig config = m31_config(1);
  return 2 * scheme_bytes(QuantScheme::kBF16, std::int64_t{config.vocab_size} * config.hidden_size);
}

std::unique_ptr<Decoder> make_synthetic_decoder(const ModelConfig& config,
                                                const ops::Backend& backend,
                                                const DecoderOptions& options,
                                                const PackingProgress& progress) {
  PackedWeights weights = Maker(config, backend, progress).make();
  return std::make_unique<Decoder>(config, std::move(weights), backend, options);
}

void CountExperts::on_experts(int /*layer*/, const ops::BatchView& /*batch*/,
                              std::span<const std::int32_t> experts,
                              std::span<const float> /*weights*/) {
  num_distinct_ += std::ssize(std::set<std::int32_t>(experts.begin(), experts.end()));
}

}  // namespace winnow
