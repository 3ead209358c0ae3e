// Flags of every verb that runs a model: what to load, how to compute, how much memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/flag_set.h"
#include "cli/lora_flags.h"

namespace winnow::cli {

struct EngineFlags {
  std::vector<std::string> words;  // positional: MODEL
  std::string model;
  std::string config_file;

  std::string tokenizer;      // another folder or tokenizer.json
  std::string chat_template;  // file, or the template itself
  std::string generation_config = "auto";
  Json override_generation_config = Json::object();

  std::string max_model_len;  // number, "auto" or "-1"
  bool allow_long_max_model_len = false;
  std::optional<std::int64_t> max_num_seqs, max_num_batched_tokens;
  std::optional<std::int64_t> long_prefill_token_threshold;
  double target_itl_ms = 0;
  std::optional<std::int64_t> max_num_queued_reqs, max_num_queued_tokens;
  std::string scheduling_policy = "fcfs";
  bool fair_admission = true;
  bool enable_prefix_caching = true;
  std::string prefix_cache_secret;
  std::optional<std::int64_t> seed;
  std::optional<std::int64_t> max_logprobs;

  std::optional<std::int64_t> block_size;
  std::string kv_cache_dtype = "auto";
  Json attention_config = Json::object();
  std::string dequant_mode;
  std::optional<std::int64_t> kv_cache_memory_bytes, num_gpu_blocks_override;
  double gpu_memory_utilization = 0;  // 0: not given

  std::string device = "auto";
  std::string backend = "auto";
  std::optional<std::int64_t> threads;
  bool pin_threads = false;

  std::optional<std::int64_t> tensor_parallel_size, pipeline_parallel_size, data_parallel_size;
  std::optional<std::int64_t> decode_context_parallel_size;
  Json speculative_config = Json::object();
  bool benchmark_mode = false;
  Json quantization_config = Json::object();
  std::string log_level = "info";
  LoraFlags lora;

  /// The folder, from the positional word or --model. Throws UsageError when there is none or two.
  std::string model_folder() const;
};

/// Registers the flags; `flags` outlives the set.
void add_engine_flags(FlagSet& set, EngineFlags& flags);

/// vLLM's flags that mean nothing here, and those that name what is not offered.
void add_foreign_engine_flags(FlagSet& set);
void add_foreign_server_flags(FlagSet& set);

/// The name for ops::make_backend that --device and --backend ask for together. Throws
/// Error{kInvalidArgument} when they contradict each other.
std::string backend_name(const EngineFlags& flags);

/// Checks that need no model: choices inside JSON flags, flags that cannot apply. Returns one line
/// per thing that will not take effect on this machine. Throws Error for what cannot work.
std::vector<std::string> check_engine_flags(const EngineFlags& flags);

}  // namespace winnow::cli
