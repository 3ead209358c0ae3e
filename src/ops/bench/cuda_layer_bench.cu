// A decoder layer's list of operations at M3.1's shapes, as replays of a graph in which launches
// overlap. `check` compares every bit of the residual stream, the caches and the choices with those
// of the list run one operation at a time, and exits with 1 at the first fault; `time` prints what
// each operation adds to the list, and what it takes in a list of its own.
//
//   cuda_layer_bench check | time [layers]
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "formats/cache_row.h"
#include "ops/cuda/backend.h"
#include "ops/cuda/bench.cuh"
#include "ops/cuda/bench_pages.cuh"
#include "ops/cuda/context.h"
#include "ops/op_context.h"

namespace winnow::cuda::bench {
namespace {

constexpr ops::AttentionShape kShape{.num_heads = 64,
                                     .num_kv_heads = 4,
                                     .head_dim = 128,
                                     .rotary_dim = 64,
                                     .num_index_heads = 4,
                                     .index_head_dim = 128,
                                     .top_k_blocks = 16};
constexpr std::int64_t kHidden = 6144;
constexpr std::int64_t kWidth = 3072;
constexpr int kExperts = 128;
constexpr int kTopK = 4;
constexpr std::int64_t kHeads = 64 * 128;
constexpr int kMaxTokens = 16;

__global__ void fill_normals(float* data, std::int64_t count, float scale, std::uint64_t seed) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    data[i] = scale * random_normal(seed, static_cast<std::uint64_t>(i));
  }
}

float* normals(std::int64_t count, float scale, std::uint64_t seed) {
  float* const data = device_array<float>(count);
  fill_normals<<<256, 256>>>(data, count, scale, seed);
  return data;
}

__global__ void count_differences(const std::uint32_t* a, const std::uint32_t* b,
                                  std::int64_t count, unsigned long long* result) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    if (a[i] == b[i]) continue;
    atomicAdd(result, 1ULL);
    atomicMin(result + 1, static_cast<unsigned long long>(i));
  }
}

struct Layer {
  float* input_norm;
  float* attention_norm;
  float* head_norms;  // q, k, index q, index k
  float* router_bias;
  std::unique_ptr<ops::PackedMatrix> qkv, output, router;
  std::vector<std::unique_ptr<ops::PackedMatrix>> matrices;
  std::vector<ops::MlpWeights> experts;
  ops::MlpWeights shared;
  std::unique_ptr<ops::ExpertTable> table;
};

Layer make_layer(const ops::Backend& backend, std::uint64_t seed) {
  Layer layer;
  std::uint64_t next = 1000 * seed;
  const auto random = [&](QuantScheme scheme, std::vector<std::int64_t> rows, std::int64_t cols) {
    std::vector<ops::MatrixShape> stacked;
    for (const std::int64_t r : rows) stacked.push_back({scheme, r, cols});
    return backend.make_random(stacked, ++next);
  };
  const auto mlp = [&](QuantScheme scheme) {
    layer.matrices.push_back(random(scheme, {kWidth, kWidth}, kHidden));
    layer.matrices.push_back(random(scheme, {kHidden}, kWidth));
    return ops::MlpWeights{.gate_up = layer.matrices[layer.matrices.size() - 2].get(),
                           .down = layer.matrices.back().get()};
  };
  layer.input_norm = normals(kHidden, 0.1F, ++next);
  layer.attention_norm = normals(kHidden, 0.1F, ++next);
  layer.head_norms = normals(4 * 128, 0.1F, ++next);
  layer.router_bias = normals(kExperts, 0.01F, ++next);
  layer.qkv = random(QuantScheme::kMxfp8, {kHeads, 512, 512, 512, 128}, kHidden);
  layer.output = random(QuantScheme::kMxfp8, {kHidden}, kHeads);
  layer.router = random(QuantScheme::kF32, {kExperts}, kHidden);
  for (int e = 0; e < kExperts; ++e) layer.experts.push_back(mlp(QuantScheme::kNvfp4));
  layer.shared = mlp(QuantScheme::kMxfp8);
  layer.table = backend.bind_experts(layer.experts, layer.shared);
  return layer;
}

/// Of the operations of a layer, in their order.
struct LayerParams {
  ops::RmsNormParams input_norm;
  ops::QkvInsertParams qkv;
  ops::IndexTopkParams index;
  ops::AttentionParams attention;
  ops::LinearParams output;
  ops::RmsNormParams attention_norm;
  ops::MoeParams moe;
};

/// Tokens of a sequence that stand at `position` and after.
struct Sequence {
  std::int32_t position;
  std::int32_t num_tokens;
};

/// The layers, one pool and one set of activations; a step runs over them in either form.
class Model {
 public:
  Model(int num_layers, std::int32_t num_rows, std::int64_t max_positions)
      : backend_(ops::make_cuda_backend(0, ops::CudaKernels::kFast)),
        layout_({.num_layers = num_layers,
                 .index_layers = sequence_of_integers(num_layers),
                 .num_kv_heads = 4,
                 .head_dim = 128,
                 .index_head_dim = 128,
                 .block_tokens = 128,
                 .kv_dtype = CacheDType::kNvfp4,
                 .index_dtype = CacheDType::kNvfp4,
                 .drafter = {}}),
        num_rows_(num_rows) {
    context_.cuda = backend_.cuda.get();
    backend_.reserve({.max_tokens = 64,
                      .max_positions = max_positions,
                      .hidden = kHidden,
                      .qkv_rows = 9856,
                      .mlp_width = kWidth,
                      .expert_width = kWidth,
                      .num_experts = kExperts,
                      .top_k_experts = kTopK,
                      .attention = kShape});
    for (int i = 0; i < num_layers; ++i) {
      layers_.push_back(make_layer(backend_, static_cast<std::uint64_t>(i) + 1));
    }
    pool_ = device_array<std::byte>(layout_.row_bytes() * num_rows);
    fill_pool();
    std::vector<float> cosines(static_cast<std::size_t>(max_positions) * 32);
    std::vector<float> sines(cosines.size());
    for (std::size_t i = 0; i < cosines.size(); ++i) {
      const float angle = static_cast<float>(i / 32) *
                          static_cast<float>(std::pow(5e6, -static_cast<double>(i % 32) / 32));
      cosines[i] = std::cos(angle);
      sines[i] = std::sin(angle);
    }
    rope_ = {.cos = to_device(cosines), .sin = to_device(sines)};
    start_ = normals(kMaxTokens * kHidden, 1.0F, 77);
    for (float** const array : {&residual_, &normed_}) {
      *array = device_array<float>(kMaxTokens * kHidden);
    }
    for (float** const array : {&q_, &attended_}) {
      *array = device_array<float>(kMaxTokens * kHeads);
    }
    index_q_ = device_array<float>(kMaxTokens * 512);
    blocks_ = device_array<std::int32_t>(kMaxTokens * 64);
    experts_ = device_array<std::int32_t>(kMaxTokens * kTopK);
    weights_ = device_array<float>(kMaxTokens * kTopK);
    require(cudaDeviceSynchronize(), "making the model");
  }

  cudaStream_t stream() const { return backend_.cuda->stream(); }
  int num_layers() const { return static_cast<int>(layers_.size()); }
  std::int64_t pool_bytes() const { return layout_.row_bytes() * num_rows_; }
  const std::byte* pool() const { return pool_; }
  const float* residual() const { return residual_; }
  const float* attended() const { return attended_; }
  const std::int32_t* experts() const { return experts_; }
  const float* weights() const { return weights_; }
  const std::int32_t* blocks() const { return blocks_; }

  void fill_pool() {
    require(cudaMemset(pool_, 0, static_cast<std::size_t>(layout_.row_bytes() * num_rows_)),
            "clearing the pool");
    std::uint64_t seed = 5;
    for (int layer = 0; layer < num_layers(); ++layer) {
      const CachePlanes planes = cache_planes(cache(), layer);
      for (int head = 0; head < 4; ++head) {
        for (const HeadPlanes& plane : {planes.k, planes.v}) {
          fill_plane<<<256, 256>>>(pool_, layout_.row_bytes(), num_rows_, plane, head, seed += 2);
        }
      }
      fill_plane<<<256, 256>>>(pool_, layout_.row_bytes(), num_rows_, planes.index_k, 0, seed += 2);
    }
    require(cudaDeviceSynchronize(), "filling the pool");
  }

  void set_batch(const std::vector<Sequence>& sequences) {
    std::vector<std::int32_t> positions, sequence_of, table;
    std::vector<ops::SequenceSlice> slices;
    std::int32_t row = 0;
    batch_ = {};
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      const Sequence& sequence = sequences[s];
      slices.push_back({.first_token = static_cast<std::int32_t>(positions.size()),
                        .num_tokens = sequence.num_tokens,
                        .first_position = sequence.position});
      for (std::int32_t t = 0; t < sequence.num_tokens; ++t) {
        positions.push_back(sequence.position + t);
        sequence_of.push_back(static_cast<std::int32_t>(s));
      }
      batch_.max_slice_tokens = std::max(batch_.max_slice_tokens, sequence.num_tokens);
      batch_.num_positions =
          std::max(batch_.num_positions, sequence.position + sequence.num_tokens);
    }
    const std::int32_t most = (batch_.num_positions + 127) / 128;
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      for (std::int32_t b = 0; b < most; ++b) table.push_back((row++ * 7 + 3) % num_rows_);
    }
    if (row > num_rows_) std::printf("FAIL %d rows wanted\n", row);
    const std::int32_t* const device_table = to_device(table);
    for (std::size_t s = 0; s < slices.size(); ++s) {
      slices[s].block_table = device_table + static_cast<std::int64_t>(s) * most;
    }
    batch_.num_tokens = static_cast<std::int32_t>(positions.size());
    batch_.positions = to_device(positions);
    batch_.sequence_of = to_device(sequence_of);
    batch_.sequences = {to_device(slices), slices.size()};
  }
  const ops::BatchView& batch() const { return batch_; }

  /// NaN in all that a step should write before it reads it.
  void poison() {
    require(
        cudaMemcpyAsync(residual_, start_, kMaxTokens * kHidden * 4, cudaMemcpyDefault, stream()),
        "start");
    for (void* const array : {static_cast<void*>(q_), static_cast<void*>(attended_)}) {
      require(cudaMemsetAsync(array, 0xFF, kMaxTokens * kHeads * 4, stream()), "poison");
    }
    require(cudaMemsetAsync(normed_, 0xFF, kMaxTokens * kHidden * 4, stream()), "poison");
    require(cudaMemsetAsync(index_q_, 0xFF, kMaxTokens * 512 * 4, stream()), "poison");
    require(cudaMemsetAsync(blocks_, 0xFF, kMaxTokens * 64 * 4, stream()), "poison");
    DeviceScratch& scratch = backend_.cuda->scratch();
    std::byte* const bytes = scratch.take(32 << 20);
    require(cudaMemsetAsync(bytes, 0xFF, 32 << 20, stream()), "poison");
    scratch.reset();
  }

  static constexpr int kOperations = 7;

  void run_operation(int layer, int which) {
    const LayerParams p = params(layer);
    switch (which) {
      case 0:
        return backend_.rms_norm(context_, p.input_norm);
      case 1:
        return backend_.qkv_insert(context_, p.qkv);
      case 2:
        return backend_.index_topk(context_, p.index);
      case 3:
        return backend_.attention(context_, p.attention);
      case 4:
        return backend_.linear(context_, p.output);
      case 5:
        return backend_.rms_norm(context_, p.attention_norm);
      default:
        return backend_.moe(context_, p.moe);
    }
  }
  /// The first `count` operations.
  void run_list(int layer, int count = kOperations) {
    for (int i = 0; i < count; ++i) run_operation(layer, i);
  }

 private:
  static std::vector<int> sequence_of_integers(int count) {
    std::vector<int> all;
    for (int i = 0; i < count; ++i) all.push_back(i);
    return all;
  }
  ops::CacheView cache() const {
    return {.pool = pool_, .layout = &layout_, .mode = DequantMode::kE4M3};
  }
  ops::RmsNormParams norm(const float* weight) const {
    return {.x = residual_,
            .weight = weight,
            .num_rows = batch_.num_tokens,
            .width = kHidden,
            .out = normed_};
  }
  LayerParams params(int number) const {
    const Layer& layer = layers_[static_cast<std::size_t>(number)];
    return {.input_norm = norm(layer.input_norm),
            .qkv = {.h = normed_,
                    .w = layer.qkv.get(),
                    .q_norm = layer.head_norms,
                    .k_norm = layer.head_norms + 128,
                    .index_q_norm = layer.head_norms + 256,
                    .index_k_norm = layer.head_norms + 384,
                    .rope = rope_,
                    .shape = kShape,
                    .layer = number,
                    .batch = batch_,
                    .cache = cache(),
                    .q = q_,
                    .index_q = index_q_},
            .index = {.index_q = index_q_,
                      .shape = kShape,
                      .layer = number,
                      .batch = batch_,
                      .cache = cache(),
                      .blocks = blocks_},
            .attention = {.q = q_,
                          .shape = kShape,
                          .scale = 0.08838835F,
                          .layer = number,
                          .batch = batch_,
                          .cache = cache(),
                          .blocks = blocks_,
                          .out = attended_},
            .output = {.x = attended_,
                       .x_stride = kHeads,
                       .w = layer.output.get(),
                       .y = residual_,
                       .y_stride = kHidden,
                       .num_rows = batch_.num_tokens,
                       .accumulate = true},
            .attention_norm = norm(layer.attention_norm),
            .moe = {.h = normed_,
                    .num_tokens = batch_.num_tokens,
                    .router = layer.router.get(),
                    .router_bias = layer.router_bias,
                    .experts = layer.experts,
                    .shared = layer.shared,
                    .table = layer.table.get(),
                    .top_k = kTopK,
                    .routed_scale = 2.0F,
                    .constants = {.alpha = 1.702F, .limit = 7.0F},
                    .y = residual_,
                    .chosen_experts = experts_,
                    .chosen_weights = weights_}};
  }

  ops::Backend backend_;
  CacheRowLayout layout_;
  std::int32_t num_rows_;
  ops::OpContext context_;
  std::vector<Layer> layers_;
  std::byte* pool_;
  ops::RopeTable rope_;
  ops::BatchView batch_;
  float *start_, *residual_, *normed_, *q_, *attended_, *index_q_, *weights_;
  std::int32_t *blocks_, *experts_;
};

/// Bits of everything a layer writes.
class Outputs {
 public:
  Outputs(const Model& model) {
    const std::int64_t tokens = model.batch().num_tokens;
    add("blocks", model.blocks(), tokens * 64);
    add("attention", model.attended(), tokens * kHeads);
    add("experts", model.experts(), tokens * kTopK);
    add("expert weights", model.weights(), tokens * kTopK);
    add("residual", model.residual(), tokens * kHidden);
    add("pool", model.pool(), model.pool_bytes() / 4);
  }
  ~Outputs() {
    for (const Part& part : parts_) cudaFree(part.copy);
  }
  Outputs(const Outputs&) = delete;
  Outputs& operator=(const Outputs&) = delete;

  bool equals(const Outputs& other, const char* what) const {
    auto* const result = device_array<unsigned long long>(2);
    bool is_equal = true;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      require(cudaMemset(result, 0, 8), "counter");
      require(cudaMemset(result + 1, 0xFF, 8), "counter");
      count_differences<<<512, 256>>>(parts_[i].copy, other.parts_[i].copy, parts_[i].words,
                                      result);
      const auto found = to_host(result, 2);
      if (found[0] == 0) continue;
      is_equal = false;
      const std::uint32_t words[2] = {to_host(parts_[i].copy + found[1], 1)[0],
                                      to_host(other.parts_[i].copy + found[1], 1)[0]};
      float values[2];
      std::memcpy(values, words, sizeof(values));
      std::printf("  %s: %s: %llu of %lld words differ, first at %llu: %08x %08x (%g %g)\n", what,
                  parts_[i].name, found[0], static_cast<long long>(parts_[i].words), found[1],
                  words[0], words[1], static_cast<double>(values[0]),
                  static_cast<double>(values[1]));
    }
    cudaFree(result);
    return is_equal;
  }

 private:
  struct Part {
    const char* name;
    std::uint32_t* copy;
    std::int64_t words;
  };
  void add(const char* name, const void* from, std::int64_t words) {
    auto* const copy = device_array<std::uint32_t>(words);
    require(cudaMemcpy(copy, from, static_cast<std::size_t>(words) * 4, cudaMemcpyDefault), "copy");
    parts_.push_back({name, copy, words});
  }
  std::vector<Part> parts_;
};

/// Forty replays of a step against `expected`.
bool is_right(Model& model, const Outputs& expected, const char* name) {
  model.fill_pool();
  cudaGraph_t graph{};
  cudaGraphExec_t executable{};
  require(cudaStreamBeginCapture(model.stream(), cudaStreamCaptureModeThreadLocal), "capture");
  model.poison();
  for (int layer = 0; layer < model.num_layers(); ++layer) model.run_list(layer);
  require(cudaStreamEndCapture(model.stream(), &graph), "end capture");
  require(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
  bool is_equal = true;
  for (int i = 0; i < 40 && is_equal; ++i) {
    require(cudaGraphLaunch(executable, model.stream()), "replay");
    if (i % 8 != 7) continue;
    require(cudaStreamSynchronize(model.stream()), "replays");
    is_equal = Outputs(model).equals(expected, name);
  }
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  return is_equal;
}

bool check_case(Model& model, const std::vector<Sequence>& sequences, const char* name) {
  model.set_batch(sequences);
  model.fill_pool();
  model.poison();
  for (int layer = 0; layer < model.num_layers(); ++layer) {
    for (int i = 0; i < Model::kOperations; ++i) {
      model.run_operation(layer, i);
      require(cudaStreamSynchronize(model.stream()), "operation");
    }
  }
  const Outputs expected(model);
  const bool is_equal = is_right(model, expected, name);
  std::printf("%s: %s\n", name, is_equal ? "equal bits" : "FAIL");
  return is_equal;
}

int check_all() {
  Model model(2, 600, 8192);
  const bool is_right =
      check_case(model, {{1000, 1}}, "1 token") && check_case(model, {{0, 1}}, "first token") &&
      check_case(model, {{5000, 1}, {127, 1}}, "2 requests") &&
      check_case(model, {{3071, 2}}, "2 tokens of one") &&
      check_case(model,
                 {{5000, 1}, {127, 1}, {128, 1}, {4095, 1}, {3000, 1}, {0, 1}, {77, 1}, {6001, 1}},
                 "8 requests") &&
      check_case(model, {{3001, 8}}, "8 tokens of one") &&
      check_case(model, {{5119, 2}, {250, 3}, {2000, 1}}, "2 + 3 + 1 tokens") &&
      check_case(model, {{1023, 5}, {8000, 2}}, "5 + 2 tokens") &&
      check_case(model, {{1023, 9}}, "9 tokens");
  return is_right ? 0 : 1;
}

int time_all(int num_layers) {
  constexpr std::int32_t kContext = 32768;
  constexpr const char* kNames[] = {"norm", "qkv", "index", "attention", "output", "norm", "moe"};
  Model model(num_layers, 8 * 256, kContext + 128);
  for (const int num_tokens : {1, 2, 4, 8}) {
    model.set_batch(std::vector<Sequence>(static_cast<std::size_t>(num_tokens), {kContext - 1, 1}));
    model.poison();
    for (int layer = 0; layer < num_layers; ++layer) model.run_list(layer);
    require(cudaStreamSynchronize(model.stream()), "warming up");
    const auto median = [&](const std::function<void(int)>& run) {
      return median_us(model.stream(), 2 * num_layers, [&](int i) { run(i % num_layers); });
    };
    std::printf("M=%d", num_tokens);
    double list = 0;
    for (int count = 1; count <= Model::kOperations; ++count) {
      const double prefix = median([&](int layer) { model.run_list(layer, count); });
      const double alone = median([&](int layer) { model.run_operation(layer, count - 1); });
      std::printf(" | %s +%.1f (alone %.1f)", kNames[count - 1], prefix - list, alone);
      list = prefix;
    }
    std::printf(" | list %.1f us\n", list);
  }
  return 0;
}

}  // namespace
}  // namespace winnow::cuda::bench

int main(int argc, char** argv) {
  using namespace winnow::cuda::bench;
  const std::string verb = argc > 1 ? argv[1] : "";
  if (verb == "check") return check_all();
  if (verb == "time") return time_all(argc > 2 ? std::atoi(argv[2]) : 2);
  std::printf("usage: cuda_layer_bench check|time [layers]\n");
  return 2;
}
