// The whole list of operations, and the struct a backend fills with its own. One indirect call per
// operation per layer. Made once at start; two backends can live in one process (tests compare
// them).
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/machine.h"
#include "ops/attention/attention.h"
#include "ops/draft_attention/draft_attention.h"
#include "ops/draft_insert/draft_insert.h"
#include "ops/embed/embed.h"
#include "ops/index_topk/index_topk.h"
#include "ops/keep_rows/keep_rows.h"
#include "ops/linear/linear.h"
#include "ops/lora/lora.h"
#include "ops/memory.h"
#include "ops/mlp/mlp.h"
#include "ops/moe/moe.h"
#include "ops/qkv_insert/qkv_insert.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/sample/sample.h"

namespace winnow::ops {

/// Bounds of one step, from the model and its options.
struct WorkLimits {
  std::int64_t max_tokens = 0;
  std::int64_t max_positions = 0;  // of one sequence
  std::int64_t hidden = 0;
  std::int64_t qkv_rows = 0;      // of the widest fused projection
  std::int64_t mlp_width = 0;     // of the widest dense MLP or shared expert
  std::int64_t expert_width = 0;  // of a routed expert
  std::int64_t num_experts = 0;
  std::int64_t top_k_experts = 0;
  AttentionShape attention;  // with the index heads of a sparse layer, if there are any
};

/// What lists of operations a recording is of: each has counts and addresses of its own.
enum class StepKind : std::int32_t { kTarget, kDraft, kTargetWithSelections };

/// What makes two steps the same list of operations (run_step).
struct StepKey {
  StepKind kind = StepKind::kTarget;
  std::int32_t num_tokens = 0;
  std::int32_t num_sequences = 0;
  std::int32_t max_slice_tokens = 0;
  std::int32_t num_last_tokens = 0;
  std::int32_t max_last_slice_tokens = 0;
  std::int32_t num_logit_rows = 0;
  std::int32_t num_draws = 0;
  std::int32_t num_positions = 0;  // the bound that launches use
  std::int64_t generation = 0;     // of this kind: changes whenever an address has changed
  /// What names the step's adapters in their order; a name never comes again.
  std::vector<std::int64_t> adapters = {};
  friend auto operator<=>(const StepKey&, const StepKey&) = default;
};

struct Backend {
  std::string name;     // "scalar", "cpu-avx512", "cuda", …
  std::string machine;  // what a device calls itself; empty on CPUs

  /// Where every pointer of the operations' parameters points to.
  std::shared_ptr<Memory> memory;
  /// Host memory that operations may write to as well; null: that of `memory`.
  std::shared_ptr<Memory> staging;
  /// What `OpContext::cuda` is to be; null on CPUs.
  std::shared_ptr<cuda::Context> cuda;

  /// Sources (host memory) with equal cols, stacked by rows: q, k, v, … become one matrix. Schemes
  /// may differ. Safe to call from several threads.
  std::function<std::unique_ptr<PackedMatrix>(std::span<const MatrixSource> stacked)> pack;
  /// The same with random values of magnitude 1 / sqrt(cols), made in place; empty: not offered.
  std::function<std::unique_ptr<PackedMatrix>(std::span<const MatrixShape> stacked,
                                              std::uint64_t seed)>
      make_random;
  /// What moe() wants to know of a layer's experts at load; empty: nothing.
  std::function<std::unique_ptr<ExpertTable>(std::span<const MlpWeights> experts,
                                             const MlpWeights& shared)>
      bind_experts;
  /// What operations want to know of an adapter's sites at load, entries in the order of `sites`.
  /// Safe to call while a step runs; empty: nothing.
  std::function<std::unique_ptr<LoraTable>(std::span<const LoraSite* const> sites)> bind_lora;

  /// Makes room for whatever an operation takes within these limits; empty: nothing to do.
  std::function<void(const WorkLimits& limits)> reserve;
  /// Runs `step`, which only submits operations; a backend may record them the first times and
  /// replay them for an equal `key`. Empty: call `step`. A key stands for every count and address
  /// that the operations are given, not for what lies there.
  std::function<void(const StepKey& key, const std::function<void()>& step)> run_step;

  void (*keep_rows)(const OpContext&, const KeepRowsParams&) = nullptr;
  void (*embed)(const OpContext&, const EmbedParams&) = nullptr;
  void (*rms_norm)(const OpContext&, const RmsNormParams&) = nullptr;
  void (*linear)(const OpContext&, const LinearParams&) = nullptr;
  /// What adapters add behind a product that knows nothing of them.
  void (*lora)(const OpContext&, const LoraParams&) = nullptr;
  void (*qkv_insert)(const OpContext&, const QkvInsertParams&) = nullptr;
  void (*index_topk)(const OpContext&, const IndexTopkParams&) = nullptr;
  void (*attention)(const OpContext&, const AttentionParams&) = nullptr;
  void (*mlp)(const OpContext&, const MlpParams&) = nullptr;
  void (*moe)(const OpContext&, const MoeParams&) = nullptr;
  void (*sample)(const OpContext&, const SampleParams&) = nullptr;  // null: not offered
  // Of the DSpark drafter; null: not offered.
  void (*draft_insert)(const OpContext&, const DraftInsertParams&) = nullptr;
  void (*draft_heads)(const OpContext&, const DraftHeadsParams&) = nullptr;
  void (*draft_attention)(const OpContext&, const DraftAttentionParams&) = nullptr;
};

/// The reference: plain loops that define each operation's bits.
Backend make_scalar_backend();

/// SIMD kernels of `isa`; throws Error{kUnsupported} when this machine lacks it.
Backend make_cpu_backend(CpuIsa isa);

/// Names for make_backend(), for a list of choices.
inline constexpr std::array<const char*, 8> kBackendNames = {
    "auto", "scalar", "cpu", "cpu-avx512", "cpu-avx2", "cpu-portable", "cuda", "cuda-exact"};

/// "auto": "cuda" where this process sees a GPU it has kernels for, else "cpu". "cpu": the best of
/// this machine. "cuda" and "cuda-exact" take device 0, or N with ":N" behind. Throws
/// Error{kInvalidArgument} that lists the names, Error{kUnsupported}.
Backend make_backend(const std::string& name, const Machine& machine);

}  // namespace winnow::ops
