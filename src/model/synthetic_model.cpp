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

/// Weights of one model, each with a seed of its own.
class RandomWeights {
 public:
  RandomWeights(const ops::Backend& backend, std::uint64_t seed) : backend_(backend), seed_(seed) {
    if (!backend_.make_random) {
      throw Error(ErrorCode::kUnsupported,
                  "backend " + backend_.name + " does not make synthetic weights",
                  "use --device cuda");
    }
  }

  std::unique_ptr<ops::PackedMatrix> matrix(const std::vector<ops::MatrixShape>& stacked) {
    return backend_.make_random(stacked, ++seed_);
  }
  ops::Array<float> zeros(std::int64_t count) { return {backend_.memory, count, "weights"}; }

  /// bf16 values of both signs near 1: small patterns repeated, since only their size matters.
  ops::Array<std::byte> table(std::int64_t num_values, const char* what) {
    const std::int64_t num_bytes = num_values * 2;
    ops::Array<std::byte> bytes(backend_.memory, num_bytes, what);
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

  PackedMlp mlp(QuantScheme scheme, std::int64_t hidden, std::int64_t width) {
    PackedMlp packed;
    packed.gate_up = matrix({{scheme, width, hidden}, {scheme, width, hidden}});
    packed.down = matrix({{scheme, hidden, width}});
    return packed;
  }

 private:
  const ops::Backend& backend_;
  std::uint64_t seed_;
};

class Maker {
 public:
  Maker(const ModelConfig& config, const ops::Backend& backend, const PackingProgress& progress)
      : config_(config), backend_(backend), progress_(progress), random_(backend, 0) {}

  PackedWeights make() {
    PackedWeights weights;
    const std::int64_t hidden = config_.hidden_size;
    weights.lm_head = random({{QuantScheme::kBF16, config_.vocab_size, hidden}});
    weights.embedding_copy = random_.table(config_.vocab_size * hidden, "the embedding table");
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
    return random_.matrix(stacked);
  }
  ops::Array<float> zeros(std::int64_t count) { return random_.zeros(count); }

  PackedMlp mlp(QuantScheme scheme, std::int64_t width) {
    return random_.mlp(scheme, config_.hidden_size, width);
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
  RandomWeights random_;
};

PackedDrafter make_drafter_weights(const DrafterConfig& config, const ops::Backend& backend) {
  RandomWeights random(backend, std::uint64_t{1} << 32);
  PackedDrafter weights;
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t kv = std::int64_t{config.num_kv_heads} * config.head_dim;
  const std::int64_t heads = std::int64_t{config.num_heads} * config.head_dim;
  for (std::int32_t i = 0; i < config.num_streams(); ++i) {
    weights.fc.push_back(random.matrix({{QuantScheme::kBF16, hidden, hidden}}));
  }
  weights.hidden_norm = random.zeros(hidden);
  weights.final_norm = random.zeros(hidden);
  weights.context_kv = random.matrix(std::vector<ops::MatrixShape>(
      static_cast<std::size_t>(2 * config.num_layers), {kOthers, kv, hidden}));
  weights.context_k_norm = random.zeros(std::int64_t{config.num_layers} * config.head_dim);
  weights.layers.resize(static_cast<std::size_t>(config.num_layers));
  for (PackedDrafterLayer& layer : weights.layers) {
    layer.input_norm = random.zeros(hidden);
    layer.attention_norm = random.zeros(hidden);
    layer.q_norm = random.zeros(config.head_dim);
    layer.k_norm = random.zeros(config.head_dim);
    layer.qkv =
        random.matrix({{kOthers, heads, hidden}, {kOthers, kv, hidden}, {kOthers, kv, hidden}});
    layer.output = random.matrix({{kOthers, hidden, heads}});
    layer.mlp = random.mlp(kOthers, hidden, config.ffn_width);
  }
  weights.markov_w1.copy = random.table(std::int64_t{config.vocab_size} * config.markov_rank,
                                        "the drafter's token table");
  weights.markov_w1.rows = weights.markov_w1.copy.data();
  weights.markov_w2 = random.matrix({{QuantScheme::kBF16, config.vocab_size, config.markov_rank}});
  weights.confidence_hidden = random.matrix({{QuantScheme::kBF16, 1, hidden}});
  weights.confidence_markov = random.matrix({{QuantScheme::kBF16, 1, config.markov_rank}});
  return weights;
}

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

DrafterConfig m31_drafter_config(std::int32_t num_target_layers) {
  const ModelConfig target = m31_config(1);
  DrafterConfig config;
  config.num_layers = 5;
  config.hidden_size = target.hidden_size;
  config.vocab_size = target.vocab_size;
  config.num_heads = target.num_heads;
  config.num_kv_heads = target.num_kv_heads;
  config.head_dim = target.head_dim;
  config.rotary_dim = target.rotary_dim;
  config.rope_theta = target.rope_theta;
  config.rms_eps = target.rms_eps;
  config.swiglu_alpha = target.swiglu_alpha;
  config.swiglu_limit = target.swiglu_limit;
  config.ffn_width = 12288;
  config.sliding_window = 4096;
  config.block_size = 7;
  config.markov_rank = 256;
  config.noise_token = 200058;
  constexpr std::int32_t kStreams = 5;
  const std::int32_t num_streams = std::min(kStreams, num_target_layers);
  for (std::int32_t i = 0; i < num_streams; ++i) {
    config.target_layers.push_back((i + 1) * num_target_layers / num_streams - 1);
  }
  config.has_confidence_head = true;
  config.confidence_uses_markov = true;
  config.quant_method = "mxfp8";
  return config;
}

std::unique_ptr<DsparkDrafter> make_synthetic_drafter(const DrafterConfig& config,
                                                      const Decoder& target,
                                                      std::int64_t max_positions) {
  return std::make_unique<DsparkDrafter>(config, make_drafter_weights(config, target.backend()),
                                         target.shared_tables(), target.backend(), max_positions);
}

void CountExperts::on_experts(int /*layer*/, const ops::BatchView& /*batch*/,
                              std::span<const std::int32_t> experts,
                              std::span<const float> /*weights*/) {
  num_distinct_ += std::ssize(std::set<std::int32_t>(experts.begin(), experts.end()));
}

}  // namespace winnow
