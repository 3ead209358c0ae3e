#include "ops/testing/hosted_cuda.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <set>
#include <vector>

#include "ops/cuda/device.h"

namespace winnow::ops::testing {
namespace {

/// What the tests ask of fast kernels at most. The exact ones get none: they work in rounds when
/// scratch is short, which is then tested too.
constexpr WorkLimits kLimits{.max_tokens = 1024,
                             .max_positions = 1 << 18,
                             .hidden = 8192,
                             .qkv_rows = 16384,
                             .mlp_width = 8192,
                             .expert_width = 1024,
                             .num_experts = 128,
                             .top_k_experts = 8,
                             .attention = {.num_heads = 64,
                                           .num_kv_heads = 4,
                                           .head_dim = 128,
                                           .rotary_dim = 64,
                                           .num_index_heads = 4,
                                           .index_head_dim = 128,
                                           .top_k_blocks = 16}};

const Backend& device_backend(CudaKernels kernels) {
  static const Backend kExact = make_cuda_backend(0, CudaKernels::kExact);
  static const Backend kFast = [] {
    Backend backend = make_cuda_backend(0, CudaKernels::kFast);
    backend.reserve(kLimits);
    return backend;
  }();
  return kernels == CudaKernels::kExact ? kExact : kFast;
}

/// What one call has on the device; outputs go back to the host at the end.
class Call {
 public:
  explicit Call(CudaKernels kernels) : backend_(device_backend(kernels)) {}

  const Backend& backend() const { return backend_; }
  OpContext context() const { return {.cuda = backend_.cuda.get()}; }

  template <typename T>
  T* in(const T* host, std::int64_t count) {
    return place(const_cast<T*>(host), count, false);
  }
  /// Contents go up as well: an operation may add to them, and what it skips must stay.
  template <typename T>
  T* out(T* host, std::int64_t count) {
    return place(host, count, true);
  }

  /// Its tokens alone, for operations that read no block table.
  BatchView positions(const BatchView& host) {
    BatchView device = host;
    device.positions = in(host.positions, host.num_tokens);
    device.sequence_of = in(host.sequence_of, host.num_tokens);
    device.sequences = {in(host.sequences.data(), std::ssize(host.sequences)),
                        host.sequences.size()};
    return device;
  }

  /// `ends_before`: block tables cover the positions before a slice's own, no more.
  BatchView batch(const BatchView& host, bool ends_before = false) {
    std::vector<SequenceSlice> slices(host.sequences.begin(), host.sequences.end());
    BatchView device = host;
    for (SequenceSlice& slice : slices) {
      device.max_slice_tokens = std::max(device.max_slice_tokens, slice.num_tokens);
      device.num_positions =
          std::max(device.num_positions, slice.first_position + slice.num_tokens);
      SequenceSlice covered = slice;
      if (ends_before) covered.num_tokens = 0;
      slice.block_table = in(slice.block_table, num_blocks(covered));
    }
    device.sequences = slices;
    return positions(device);
  }

  /// As far as the batch's positions go.
  RopeTable rope(const RopeTable& host, const AttentionShape& shape, const BatchView& batch) {
    std::int32_t num_positions = 0;
    for (std::int64_t t = 0; t < batch.num_tokens; ++t) {
      num_positions = std::max(num_positions, batch.positions[t] + 1);
    }
    const std::int64_t count = std::int64_t{num_positions} * (shape.rotary_dim / 2);
    return {.cos = in(host.cos, count), .sin = in(host.sin, count)};
  }

  /// The pool's rows that the batch's sequences hold; others exist up to the highest and are NaN,
  /// or the host's where the whole pool is small. `writes`: they come back.
  CacheView cache(const CacheView& host, const BatchView& batch, bool writes) {
    block_tokens_ = host.layout->shape().block_tokens;
    const std::int64_t row_bytes = host.layout->row_bytes();
    std::set<std::int32_t> rows;
    for (const SequenceSlice& slice : batch.sequences) {
      rows.insert(slice.block_table, slice.block_table + num_blocks(slice));
    }
    const std::int64_t num_rows = rows.empty() ? 0 : *rows.rbegin() + 1;
    constexpr std::int64_t kSmallPool = std::int64_t{64} << 20;
    CacheView device = host;
    if (num_rows * row_bytes <= kSmallPool) {
      device.pool =
          writes ? out(host.pool, num_rows * row_bytes) : in(host.pool, num_rows * row_bytes);
      return device;
    }
    Array<std::byte>& pool =
        arrays_.emplace_back(backend_.memory, num_rows * row_bytes, "pool of a test");
    for (const std::int32_t row : rows) {
      const std::int64_t at = row * row_bytes;
      backend_.memory->upload(pool.data() + at, host.pool + at, row_bytes);
      if (writes) outputs_.push_back({host.pool + at, pool.data() + at, row_bytes});
    }
    device.pool = pool.data();
    return device;
  }

  /// Waits, and brings outputs back; faults of the kernels are thrown here.
  void finish() {
    for (const Output& output : outputs_) {
      backend_.memory->download(output.host, output.device, output.num_bytes);
    }
  }

 private:
  struct Output {
    void* host = nullptr;
    const void* device = nullptr;
    std::int64_t num_bytes = 0;
  };

  std::int64_t num_blocks(const SequenceSlice& slice) const {
    if (slice.num_tokens == 0 && slice.first_position == 0) return 0;
    return (slice.first_position + slice.num_tokens + block_tokens_ - 1) / block_tokens_;
  }

  template <typename T>
  T* place(T* host, std::int64_t count, bool comes_back) {
    if (host == nullptr || count == 0) return nullptr;
    const std::int64_t num_bytes = count * static_cast<std::int64_t>(sizeof(T));
    Array<std::byte>& array = arrays_.emplace_back(backend_.memory, num_bytes, "input of a test");
    backend_.memory->upload(array.data(), host, num_bytes);
    if (comes_back) outputs_.push_back({host, array.data(), num_bytes});
    return reinterpret_cast<T*>(array.data());
  }

  const Backend& backend_;
  std::vector<Array<std::byte>> arrays_;
  std::vector<Output> outputs_;
  std::int64_t block_tokens_ = 1;
};

/// The adapters of one call on the device.
template <typename Adapter>
class PlacedAdapters {
 public:
  /// `rows` null: there are none.
  PlacedAdapters(Call& call, const LoraRows<Adapter>* rows, std::int64_t num_rows) : call_(call) {
    if (rows == nullptr) return;
    for (const Adapter* const adapter : rows->adapters) {
      adapters_.push_back(adapter == nullptr ? nullptr : &placed_.emplace_back(place(*adapter)));
    }
    rows_ = {.adapter_of = call.in(rows->adapter_of, num_rows), .adapters = adapters_};
    has_rows_ = true;
  }

  const LoraRows<Adapter>* rows() const { return has_rows_ ? &rows_ : nullptr; }

 private:
  const LoraTable* bind(const std::vector<const LoraSite*>& sites) {
    return tables_.emplace_back(call_.backend().bind_lora(sites)).get();
  }
  LoraSite place(LoraSite site) {
    if (site.a == nullptr) return site;
    site.scales = call_.in(site.scales, site.a->rows());
    site.table = bind({&site});
    return site;
  }
  LoraMlp place(const LoraMlp& mlp) {
    return {.gate_up = place(mlp.gate_up), .down = place(mlp.down)};
  }
  LoraMoe place(const LoraMoe& moe) {
    std::vector<LoraMlp>& experts = experts_.emplace_back();
    for (const LoraMlp& expert : moe.experts) experts.push_back(place(expert));
    LoraMoe placed{.experts = experts, .shared = place(moe.shared)};
    if (experts.empty()) return placed;
    std::vector<const LoraSite*> gate_ups;
    std::vector<const LoraSite*> downs;
    for (const LoraMlp& expert : experts) {
      gate_ups.push_back(&expert.gate_up);
      downs.push_back(&expert.down);
    }
    placed.gate_up = bind(gate_ups);
    placed.down = bind(downs);
    return placed;
  }

  Call& call_;
  std::deque<Adapter> placed_;
  std::deque<std::vector<LoraMlp>> experts_;
  std::vector<std::unique_ptr<LoraTable>> tables_;
  std::vector<const Adapter*> adapters_;
  LoraRows<Adapter> rows_;
  bool has_rows_ = false;
};

std::int64_t strided(std::int64_t rows, std::int64_t stride, std::int64_t width) {
  return rows == 0 ? 0 : (rows - 1) * stride + width;
}

template <CudaKernels kKernels>
struct Hosted {
  static void keep_rows(const OpContext&, const KeepRowsParams& params) {
    Call call(kKernels);
    const std::int32_t* const end = params.rows + params.num_rows;
    const std::int64_t from = params.num_rows == 0 ? 0 : *std::max_element(params.rows, end) + 1;
    KeepRowsParams device = params;
    device.from = call.in(params.from, from * params.width);
    device.rows = call.in(params.rows, params.num_rows);
    device.to = call.out(params.to, params.num_rows * params.width);
    call.backend().keep_rows(call.context(), device);
    call.finish();
  }

  static void embed(const OpContext&, const EmbedParams& params) {
    Call call(kKernels);
    std::int64_t rows = 0;
    for (std::int64_t t = 0; t < params.num_tokens; ++t) {
      rows = std::max<std::int64_t>(rows, params.tokens[t * params.token_stride] + 1);
    }
    const std::int64_t element = params.table_scheme == QuantScheme::kF32 ? 4 : 2;
    EmbedParams device = params;
    device.tokens = call.in(params.tokens, strided(params.num_tokens, params.token_stride, 1));
    device.table =
        call.in(static_cast<const std::byte*>(params.table), rows * params.hidden * element);
    device.out = call.out(params.out, params.num_tokens * params.hidden);
    call.backend().embed(call.context(), device);
    call.finish();
  }

  static void rms_norm(const OpContext&, const RmsNormParams& params) {
    Call call(kKernels);
    const std::int64_t count = params.num_rows * params.width;
    RmsNormParams device = params;
    device.out = call.out(params.out, count);
    device.x = params.x == params.out ? device.out : call.in(params.x, count);
    device.weight = call.in(params.weight, params.width);
    call.backend().rms_norm(call.context(), device);
    call.finish();
  }

  static void linear(const OpContext&, const LinearParams& params) {
    Call call(kKernels);
    LinearParams device = params;
    device.x = call.in(params.x, strided(params.num_rows, params.x_stride, params.w->cols()));
    device.y = call.out(params.y, strided(params.num_rows, params.y_stride, params.w->rows()));
    call.backend().linear(call.context(), device);
    call.finish();
  }

  static void lora(const OpContext&, const LoraParams& params) {
    Call call(kKernels);
    const auto width = [&](const auto& of_site) {
      std::int64_t widest = 0;
      for (const LoraSite* const site : params.rows.adapters) {
        if (site != nullptr && site->a != nullptr) widest = std::max(widest, of_site(*site));
      }
      return widest;
    };
    const std::int64_t inputs = width([](const LoraSite& site) { return site.a->cols(); });
    const std::int64_t outputs = width([](const LoraSite& site) {
      std::int64_t end = 0;
      for (const LoraPart& part : site.parts) end = std::max(end, part.first_row + part.b->rows());
      return end;
    });
    const PlacedAdapters adapters(call, &params.rows, params.num_rows);
    LoraParams device = params;
    device.rows = *adapters.rows();
    device.x = call.in(params.x, strided(params.num_rows, params.x_stride, inputs));
    device.y = call.out(params.y, strided(params.num_rows, params.y_stride, outputs));
    call.backend().lora(call.context(), device);
    call.finish();
  }

  static void mlp(const OpContext&, const MlpParams& params) {
    Call call(kKernels);
    const PlacedAdapters adapters(call, params.lora, params.num_tokens);
    const std::int64_t count = params.num_tokens * params.weights.down->rows();
    MlpParams device = params;
    device.h = call.in(params.h, count);
    device.y = call.out(params.y, count);
    device.lora = adapters.rows();
    call.backend().mlp(call.context(), device);
    call.finish();
  }

  static void moe(const OpContext&, const MoeParams& params) {
    Call call(kKernels);
    const auto table = call.backend().bind_experts(params.experts, params.shared);
    const PlacedAdapters adapters(call, params.lora, params.num_tokens);
    const std::int64_t count = params.num_tokens * params.router->cols();
    const std::int64_t choices = params.num_tokens * params.top_k;
    MoeParams device = params;
    device.table = table.get();
    device.lora = adapters.rows();
    device.h = call.in(params.h, count);
    device.router_bias = call.in(params.router_bias, params.router->rows());
    device.y = call.out(params.y, count);
    device.chosen_experts = call.out(params.chosen_experts, choices);
    device.chosen_weights = call.out(params.chosen_weights, choices);
    call.backend().moe(call.context(), device);
    call.finish();
  }

  static void qkv_insert(const OpContext&, const QkvInsertParams& params) {
    Call call(kKernels);
    const AttentionShape& shape = params.shape;
    const std::int64_t tokens = params.batch.num_tokens;
    const PlacedAdapters adapters(call, params.lora, tokens);
    QkvInsertParams device = params;
    device.lora = adapters.rows();
    device.h = call.in(params.h, tokens * params.w->cols());
    device.q_norm = call.in(params.q_norm, shape.head_dim);
    device.k_norm = call.in(params.k_norm, shape.head_dim);
    device.index_q_norm = call.in(params.index_q_norm, shape.index_head_dim);
    device.index_k_norm = call.in(params.index_k_norm, shape.index_head_dim);
    device.rope = call.rope(params.rope, shape, params.batch);
    device.cache = call.cache(params.cache, params.batch, true);
    device.batch = call.batch(params.batch);
    device.q = call.out(params.q, tokens * shape.num_heads * shape.head_dim);
    device.index_q =
        call.out(params.index_q, tokens * shape.num_index_heads * shape.index_head_dim);
    call.backend().qkv_insert(call.context(), device);
    call.finish();
  }

  static void index_topk(const OpContext&, const IndexTopkParams& params) {
    Call call(kKernels);
    const AttentionShape& shape = params.shape;
    const std::int64_t heads = std::int64_t{params.batch.num_tokens} * shape.num_index_heads;
    IndexTopkParams device = params;
    device.index_q = call.in(params.index_q, heads * shape.index_head_dim);
    device.cache = call.cache(params.cache, params.batch, false);
    device.batch = call.batch(params.batch);
    device.blocks = call.out(params.blocks, heads * shape.top_k_blocks);
    call.backend().index_topk(call.context(), device);
    call.finish();
  }

  static void attention(const OpContext&, const AttentionParams& params) {
    Call call(kKernels);
    const AttentionShape& shape = params.shape;
    const std::int64_t tokens = params.batch.num_tokens;
    const std::int64_t count = tokens * shape.num_heads * shape.head_dim;
    AttentionParams device = params;
    device.q = call.in(params.q, count);
    device.cache = call.cache(params.cache, params.batch, false);
    device.batch = call.batch(params.batch);
    device.blocks = call.in(params.blocks, tokens * shape.num_index_heads * shape.top_k_blocks);
    device.out = call.out(params.out, count);
    call.backend().attention(call.context(), device);
    call.finish();
  }

  static void draft_insert(const OpContext&, const DraftInsertParams& params) {
    Call call(kKernels);
    const AttentionShape& shape = params.shape;
    const std::int64_t width = std::int64_t{2} * shape.num_kv_heads * shape.head_dim;
    DraftInsertParams device = params;
    device.projected =
        call.in(params.projected, params.batch.num_tokens * params.num_layers * width);
    device.k_norm = call.in(params.k_norm, std::int64_t{params.num_layers} * shape.head_dim);
    device.rope = call.rope(params.rope, shape, params.batch);
    device.cache = call.cache(params.cache, params.batch, true);
    device.batch = call.batch(params.batch);
    call.backend().draft_insert(call.context(), device);
    call.finish();
  }

  static void draft_heads(const OpContext&, const DraftHeadsParams& params) {
    Call call(kKernels);
    const AttentionShape& shape = params.shape;
    DraftHeadsParams device = params;
    device.qkv = call.out(params.qkv, params.batch.num_tokens * heads_width(shape));
    device.q_norm = call.in(params.q_norm, shape.head_dim);
    device.k_norm = call.in(params.k_norm, shape.head_dim);
    device.rope = call.rope(params.rope, shape, params.batch);
    device.batch = call.positions(params.batch);
    call.backend().draft_heads(call.context(), device);
    call.finish();
  }

  static void draft_attention(const OpContext&, const DraftAttentionParams& params) {
    Call call(kKernels);
    const AttentionShape& shape = params.shape;
    // Block tables end where the context does.
    std::vector<SequenceSlice> contexts(params.batch.sequences.begin(),
                                        params.batch.sequences.end());
    for (SequenceSlice& slice : contexts) slice.num_tokens = 0;
    DraftAttentionParams device = params;
    device.qkv = call.in(params.qkv, params.batch.num_tokens * heads_width(shape));
    BatchView covered = params.batch;
    covered.sequences = contexts;
    device.cache = call.cache(params.cache, covered, false);
    device.batch = call.batch(params.batch, true);
    device.out = call.out(params.out,
                          std::int64_t{params.batch.num_tokens} * shape.num_heads * shape.head_dim);
    call.backend().draft_attention(call.context(), device);
    call.finish();
  }

 private:
  static std::int64_t heads_width(const AttentionShape& shape) {
    return std::int64_t{shape.num_heads + 2 * shape.num_kv_heads} * shape.head_dim;
  }
};

template <CudaKernels kKernels>
Backend make_hosted() {
  using Ops = Hosted<kKernels>;
  Backend backend = device_backend(kKernels);
  backend.memory = make_host_memory();
  backend.bind_experts = {};  // operations bind what they are given
  backend.bind_lora = {};
  backend.reserve = {};
  backend.run_step = {};
  backend.staging = {};
  backend.sample = nullptr;  // draws are compared by tests/equality/device_sample_test.cpp
  backend.keep_rows = Ops::keep_rows;
  backend.embed = Ops::embed;
  backend.rms_norm = Ops::rms_norm;
  backend.linear = Ops::linear;
  backend.lora = Ops::lora;
  backend.qkv_insert = Ops::qkv_insert;
  backend.index_topk = Ops::index_topk;
  backend.attention = Ops::attention;
  backend.mlp = Ops::mlp;
  backend.moe = Ops::moe;
  backend.draft_insert = Ops::draft_insert;
  backend.draft_heads = Ops::draft_heads;
  backend.draft_attention = Ops::draft_attention;
  return backend;
}

}  // namespace

bool has_cuda_device() {
  const std::vector<cuda::Device> devices = cuda::list_devices();
  return !devices.empty() && devices.front().compute_capability / 10 == 9;
}

Backend make_hosted_cuda_backend(CudaKernels kernels) {
  return kernels == CudaKernels::kExact ? make_hosted<CudaKernels::kExact>()
                                        : make_hosted<CudaKernels::kFast>();
}

}  // namespace winnow::ops::testing
