#include "cli/speculation_setup.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"
#include "cli/engine_setup.h"
#include "engine/engine_core.h"
#include "engine/speculate/synthetic.h"
#include "model/decoder.h"

namespace winnow::cli {
namespace {

/// The drafter's values need no more than a byte each, so "auto" only asks for more where the
/// target keeps more.
CacheDType drafter_cache_dtype(const std::string& name, CacheDType of_target) {
  if (name != "auto") return parse_cache_dtype(name, "--speculative-config.kv_cache_dtype");
  return of_target == CacheDType::kBF16 ? CacheDType::kBF16 : CacheDType::kFp8;
}

const char* method_name(const SpeculativeConfig& config) {
  if (config.is_synthetic()) return "synthetic";
  switch (config.method) {
    case AcceptMethod::kStandard:
      return "standard";
    case AcceptMethod::kBlock:
      return "block";
    case AcceptMethod::kCoupled:
      return "coupled";
  }
  return "";
}

}  // namespace

std::optional<SpeculationPlan> plan_speculation(const EngineFlags& flags,
                                                const SpeculationTarget& target) {
  if (flags.speculative_config.empty()) return std::nullopt;
  SpeculationPlan plan;
  plan.config = parse_speculative_config(flags.speculative_config, flags.benchmark_mode
                                                                       ? SyntheticSwitch::kAllowed
                                                                       : SyntheticSwitch::kRefused);
  plan.folder = plan.config.model.empty() ? target.folder : resolve_model_folder(plan.config.model);
  if (plan.config.model.empty() && !has_drafter(target.folder)) {
    throw Error(ErrorCode::kNotFound,
                fmt::format("--speculative-config: {} has no drafter ({}/config.json)",
                            target.folder.string(), kDrafterFolder),
                "name its folder with --speculative-config.model, or leave the flag out");
  }
  plan.drafter = read_drafter_config(plan.folder, target.config);
  const auto max_len =
      static_cast<std::int32_t>(std::min<std::int64_t>(target.max_model_len, INT32_MAX));
  resolve_speculative_config(
      plan.config, {.block_size = plan.drafter.block_size,
                    .vocab_size = target.config.vocab_size,
                    .draft_max_len = max_len,
                    .target_max_len = max_len,
                    .quantization = plan.drafter.quant_method,
                    .target_kv_cache_dtype = std::string(cache_dtype_name(target.cache_dtype))});
  plan.cache_dtype = drafter_cache_dtype(plan.config.kv_cache_dtype, target.cache_dtype);
  for (const std::string& note : plan.config.notes) spdlog::warn("{}", note);
  if (plan.config.is_synthetic()) {
    spdlog::warn("drafts are accepted by decree: the text is meaningless, only its speed counts");
  }
  return plan;
}

void add_drafter_options(const SpeculationPlan& plan, DecoderOptions& options) {
  options.captured_layers = plan.drafter.target_layers;
  options.drafter_cache = drafter_cache_shape(plan.drafter, plan.cache_dtype);
}

LoadedDrafter attach_drafter(const SpeculationPlan& plan, Decoder& decoder,
                             std::int64_t max_model_len, const PackingProgress& progress) {
  // A block reaches beyond the last position that the target sees.
  const std::int64_t max_positions = max_model_len + plan.drafter.block_size;
  LoadedDrafter loaded = load_drafter(plan.folder, decoder.config(), decoder.shared_tables(),
                                      decoder.backend(), max_positions, progress);
  decoder.set_drafter(loaded.drafter.get());
  spdlog::info("drafter: {} layers, {:.1f} MB of weights; {}", plan.drafter.num_layers,
               static_cast<double>(loaded.drafter->weight_bytes()) / 1e6, describe(plan));
  return loaded;
}

SpeculationOptions speculation_options(const SpeculationPlan& plan) {
  const SpeculativeConfig& config = plan.config;
  SpeculationOptions options;
  options.num_drafts = config.num_drafts.value_or(0);
  options.method = config.method;
  options.is_greedy_draft = config.is_greedy_draft;
  options.max_model_len = config.max_model_len.value_or(0);
  options.lengths_by_batch = config.lengths_by_batch;
  options.draft_top_k = config.draft_top_k.value_or(0);
  options.is_adaptive = config.is_adaptive;
  options.synthetic_rates = config.synthetic_rates;
  if (config.synthetic_length) {
    const auto synthetic =
        SyntheticAcceptance::of_length(*config.synthetic_length, options.num_drafts);
    options.synthetic_rates.assign(synthetic.rates().begin(), synthetic.rates().end());
  }
  return options;
}

std::int64_t logits_bytes(const EngineOptions& options, std::int32_t vocab_size,
                          const ops::Memory& memory) {
  const LogitRows rows = max_logit_rows(options, vocab_size);
  const SpeculationOptions& speculation = options.speculation;
  const std::int64_t drafted = std::int64_t{options.max_num_seqs} * speculation.num_drafts;
  std::int64_t num_rows = drafted;
  if (memory.is_host()) {
    num_rows += std::int64_t{rows.max_sampled} + rows.max_prompt;
    if (!speculation.is_greedy_draft) num_rows += drafted;
  }
  return num_rows * vocab_size * std::int64_t{sizeof(float)};
}

std::string describe(const SpeculationPlan& plan) {
  return fmt::format("{} {} drafts a step, {}, drawn {}, context in {}",
                     plan.config.is_adaptive ? "as pays, up to" : "up to",
                     plan.config.num_drafts.value_or(0), method_name(plan.config),
                     plan.config.is_greedy_draft ? "greedily" : "by chance",
                     cache_dtype_name(plan.cache_dtype));
}

}  // namespace winnow::cli
