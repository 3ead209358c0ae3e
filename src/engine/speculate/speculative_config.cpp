#include "engine/speculate/speculative_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "engine/speculate/synthetic.h"

namespace winnow {
namespace {

using Json = nlohmann::json;
using Names = std::vector<std::string_view>;

const Names kKeys = {"method",
                     "model",
                     "num_speculative_tokens",
                     "attention_backend",
                     "kv_cache_dtype",
                     "draft_sample_method",
                     "rejection_sample_method",
                     "synthetic_acceptance_length",
                     "synthetic_acceptance_rates",
                     "draft_tensor_parallel_size",
                     "tensor_parallel_size",
                     "enable_adaptive_verification",
                     "dspark_draft_topk",
                     "quantization",
                     "max_model_len",
                     "revision",
                     "code_revision",
                     "enforce_eager",
                     "disable_padded_drafter_batch",
                     "disable_eagle_block_drop",
                     "use_local_argmax_reduction",
                     "num_speculative_tokens_per_batch_size"};
const Names kOtherMethods = {"eagle",  "eagle3", "mtp",    "ngram", "draft_model",
                             "medusa", "dflash", "suffix", "pard",  "mlp_speculator"};
const Names kForeignBackends = {"flashinfer",     "flashinfer_ts",
                                "flashinfer_mla", "flash_attn",
                                "flash_attn_mla", "flashmla",
                                "triton_attn",    "triton_mla",
                                "flex_attention", "tree_attn",
                                "torch_sdpa",     "rocm_attn",
                                "rocm_aiter_fa",  "rocm_aiter_unified_attn"};

[[noreturn]] void refuse(std::string_view key, const std::string& what, std::string hint = {}) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("--speculative-config.{}: {}", key, what),
              std::move(hint), std::string(key));
}

/// Members by key; null and absent are one.
class Members {
 public:
  explicit Members(const Json& config) : config_(config) {}

  bool has(const char* key) const { return config_.contains(key) && !config_[key].is_null(); }
  const Json& at(const char* key) const { return config_[key]; }

  std::string text(const char* key) const {
    if (!has(key)) return {};
    if (!at(key).is_string()) refuse(key, fmt::format("{} is not a string", at(key).dump()));
    return at(key).get<std::string>();
  }
  std::string choice(const char* key, const Names& accepted) const {
    const std::string word = text(key);
    if (has(key) && std::ranges::find(accepted, word) == accepted.end()) {
      refuse(key, fmt::format("'{}' is not one of {}", word, fmt::join(accepted, ", ")));
    }
    return word;
  }
  bool flag(const char* key) const {
    if (!has(key)) return false;
    if (!at(key).is_boolean()) refuse(key, fmt::format("{} is not true or false", at(key).dump()));
    return at(key).get<bool>();
  }
  std::optional<std::int32_t> positive(const char* key) const {
    if (!has(key)) return std::nullopt;
    return positive_integer(key, at(key));
  }
  std::optional<double> number(const char* key) const {
    if (!has(key)) return std::nullopt;
    if (!at(key).is_number()) refuse(key, fmt::format("{} is not a number", at(key).dump()));
    return at(key).get<double>();
  }

  static std::int32_t positive_integer(const char* key, const Json& value) {
    constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
    const bool is_small = value.is_number_unsigned() &&
                          value.get<std::uint64_t>() <= static_cast<std::uint64_t>(kMost);
    if (!is_small || value.get<std::int64_t>() < 1) {
      refuse(key, fmt::format("{} is not a positive integer", value.dump()));
    }
    return static_cast<std::int32_t>(value.get<std::int64_t>());
  }

 private:
  const Json& config_;
};

void check_keys(const Json& config) {
  if (!config.is_object()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--speculative-config: {} is not an object", config.dump()));
  }
  for (const auto& [key, value] : config.items()) {
    if (std::ranges::find(kKeys, key) == kKeys.end()) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("--speculative-config: unknown member '{}'", key),
                  fmt::format("accepted: {}", fmt::join(kKeys, ", ")));
    }
  }
}

void check_method(const Members& members) {
  const std::string method = members.text("method");
  if (method.empty() && !members.has("method")) {
    if (members.has("model")) return;  // the drafter's own config says what it is
    refuse("method", "not given", "give \"method\": \"dspark\"");
  }
  if (method == "dspark") return;
  if (std::ranges::find(kOtherMethods, method) != kOtherMethods.end()) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("--speculative-config.method: '{}' is not offered here", method),
                "use dspark");
  }
  refuse("method", fmt::format("'{}' is not dspark", method));
}

void read_backend(const Members& members, SpeculativeConfig& config) {
  std::string name = members.text("attention_backend");
  std::ranges::transform(name, name.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (name.empty() || name == "auto") return;
  if (std::ranges::find(kForeignBackends, name) == kForeignBackends.end()) {
    refuse("attention_backend", fmt::format("unknown name '{}'", members.text("attention_backend")),
           fmt::format("accepted in any case: auto, {}", fmt::join(kForeignBackends, ", ")));
  }
  config.notes.push_back(fmt::format(
      "--speculative-config.attention_backend: {} names another engine's kernels; winnow uses its "
      "own",
      members.text("attention_backend")));
}

void read_kv_cache_dtype(const Members& members, SpeculativeConfig& config) {
  const std::string name = members.choice(
      "kv_cache_dtype", {"auto", "bf16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2", "nvfp4"});
  if (name == "nvfp4")
    refuse("kv_cache_dtype", "a drafter's cache is not kept in nvfp4", "use fp8");
  if (name == "fp8_e5m2") {
    refuse("kv_cache_dtype", "fp8_e5m2 has too few mantissa bits for keys", "use fp8 (e4m3)");
  }
  config.kv_cache_dtype = name == "bfloat16" ? "bf16" : name == "fp8_e4m3" ? "fp8" : name;
}

void read_synthetic(const Members& members, bool is_asked, SyntheticSwitch allowed,
                    SpeculativeConfig& config) {
  const bool has_length = members.has("synthetic_acceptance_length");
  const bool has_rates = members.has("synthetic_acceptance_rates");
  if (!is_asked && !has_length && !has_rates) return;
  if (allowed == SyntheticSwitch::kRefused) {
    throw Error(ErrorCode::kUnsupported,
                "--speculative-config: synthetic acceptance makes the output meaningless",
                "it is for benchmarks: add --benchmark-mode");
  }
  const char* key = has_rates ? "synthetic_acceptance_rates" : "synthetic_acceptance_length";
  if (!is_asked) {
    refuse(key, "needs rejection_sample_method = synthetic");
  }
  if (has_length == has_rates) {
    refuse(key, has_length ? "given together with synthetic_acceptance_rates" : "not given",
           "give exactly one of synthetic_acceptance_length and synthetic_acceptance_rates");
  }
  config.synthetic_length = members.number("synthetic_acceptance_length");
  if (config.synthetic_length && !(*config.synthetic_length >= 1)) {
    refuse(key, fmt::format("{} is below 1", *config.synthetic_length),
           "it counts the token after the accepted drafts");
  }
  if (!has_rates) return;
  const Json& rates = members.at("synthetic_acceptance_rates");
  const auto is_number = [](const Json& rate) { return rate.is_number(); };
  if (!rates.is_array() || !std::ranges::all_of(rates, is_number)) {
    refuse(key, fmt::format("{} is not a list of numbers", rates.dump()));
  }
  config.synthetic_rates = rates.get<std::vector<double>>();
  (void)SyntheticAcceptance(config.synthetic_rates);  // throws
}

void read_lengths_by_batch(const Members& members, SpeculativeConfig& config) {
  constexpr const char* kKey = "num_speculative_tokens_per_batch_size";
  if (!members.has(kKey)) return;
  const Json& ranges = members.at(kKey);
  if (!ranges.is_array()) refuse(kKey, fmt::format("{} is not a list", ranges.dump()));
  std::int32_t before = 0;
  for (const Json& range : ranges) {
    if (!range.is_array() || range.size() != 3) {
      refuse(kKey, fmt::format("{} is not [first, last, tokens]", range.dump()));
    }
    BatchDraftLength entry{.first = Members::positive_integer(kKey, range[0]),
                           .last = Members::positive_integer(kKey, range[1])};
    if (range[2] != 0) entry.num_tokens = Members::positive_integer(kKey, range[2]);
    if (entry.first <= before || entry.last < entry.first) {
      refuse(kKey,
             fmt::format("{} overlaps what comes before or ends before it begins", range.dump()));
    }
    before = entry.last;
    config.lengths_by_batch.push_back(entry);
  }
}

void note_ignored(const Members& members, SpeculativeConfig& config) {
  for (const char* key : {"revision", "code_revision"}) {
    if (!members.text(key).empty()) {
      config.notes.push_back(
          fmt::format("--speculative-config.{}: the drafter is read from a folder as it is", key));
    }
  }
  for (const char* key : {"enforce_eager", "disable_padded_drafter_batch",
                          "disable_eagle_block_drop", "use_local_argmax_reduction"}) {
    if (members.flag(key)) {
      config.notes.push_back(fmt::format("--speculative-config.{}: has no effect here", key));
    }
  }
}

}  // namespace

SpeculativeConfig parse_speculative_config(const Json& json, SyntheticSwitch synthetic) {
  check_keys(json);
  const Members members(json);
  check_method(members);
  if (members.has("tensor_parallel_size")) {
    refuse("tensor_parallel_size", "is the target's", "use draft_tensor_parallel_size");
  }
  SpeculativeConfig config;
  config.model = members.text("model");
  config.num_drafts = members.positive("num_speculative_tokens");
  if (config.num_drafts && *config.num_drafts > kMaxDraftLength) {
    refuse("num_speculative_tokens",
           fmt::format("{} is more than {}", *config.num_drafts, kMaxDraftLength));
  }
  read_backend(members, config);
  read_kv_cache_dtype(members, config);
  const std::string draft = members.choice("draft_sample_method", {"greedy", "probabilistic"});
  config.is_greedy_draft = draft != "probabilistic";
  const std::string method =
      members.choice("rejection_sample_method", {"standard", "block", "coupled", "synthetic"});
  if (method == "block") config.method = AcceptMethod::kBlock;
  if (method == "coupled") config.method = AcceptMethod::kCoupled;
  read_synthetic(members, method == "synthetic", synthetic, config);
  config.draft_tensor_parallel_size = members.positive("draft_tensor_parallel_size");
  config.is_adaptive = members.flag("enable_adaptive_verification");
  config.draft_top_k = members.positive("dspark_draft_topk");
  config.quantization = members.text("quantization");
  config.max_model_len = members.positive("max_model_len");
  if (members.flag("use_local_argmax_reduction") && !config.is_greedy_draft) {
    refuse("use_local_argmax_reduction", "needs draft_sample_method = greedy");
  }
  read_lengths_by_batch(members, config);
  if (config.is_adaptive && !config.lengths_by_batch.empty()) {
    refuse("num_speculative_tokens_per_batch_size",
           "given together with enable_adaptive_verification",
           "either the lengths are fixed or they are chosen");
  }
  note_ignored(members, config);
  return config;
}

void resolve_speculative_config(SpeculativeConfig& config, const DraftFacts& facts) {
  if (!config.num_drafts) {
    if (facts.block_size < 1) refuse("num_speculative_tokens", "neither given nor in the drafter");
    config.num_drafts = std::min(facts.block_size, kMaxDraftLength);
  }
  const std::int32_t num_drafts = *config.num_drafts;
  if (facts.block_size > 0 && num_drafts > facts.block_size) {
    refuse("num_speculative_tokens",
           fmt::format("{} is more than the drafter's block of {}", num_drafts, facts.block_size),
           "it was not trained for positions beyond");
  }
  if (config.synthetic_length) {
    (void)SyntheticAcceptance::of_length(*config.synthetic_length, num_drafts);  // throws
  }
  if (!config.synthetic_rates.empty() &&
      std::ssize(config.synthetic_rates) != static_cast<std::ptrdiff_t>(num_drafts)) {
    refuse("synthetic_acceptance_rates", fmt::format("{} rates for {} drafted tokens",
                                                     config.synthetic_rates.size(), num_drafts));
  }
  for (const BatchDraftLength& entry : config.lengths_by_batch) {
    if (entry.num_tokens > num_drafts) {
      refuse(
          "num_speculative_tokens_per_batch_size",
          fmt::format("{} is more than num_speculative_tokens = {}", entry.num_tokens, num_drafts));
    }
  }
  if (config.kv_cache_dtype.empty()) {
    if (facts.target_kv_cache_dtype == "nvfp4") {
      refuse("kv_cache_dtype", "the target's nvfp4 would be inherited, which no drafter uses",
             "give \"kv_cache_dtype\": \"fp8\"");
    }
    config.kv_cache_dtype = facts.target_kv_cache_dtype;
  }
  const std::int32_t ranks = config.draft_tensor_parallel_size.value_or(facts.tensor_parallel_size);
  if (ranks != 1 && ranks != facts.tensor_parallel_size) {
    refuse("draft_tensor_parallel_size",
           fmt::format("{} is neither 1 nor the target's {}", ranks, facts.tensor_parallel_size));
  }
  config.draft_tensor_parallel_size = ranks;
  if (config.draft_top_k && *config.draft_top_k > facts.vocab_size) {
    refuse("dspark_draft_topk", fmt::format("{} is more than the vocabulary of {}",
                                            *config.draft_top_k, facts.vocab_size));
  }
  if (!config.quantization.empty() && config.quantization != facts.quantization) {
    refuse("quantization",
           fmt::format("{}, but the drafter's config says {}", config.quantization,
                       facts.quantization.empty() ? "none" : facts.quantization),
           "leave the member out");
  }
  const std::int32_t longest = std::min(facts.draft_max_len, facts.target_max_len);
  if (config.max_model_len.value_or(longest) > longest) {
    refuse("max_model_len",
           fmt::format("{} is more than the drafter's {} or the target's {}", *config.max_model_len,
                       facts.draft_max_len, facts.target_max_len));
  }
  config.max_model_len = config.max_model_len.value_or(longest);
}

}  // namespace winnow
