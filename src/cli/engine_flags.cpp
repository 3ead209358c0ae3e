#include "cli/engine_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "cli/usage_error.h"
#include "cli/value_grammar.h"
#include "engine/speculate/speculative_config.h"
#include "formats/cache_codec.h"
#include "ops/backend.h"

namespace winnow::cli {
namespace {

const std::vector<std::string> kDTypes = {"auto", "bf16", "bfloat16", "fp8", "fp8_e4m3", "nvfp4"};

void check_members(const std::string& flag, const Json& object,
                   const std::vector<std::string>& accepted) {
  for (const auto& [key, value] : object.items()) {
    if (std::find(accepted.begin(), accepted.end(), key) == accepted.end()) {
      throw UsageError(fmt::format("--{}: unknown member '{}'", flag, key),
                       fmt::format("accepted: {}", fmt::join(accepted, ", ")));
    }
  }
}

std::string member_string(const std::string& flag, const Json& object, const char* key) {
  if (!object.contains(key) || object[key].is_null()) return {};
  if (!object[key].is_string()) {
    throw UsageError(fmt::format("--{}.{}: not a string", flag, key));
  }
  return object[key].get<std::string>();
}

void check_dtype(const std::string& flag, const std::string& name) {
  if (name == "fp8_e5m2") {
    throw UsageError(fmt::format("{}: fp8_e5m2 has too few mantissa bits for keys", flag),
                     "use fp8 (e4m3)");
  }
  if (!name.empty()) check_choice(flag, name, kDTypes);
}

void check_attention_config(const EngineFlags& flags, std::vector<std::string>& notes) {
  const std::string flag = "attention-config";
  const Json& config = flags.attention_config;
  check_members(flag, config,
                {"indexer_kv_dtype", "indexer_decode_cp", "dequant", "backend",
                 "use_trtllm_attention", "minimax_m3_msa_decode_backend", "use_cudnn_prefill",
                 "disable_flashinfer_prefill", "flash_attn_version"});
  check_dtype("--attention-config.indexer_kv_dtype",
              member_string(flag, config, "indexer_kv_dtype"));
  if (const std::string mode = member_string(flag, config, "dequant"); !mode.empty()) {
    check_choice("--attention-config.dequant", mode, {"e4m3", "exact", "auto"});
  }
  if (config.contains("indexer_decode_cp")) {
    if (!config["indexer_decode_cp"].is_boolean()) {
      throw UsageError("--attention-config.indexer_decode_cp: not true or false");
    }
    if (config["indexer_decode_cp"].get<bool>()) {
      notes.emplace_back(
          "--attention-config.indexer_decode_cp: one rank scores all blocks here, so there is "
          "nothing to split; results are the same");
    }
  }
  for (const char* key :
       {"backend", "use_trtllm_attention", "minimax_m3_msa_decode_backend", "use_cudnn_prefill",
        "disable_flashinfer_prefill", "flash_attn_version"}) {
    if (config.contains(key)) {
      notes.push_back(fmt::format(
          "--attention-config.{}: names another engine's kernels; winnow uses its own", key));
    }
  }
}

SyntheticSwitch synthetic_switch(const EngineFlags& flags) {
  return flags.benchmark_mode ? SyntheticSwitch::kAllowed : SyntheticSwitch::kRefused;
}

void check_speculative_config(const EngineFlags& flags) {
  if (flags.speculative_config.empty()) return;
  try {
    (void)parse_speculative_config(flags.speculative_config, synthetic_switch(flags));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument) throw;
    throw UsageError(error.what(), error.hint());
  }
}

// Ranks, stages and engines each need a device; a decode context group only splits work that one
// rank does as well.
void check_parallel_sizes(const EngineFlags& flags, std::vector<std::string>& notes) {
  const auto above_one = [](const char* flag, const std::optional<std::int64_t>& size) {
    if (!size) return false;
    if (*size < 1) throw UsageError(fmt::format("{}: {} is below 1", flag, *size));
    return *size > 1;
  };
  const auto refuse_above_one = [&](const char* flag, const std::optional<std::int64_t>& size) {
    if (!above_one(flag, size)) return;
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("{} {}: needs {} devices, and this machine runs the model on 1, its CPU", flag,
                    *size, *size),
        "leave the flag out or give 1");
  };
  refuse_above_one("--tensor-parallel-size", flags.tensor_parallel_size);
  refuse_above_one("--pipeline-parallel-size", flags.pipeline_parallel_size);
  refuse_above_one("--data-parallel-size", flags.data_parallel_size);
  if (above_one("--decode-context-parallel-size", flags.decode_context_parallel_size)) {
    notes.push_back(fmt::format(
        "--decode-context-parallel-size {}: this machine runs the model as one CPU rank, which "
        "reads the whole context itself",
        *flags.decode_context_parallel_size));
  }
}

void check_quantization_config(const EngineFlags& flags, std::vector<std::string>& notes) {
  const Json& config = flags.quantization_config;
  if (config.empty()) return;
  check_members("quantization-config", config, {"moe"});
  const std::string moe = member_string("quantization-config", config, "moe");
  check_choice("--quantization-config.moe", moe, {"nvfp4", "mxfp8", "bf16"});
  if (moe != "nvfp4") {
    notes.push_back(fmt::format(
        "--quantization-config.moe {}: the CPU kernels read the experts as the checkpoint stores "
        "them, so nothing is converted and the numerics stay those of the checkpoint",
        moe));
  }
}

}  // namespace

std::string EngineFlags::model_folder() const {
  std::vector<std::string> all = words;
  if (!model.empty()) all.push_back(model);
  if (all.empty())
    throw UsageError("no model folder given", "e.g. winnow serve models/winnow-tiny");
  if (all.size() > 1) {
    throw UsageError(fmt::format("one model folder expected, got {}", fmt::join(all, ", ")));
  }
  return all.front();
}

void add_engine_flags(FlagSet& set, EngineFlags& flags) {
  set.group("Model");
  set.add_positional("MODEL", flags.words,
                     "Model folder: config.json, *.safetensors, tokenizer.json, chat template");
  set.add_string("model", flags.model, "The same as the MODEL word");
  set.add_string("config", flags.config_file, "YAML file of flags; the command line wins");
  set.add_string("tokenizer", flags.tokenizer, "Folder or tokenizer.json to use instead");
  set.add_string("chat-template", flags.chat_template, "File (or text) to use instead");
  set.add_string("generation-config", flags.generation_config,
                 "Sampling defaults: auto (the checkpoint's), vllm (neutral), or a folder");
  set.add_json("override-generation-config", flags.override_generation_config,
               "Sampling defaults laid over those");
  set.add_string("max-model-len", flags.max_model_len,
                 "Prompt and answer together, e.g. 8192, 32k, 1M, auto (largest that fits)");
  set.add_switch("allow-long-max-model-len", flags.allow_long_max_model_len,
                 "Allow more than the checkpoint's own length");
  set.add_integer("seed", flags.seed, "Seed of requests without one (default 0)");

  set.group("Scheduling");
  set.add_human_integer("max-num-seqs", flags.max_num_seqs, "Sequences in a step (default 256)");
  set.add_human_integer("max-num-batched-tokens", flags.max_num_batched_tokens,
                        "Tokens of a step: the prefill chunk (default 2048)");
  set.add_human_integer("long-prefill-token-threshold", flags.long_prefill_token_threshold,
                        "Largest chunk of one prompt (default: the step's)");
  set.add_real("target-itl-ms", flags.target_itl_ms,
               "Cut prompts so that running answers get a token this often; 0: off");
  set.add_human_integer("max-num-queued-reqs", flags.max_num_queued_reqs,
                        "Waiting requests before 503 (default 2048)");
  set.add_human_integer("max-num-queued-tokens", flags.max_num_queued_tokens,
                        "Waiting prompt tokens before 503 (default: no limit)");
  set.add_string("scheduling-policy", flags.scheduling_policy, "Order of requests",
                 {"fcfs", "priority"});
  set.add_switch("fair-admission", flags.fair_admission,
                 "Take turns between sessions at prefill; off: strict arrival order");
  set.add_human_integer("max-logprobs", flags.max_logprobs,
                        "Largest logprobs of a request (default 20; -1: vocabulary)");

  set.group("KV cache");
  set.add_integer("block-size", flags.block_size, "Tokens of a block; the checkpoint's");
  set.add_string("kv-cache-dtype", flags.kv_cache_dtype,
                 "K and V storage: auto (as the checkpoint asks), bf16, fp8, nvfp4");
  set.add_json("attention-config", flags.attention_config,
               "Members: indexer_kv_dtype, dequant (e4m3, exact), indexer_decode_cp");
  set.add_string("dequant-mode", flags.dequant_mode,
                 "How NVFP4 caches are read; the same as --attention-config.dequant",
                 {"auto", "e4m3", "exact"});
  set.add_human_integer("kv-cache-memory-bytes", flags.kv_cache_memory_bytes,
                        "Exact size of the KV pool, e.g. 2G");
  set.add_integer("num-gpu-blocks-override", flags.num_gpu_blocks_override,
                  "Exact number of KV blocks");
  set.add_real("gpu-memory-utilization", flags.gpu_memory_utilization,
               "Share of free memory for the KV pool, (0, 1] (default: what max-num-seqs "
               "sequences need, at most 0.5, or 0.9 of a GPU's)");
  set.add_switch("enable-prefix-caching", flags.enable_prefix_caching,
                 "Share the blocks of equal prompt beginnings");
  set.add_string("prefix-cache-secret", flags.prefix_cache_secret,
                 "Key of the prefix hashes, for hosts shared by strangers");

  set.group("Machine");
  set.add_string("device", flags.device, "Where to compute", {"auto", "cpu", "cuda"});
  set.add_string("backend", flags.backend, "Kernels; cuda-exact: a GPU with the bits of a CPU",
                 {ops::kBackendNames.begin(), ops::kBackendNames.end()});
  set.add_integer("threads", flags.threads, "Compute threads (default: one per core)");
  set.add_switch("pin-threads", flags.pin_threads, "Bind each compute thread to its core");
  set.add_string("log-level", flags.log_level, "Log lines on stderr",
                 {"debug", "info", "warning", "error", "off"});

  set.group("Parallelism and speculation");
  set.add_integer("tensor-parallel-size,tp", flags.tensor_parallel_size, "Tensor-parallel ranks");
  set.add_integer("pipeline-parallel-size,pp", flags.pipeline_parallel_size, "Pipeline stages");
  set.add_integer("data-parallel-size,dp", flags.data_parallel_size, "Engines behind one port");
  set.add_integer("decode-context-parallel-size,dcp", flags.decode_context_parallel_size,
                  "Ranks that share a context at decode");
  set.add_json("speculative-config", flags.speculative_config,
               "Drafting by the checkpoint's own drafter: method (dspark), "
               "num_speculative_tokens, …");
  set.add_switch("benchmark-mode", flags.benchmark_mode,
                 "Allow drafts to be accepted by decree (rejection_sample_method: synthetic): for "
                 "measuring speed, the text is meaningless");
  set.add_json("quantization-config", flags.quantization_config,
               "Members: moe (nvfp4, mxfp8, bf16)");
}

std::string backend_name(const EngineFlags& flags) {
  const bool is_cuda = flags.backend.starts_with("cuda");
  if (flags.device == "auto" || (flags.device == "cuda" && is_cuda)) return flags.backend;
  if (flags.backend == "auto") return flags.device;
  if (flags.device == "cuda" || is_cuda) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("--backend {} does not run on --device {}", flags.backend, flags.device),
        "leave one of the two out");
  }
  return flags.backend;
}

std::vector<std::string> check_engine_flags(const EngineFlags& flags) {
  std::vector<std::string> notes;
  (void)backend_name(flags);
  check_dtype("--kv-cache-dtype", flags.kv_cache_dtype);
  check_attention_config(flags, notes);
  check_parallel_sizes(flags, notes);
  check_speculative_config(flags);
  (void)lora_settings(flags.lora);
  check_quantization_config(flags, notes);
  if (flags.gpu_memory_utilization < 0 || flags.gpu_memory_utilization > 1) {
    throw UsageError(
        fmt::format("--gpu-memory-utilization: {} is not in (0, 1]", flags.gpu_memory_utilization));
  }
  if (!(flags.target_itl_ms >= 0)) {
    throw UsageError(fmt::format("--target-itl-ms: {} is below 0", flags.target_itl_ms));
  }
  return notes;
}

}  // namespace winnow::cli
