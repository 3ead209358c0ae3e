#include "ops/bench/m3_layer.h"

#include <cmath>
#include <cstring>
#include <numeric>

#include "base/random.h"

namespace winnow::ops {
namespace {

constexpr std::int32_t kBlockTokens = 128;
constexpr int kLayer = 0;

std::vector<std::uint32_t> random_words(std::int64_t count, std::uint32_t seed) {
  std::vector<std::uint32_t> words(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < words.size(); i += 4) {
    const Philox4 draws = philox4x32(seed, {static_cast<std::uint32_t>(i / 4), 0, 0, 0});
    for (std::size_t j = 0; j < 4 && i + j < words.size(); ++j) words[i + j] = draws[j];
  }
  return words;
}

std::vector<std::uint8_t> random_bytes(std::int64_t count, std::uint32_t seed, std::uint8_t low,
                                       std::uint8_t span) {
  const std::vector<std::uint32_t> words = random_words((count + 3) / 4, seed);
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(count));
  std::memcpy(bytes.data(), words.data(), bytes.size());
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(low + byte % span);
  return bytes;
}

/// Checkpoint bytes of one matrix whose products keep the size of their input.
struct RandomSource {
  std::vector<std::uint8_t> data;
  std::vector<std::uint8_t> scales;
  MatrixSource source;

  RandomSource(QuantScheme scheme, std::int64_t rows, std::int64_t cols) {
    const std::int64_t count = rows * cols;
    source = {.scheme = scheme, .rows = rows, .cols = cols};
    const auto deviation = 1.0F / std::sqrt(static_cast<float>(cols));
    switch (scheme) {
      case QuantScheme::kNvfp4:
        data = random_bytes(count / 2, 1, 0, 255);
        scales = random_bytes(count / 16, 2, 0x30, 16);  // 0.5 … 1.9
        source.matrix_scale = deviation / 3.0F;
        break;
      case QuantScheme::kMxfp8:
        data = random_bytes(count, 3, 0x20, 0x20);  // 2^-3 … 2
        for (std::size_t i = 0; i < data.size(); i += 2) data[i] |= 0x80U;
        scales = random_bytes(count / 32, 4, 120, 2);  // 2^-7, 2^-6
        break;
      case QuantScheme::kBF16:
        data = random_bytes(count * 2, 5, 0x00, 255);
        for (std::size_t i = 1; i < data.size(); i += 2) {
          data[i] = static_cast<std::uint8_t>(0x3C | (data[i] & 0x80U));  // ±2^-7 …
        }
        break;
      case QuantScheme::kF32: {
        const std::vector<float> values = random_floats(count, deviation, 6);
        data.resize(values.size() * sizeof(float));
        std::memcpy(data.data(), values.data(), data.size());
        break;
      }
    }
    source.data = data.data();
    source.scales = scales.data();
  }
};

std::unique_ptr<PackedMatrix> random_matrix(const Backend& backend, QuantScheme scheme,
                                            std::int64_t rows, std::int64_t cols) {
  return std::move(random_matrices(backend, scheme, rows, cols, 1).front());
}

CacheRowShape cache_shape() {
  return {.num_layers = 1,
          .index_layers = {kLayer},
          .num_kv_heads = kM3Attention.num_kv_heads,
          .head_dim = kM3Attention.head_dim,
          .index_head_dim = kM3Attention.index_head_dim,
          .block_tokens = kBlockTokens,
          .kv_dtype = CacheDType::kNvfp4,
          .index_dtype = CacheDType::kNvfp4,
          .drafter = {}};
}

void fill_plane(const CachePlane& plane, std::byte* row, std::uint32_t seed) {
  const auto codes = random_bytes(plane.data_stride * kBlockTokens, seed, 0, 255);
  const auto scales = random_bytes(plane.scale_stride * kBlockTokens, seed + 1, 0x24, 16);
  std::memcpy(plane.data(row, 0), codes.data(), codes.size());
  std::memcpy(plane.scales(row, 0), scales.data(), scales.size());
}

template <typename T>
void grow(std::vector<T>& values, std::int64_t count) {
  if (std::ssize(values) < count) values.resize(static_cast<std::size_t>(count));
}

}  // namespace

std::vector<float> random_floats(std::int64_t count, float scale, std::uint32_t seed) {
  const std::vector<std::uint32_t> words = random_words(count, seed);
  std::vector<float> values(words.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    // The sum of four bytes is near enough to normal, of deviation 147.8.
    std::int32_t sum = -510;
    for (int byte = 0; byte < 4; ++byte) {
      sum += static_cast<std::int32_t>(words[i] >> (8 * byte) & 0xFFU);
    }
    values[i] = scale * static_cast<float>(sum) / 147.8F;
  }
  return values;
}

std::vector<std::unique_ptr<PackedMatrix>> random_matrices(const Backend& backend,
                                                           QuantScheme scheme, std::int64_t rows,
                                                           std::int64_t cols, std::int64_t count) {
  const RandomSource source(scheme, rows, cols);
  std::vector<std::unique_ptr<PackedMatrix>> matrices;
  for (std::int64_t i = 0; i < count; ++i) {
    matrices.push_back(backend.pack(std::span(&source.source, 1)));
  }
  return matrices;
}

M3Cache::M3Cache(std::int32_t num_tokens) : layout_(cache_shape()) {
  const std::int32_t num_blocks = (num_tokens + kBlockTokens - 1) / kBlockTokens;
  pool_ = Buffer(layout_.row_bytes() * num_blocks, "benchmark cache");
  for (std::int32_t b = 0; b < num_blocks; ++b) {
    std::byte* const row = pool_.data() + b * layout_.row_bytes();
    std::uint32_t seed = 100 * static_cast<std::uint32_t>(b);
    for (std::int32_t head = 0; head < kM3Attention.num_kv_heads; ++head, seed += 4) {
      fill_plane(layout_.k(kLayer, head), row, seed);
      fill_plane(layout_.v(kLayer, head), row, seed + 2);
    }
    fill_plane(layout_.index_k(kLayer), row, seed);
    block_table_.push_back(b);
  }
}

CacheView M3Cache::view() const {
  return {.pool = pool_.data(), .layout = &layout_, .mode = DequantMode::kE4M3};
}

BatchView M3Cache::batch(std::int32_t count, std::int32_t end) {
  positions_.resize(static_cast<std::size_t>(count));
  std::iota(positions_.begin(), positions_.end(), end - count);
  sequence_of_.assign(static_cast<std::size_t>(count), 0);
  slice_ = {.first_token = 0,
            .num_tokens = count,
            .first_position = end - count,
            .block_table = block_table_.data()};
  return {.num_tokens = count,
          .positions = positions_.data(),
          .sequence_of = sequence_of_.data(),
          .sequences = {&slice_, 1}};
}

M3Layer::M3Layer(const Backend& backend, std::int64_t num_experts, std::int32_t max_positions) {
  constexpr AttentionShape kShape = kM3Attention;
  const std::int64_t qkv_rows = (kShape.num_heads + 2 * kShape.num_kv_heads) * kShape.head_dim +
                                (kShape.num_index_heads + 1) * kShape.index_head_dim;
  const std::int64_t q_width = kShape.num_heads * kShape.head_dim;
  qkv_ = random_matrix(backend, QuantScheme::kMxfp8, qkv_rows, kM3Hidden);
  out_ = random_matrix(backend, QuantScheme::kMxfp8, kM3Hidden, q_width);
  router_ = random_matrix(backend, QuantScheme::kF32, num_experts, kM3Hidden);
  shared_gate_up_ = random_matrix(backend, QuantScheme::kMxfp8, 2 * kM3ExpertWidth, kM3Hidden);
  shared_down_ = random_matrix(backend, QuantScheme::kMxfp8, kM3Hidden, kM3ExpertWidth);
  gate_up_ =
      random_matrices(backend, QuantScheme::kNvfp4, 2 * kM3ExpertWidth, kM3Hidden, num_experts);
  down_ = random_matrices(backend, QuantScheme::kNvfp4, kM3Hidden, kM3ExpertWidth, num_experts);
  for (std::size_t e = 0; e < gate_up_.size(); ++e) {
    experts_.push_back({.gate_up = gate_up_[e].get(), .down = down_[e].get()});
  }
  router_bias_.assign(static_cast<std::size_t>(num_experts), 0.0F);
  norm_ = random_floats(kM3Hidden, 0.1F, 7);
  head_norm_ = random_floats(kShape.head_dim, 0.1F, 8);
  const std::int64_t half = kShape.rotary_dim / 2;
  for (std::int32_t p = 0; p < max_positions; ++p) {
    for (std::int64_t j = 0; j < half; ++j) {
      const float angle = static_cast<float>(p) / std::pow(5e6F, static_cast<float>(j) / 32.0F);
      cos_.push_back(std::cos(angle));
      sin_.push_back(std::sin(angle));
    }
  }
}

std::int64_t M3Layer::expert_bytes() { return 3 * kM3ExpertWidth * kM3Hidden * 9 / 16; }

std::int64_t M3Layer::bytes_per_token() const {
  return qkv_->num_bytes() + out_->num_bytes() + router_->num_bytes() +
         shared_gate_up_->num_bytes() + shared_down_->num_bytes() +
         kM3TopExperts * (gate_up_.front()->num_bytes() + down_.front()->num_bytes());
}

void M3Layer::run_attention(const Backend& backend, const OpContext& context,
                            const BatchView& batch, const CacheView& cache, float* x) {
  constexpr AttentionShape kShape = kM3Attention;
  const std::int64_t tokens = batch.num_tokens;
  const std::int64_t q_width = kShape.num_heads * kShape.head_dim;
  grow(h_, tokens * kM3Hidden);
  grow(q_, tokens * q_width);
  grow(index_q_, tokens * kShape.num_index_heads * kShape.index_head_dim);
  grow(attended_, tokens * q_width);
  grow(blocks_, tokens * kShape.num_index_heads * kShape.top_k_blocks);
  backend.rms_norm(
      context,
      {.x = x, .weight = norm_.data(), .num_rows = tokens, .width = kM3Hidden, .out = h_.data()});
  backend.qkv_insert(context, {.h = h_.data(),
                               .w = qkv_.get(),
                               .q_norm = head_norm_.data(),
                               .k_norm = head_norm_.data(),
                               .index_q_norm = head_norm_.data(),
                               .index_k_norm = head_norm_.data(),
                               .rope = {.cos = cos_.data(), .sin = sin_.data()},
                               .shape = kShape,
                               .layer = kLayer,
                               .batch = batch,
                               .cache = cache,
                               .q = q_.data(),
                               .index_q = index_q_.data()});
  backend.index_topk(context, {.index_q = index_q_.data(),
                               .shape = kShape,
                               .layer = kLayer,
                               .batch = batch,
                               .cache = cache,
                               .blocks = blocks_.data()});
  backend.attention(context, {.q = q_.data(),
                              .shape = kShape,
                              .scale = 1.0F / std::sqrt(128.0F),
                              .layer = kLayer,
                              .batch = batch,
                              .cache = cache,
                              .blocks = blocks_.data(),
                              .out = attended_.data()});
  backend.linear(context, {.x = attended_.data(),
                           .x_stride = q_width,
                           .w = out_.get(),
                           .y = x,
                           .y_stride = kM3Hidden,
                           .num_rows = tokens,
                           .accumulate = true});
}

void M3Layer::run(const Backend& backend, const OpContext& context, const BatchView& batch,
                  const CacheView& cache, float* x) {
  run_attention(backend, context, batch, cache, x);
  backend.rms_norm(context, {.x = x,
                             .weight = norm_.data(),
                             .num_rows = batch.num_tokens,
                             .width = kM3Hidden,
                             .out = h_.data()});
  backend.moe(context, {.h = h_.data(),
                        .num_tokens = batch.num_tokens,
                        .router = router_.get(),
                        .router_bias = router_bias_.data(),
                        .experts = experts_,
                        .shared = {.gate_up = shared_gate_up_.get(), .down = shared_down_.get()},
                        .top_k = kM3TopExperts,
                        .routed_scale = 2.0F,
                        .constants = {.alpha = 1.702F, .limit = 7.0F},
                        .y = x});
}

}  // namespace winnow::ops
