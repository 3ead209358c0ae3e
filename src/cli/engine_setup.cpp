#include "cli/engine_setup.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "base/log.h"
#include "base/machine.h"
#include "base/memory.h"
#include "cli/fit_advice.h"
#include "cli/generation_defaults.h"
#include "cli/progress_bar.h"
#include "cli/speculation_setup.h"
#include "cli/usage_error.h"
#include "cli/value_grammar.h"
#include "model/load_decoder.h"
#include "server/template_renderer.h"

namespace winnow::cli {
namespace {

constexpr std::int64_t kDefaultMaxSeqs = 256;
constexpr std::int64_t kDefaultBatchedTokens = 2048;
constexpr double kDefaultShare = 0.5;        // of free memory, unless the flag says otherwise
constexpr double kDefaultDeviceShare = 0.9;  // of a GPU's, which nothing else should need
constexpr std::size_t kMaxBanned = 1024;     // more: the vocabulary and the tokenizer do not belong
constexpr const char* kTurnOpeners[] = {"]~b]", "]~!b["};
constexpr const char* kInputOnlyMarkers[] = {"]<]image[>[", "]<]video[>[", "]<]start of image[>[",
                                             "]<]end of image[>["};

std::string member(const Json& object, const char* key) {
  return object.contains(key) && object[key].is_string() ? object[key].get<std::string>() : "";
}

std::optional<CacheDType> cache_dtype(const std::string& name, std::string_view flag) {
  if (name.empty() || name == "auto") return std::nullopt;
  if (name == "bfloat16") return CacheDType::kBF16;
  if (name == "fp8_e4m3") return CacheDType::kFp8;
  return parse_cache_dtype(name, flag);
}

/// none: the largest that fits.
std::optional<std::int32_t> wanted_length(const EngineFlags& flags, const ModelConfig& config) {
  const auto own =
      static_cast<std::int32_t>(std::min<std::int64_t>(config.max_position_embeddings, INT32_MAX));
  if (flags.max_model_len.empty()) return own;
  if (flags.max_model_len == "auto" || flags.max_model_len == "-1") return std::nullopt;
  const std::int64_t length = parse_human_integer("--max-model-len", flags.max_model_len);
  if (length < 1) throw UsageError(fmt::format("--max-model-len: {} is below 1", length));
  const char* environment = std::getenv("VLLM_ALLOW_LONG_MAX_MODEL_LEN");
  const bool is_allowed =
      flags.allow_long_max_model_len || (environment != nullptr && *environment == '1');
  if (length > own && !is_allowed) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--max-model-len {} is above the checkpoint's max_position_embeddings "
                            "{}",
                            length, own),
                "add --allow-long-max-model-len if the model really reaches that far");
  }
  return static_cast<std::int32_t>(std::min<std::int64_t>(length, INT32_MAX));
}

void check_counts(const EngineFlags& flags) {
  const auto check = [](const char* flag, const std::optional<std::int64_t>& value,
                        std::int64_t low,
                        std::int64_t high) { (void)bounded(flag, value, low, low, high); };
  check("--max-num-seqs", flags.max_num_seqs, 1, 65536);
  check("--max-num-batched-tokens", flags.max_num_batched_tokens, 1, 1 << 20);
  check("--long-prefill-token-threshold", flags.long_prefill_token_threshold, 0, INT32_MAX);
  check("--max-num-queued-reqs", flags.max_num_queued_reqs, 1, 1 << 20);
  check("--max-num-queued-tokens", flags.max_num_queued_tokens, 0, INT64_MAX);
  check("--threads", flags.threads, 1, 4096);
  check("--max-logprobs", flags.max_logprobs, -1, INT32_MAX);
  check("--num-gpu-blocks-override", flags.num_gpu_blocks_override, 1, INT32_MAX);
  check("--kv-cache-memory-bytes", flags.kv_cache_memory_bytes, 1, INT64_MAX);
}

/// Never more than max_num_seqs sequences of full length can use, so that a small model does not
/// claim half of the machine.
PoolSize plan_pool(const EngineFlags& flags, const ModelConfig& config, const CacheRowLayout& cache,
                   const EngineOptions& engine, const ops::Memory& memory) {
  PoolSizeRequest request;
  request.available_bytes =
      memory.available_bytes() - logits_bytes(engine, config.vocab_size, memory);
  const double default_share = memory.is_host() ? kDefaultShare : kDefaultDeviceShare;
  request.utilization =
      flags.gpu_memory_utilization > 0 ? flags.gpu_memory_utilization : default_share;
  request.cache_memory_bytes = flags.kv_cache_memory_bytes;
  request.num_blocks_override = flags.num_gpu_blocks_override;
  request.row_bytes = cache.row_bytes();
  request.block_tokens = config.block_tokens;
  request.config_max_model_len =
      static_cast<std::int32_t>(std::min<std::int64_t>(config.max_position_embeddings, INT32_MAX));
  request.max_model_len = wanted_length(flags, config);
  PoolSize size;
  try {
    size = plan_pool_size(request);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kOutOfMemory) throw;
    throw Error(error.code(), error.what(), fit_advice(request, cache.shape()), error.param());
  }
  const bool is_exact = flags.kv_cache_memory_bytes || flags.num_gpu_blocks_override ||
                        flags.gpu_memory_utilization > 0;
  const std::int64_t per_sequence =
      (size.max_model_len + config.block_tokens - 1) / config.block_tokens + 1;
  if (!is_exact && size.num_blocks > per_sequence * engine.max_num_seqs) {
    request.num_blocks_override = per_sequence * engine.max_num_seqs;
    size = plan_pool_size(request);
  }
  return size;
}

std::string read_text_file(const std::filesystem::path& path, const char* flag) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(ErrorCode::kIo, fmt::format("{} {}: cannot be read", flag, path.string()));
  return {std::istreambuf_iterator<char>(file), {}};
}

ChatTemplate load_template(const EngineFlags& flags, const std::filesystem::path& folder) {
  if (flags.chat_template.empty()) return ChatTemplate::from_folder(folder);
  if (flags.chat_template.find("{%") != std::string::npos ||
      flags.chat_template.find("{{") != std::string::npos) {
    return ChatTemplate(flags.chat_template, "--chat-template");
  }
  return ChatTemplate(read_text_file(flags.chat_template, "--chat-template"), flags.chat_template);
}

/// Ids the model may not say: rows of the embedding without a string, and markers that only stand
/// for input media.
std::vector<TokenId> find_banned_tokens(const Tokenizer& tokenizer, std::int32_t vocab_size) {
  std::vector<TokenId> out;
  for (const char* marker : kInputOnlyMarkers) {
    if (const auto id = tokenizer.token_to_id(marker)) out.push_back(*id);
  }
  for (TokenId id = 0; id < vocab_size && out.size() <= kMaxBanned; ++id) {
    if (!tokenizer.id_to_token(id)) out.push_back(id);
  }
  if (out.size() > kMaxBanned) {
    spdlog::warn(
        "more than {} of the model's {} token ids have no string in the tokenizer; is "
        "tokenizer.json from another checkpoint?",
        kMaxBanned, vocab_size);
    out.clear();
  }
  return out;
}

}  // namespace

std::unique_ptr<EngineSetup> load_engine(const EngineFlags& flags) {
  ProgressBar bar("loading");
  return std::make_unique<EngineSetup>(
      flags, nullptr, [&bar](std::int64_t done, std::int64_t total) { bar.update(done, total); });
}

DecoderOptions decoder_options(const EngineFlags& flags) {
  DecoderOptions options;
  options.kv_dtype = cache_dtype(flags.kv_cache_dtype, "--kv-cache-dtype");
  options.index_dtype = cache_dtype(member(flags.attention_config, "indexer_kv_dtype"),
                                    "--attention-config.indexer_kv_dtype");
  std::string mode = flags.dequant_mode;
  if (mode.empty()) mode = member(flags.attention_config, "dequant");
  if (!mode.empty() && mode != "auto") options.dequant = parse_dequant_mode(mode);
  options.max_num_batched_tokens =
      static_cast<std::int32_t>(flags.max_num_batched_tokens.value_or(kDefaultBatchedTokens));
  options.num_threads = static_cast<int>(flags.threads.value_or(0));
  options.pin_threads = flags.pin_threads;
  return options;
}

std::filesystem::path resolve_model_folder(const std::string& model) {
  std::filesystem::path path(model);
  if (std::filesystem::is_directory(path)) return path;
  if (std::filesystem::exists(path)) {
    throw Error(ErrorCode::kNotFound, fmt::format("'{}' is a file, not a model folder", model),
                "give the folder that holds config.json");
  }
  const bool is_hub_id = std::count(model.begin(), model.end(), '/') == 1 &&
                         !model.starts_with('/') && !model.starts_with('.');
  if (is_hub_id) {
    throw Error(ErrorCode::kNotFound,
                fmt::format("there is no folder '{}', and models are not downloaded", model),
                fmt::format("get it with `hf download {} --local-dir {}` and serve that folder",
                            model, model.substr(model.find('/') + 1)));
  }
  throw Error(ErrorCode::kNotFound, fmt::format("there is no folder '{}'", model));
}

std::vector<TokenId> stop_tokens(const std::vector<TokenId>& eos, const Tokenizer& tokenizer) {
  std::vector<TokenId> out = eos;
  for (const char* opener : kTurnOpeners) {
    const auto id = tokenizer.token_to_id(opener);
    if (id && std::find(out.begin(), out.end(), *id) == out.end()) out.push_back(*id);
  }
  return out;
}

EngineSetup::EngineSetup(const EngineFlags& flags, StepObserver* observer,
                         const std::function<void(std::int64_t, std::int64_t)>& progress) {
  const auto start = std::chrono::steady_clock::now();
  check_counts(flags);
  folder_ = resolve_model_folder(flags.model_folder());
  const ModelConfig config = read_model_config(folder_);
  if (flags.block_size && *flags.block_size != config.block_tokens) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--block-size {} differs from the checkpoint's sparse block of {} "
                            "tokens; selection is by whole blocks, so they must be equal",
                            *flags.block_size, config.block_tokens),
                "leave --block-size out");
  }
  // Refused before weights are read.
  const std::optional<std::int32_t> length = wanted_length(flags, config);
  defaults_ = read_generation_defaults(flags, config);
  const std::filesystem::path tokenizer_path =
      flags.tokenizer.empty() ? folder_ : std::filesystem::path(flags.tokenizer);
  tokenizer_ = std::make_unique<Tokenizer>(Tokenizer::from_file(tokenizer_path));
  try {
    renderer_ = std::make_unique<server::TemplateRenderer>(load_template(flags, folder_));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kNotFound || !flags.chat_template.empty()) throw;
    spdlog::warn("the checkpoint has no chat template: only plain completions are served");
  }

  DecoderOptions options = decoder_options(flags);
  options.max_positions = length.value_or(0);
  const std::int64_t max_length = length.value_or(config.max_position_embeddings);
  const std::optional<SpeculationPlan> speculation = plan_speculation(
      flags, {.folder = folder_,
              .config = config,
              .cache_dtype = options.kv_dtype.value_or(config.default_cache_dtype()),
              .max_model_len = max_length});
  if (speculation) add_drafter_options(*speculation, options);
  model_ =
      std::make_unique<LoadedModel>(load_decoder(folder_, backend_name(flags), options, progress));
  Decoder& decoder = *model_->decoder;
  vocab_size_ = config.vocab_size;
  EngineOptions engine;
  engine.max_num_seqs = static_cast<std::int32_t>(flags.max_num_seqs.value_or(
      std::min<std::int64_t>(kDefaultMaxSeqs, options.max_num_batched_tokens)));
  if (speculation) {
    drafter_ = std::make_unique<LoadedDrafter>(
        attach_drafter(*speculation, decoder, max_length, progress));
    engine.speculation = speculation_options(*speculation);
    facts_.speculation = describe(*speculation);
    facts_.drafter_bytes = drafter_->drafter->weight_bytes();
    facts_.num_speculative_tokens = engine.speculation.num_drafts;
    facts_.is_acceptance_synthetic = speculation->config.is_synthetic();
  }
  facts_.lora = lora_settings(flags.lora);
  if (facts_.lora) {
    open_adapters();
    engine.max_adapters = facts_.lora->max_loras;
  }
  facts_.row_bytes = decoder.cache_layout().row_bytes();
  engine.max_num_batched_tokens = options.max_num_batched_tokens;
  facts_.pool = plan_pool(flags, config, decoder.cache_layout(), engine, *decoder.memory());
  decoder.allocate_pool(facts_.pool.num_blocks);
  banned_tokens_ = find_banned_tokens(*tokenizer_, vocab_size_);

  engine.max_model_len = facts_.pool.max_model_len;
  engine.max_num_queued_requests =
      static_cast<std::int32_t>(flags.max_num_queued_reqs.value_or(2048));
  engine.max_num_queued_tokens = flags.max_num_queued_tokens.value_or(0);
  engine.long_prefill_token_threshold =
      static_cast<std::int32_t>(flags.long_prefill_token_threshold.value_or(0));
  engine.target_itl_ms = flags.target_itl_ms;
  engine.enable_prefix_caching = flags.enable_prefix_caching;
  engine.policy =
      flags.scheduling_policy == "priority" ? SchedulingPolicy::kPriority : SchedulingPolicy::kFcfs;
  engine.fair_admission = flags.fair_admission;
  engine.max_logprobs = static_cast<std::int32_t>(flags.max_logprobs.value_or(20));
  engine.seed = flags.seed.value_or(0);
  engine.stop_token_ids = stop_tokens(config.eos_token_ids, *tokenizer_);
  grammars_ = std::make_unique<GrammarCompiler>(*tokenizer_, vocab_size_, engine.stop_token_ids);
  engine.prefix_cache_secret = flags.prefix_cache_secret;
  engine_ = std::make_unique<Engine>(engine, decoder, observer);
  client_ = server::make_engine_client(*engine_);

  facts_.model_type = config.model_type;
  facts_.backend = decoder.backend().name;
  facts_.machine = decoder.backend().machine;
  if (!decoder.memory()->is_host()) {
    facts_.device_memory = decoder.memory()->uses();
    facts_.free_device_bytes = decoder.memory()->available_bytes();
  }
  const CacheRowShape& cache = decoder.cache_layout().shape();
  facts_.kv_dtype = cache_dtype_name(cache.kv_dtype);
  facts_.index_dtype = cache_dtype_name(cache.index_dtype);
  facts_.dequant = dequant_mode_name(decoder.dequant_mode());
  facts_.weight_bytes = decoder.weight_bytes();
  facts_.block_tokens = config.block_tokens;
  facts_.max_num_seqs = engine.max_num_seqs;
  facts_.max_num_batched_tokens = engine.max_num_batched_tokens;
  facts_.num_threads = options.num_threads > 0 ? options.num_threads : detect_machine().num_cores;
  facts_.load_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Before the KV pool takes what memory is left.
void EngineSetup::open_adapters() {
  Decoder& decoder = *model_->decoder;
  const AdapterLimits limits{.max_rank = facts_.lora->max_rank};
  adapters_ = std::make_unique<server::AdapterRegistry>(
      [&decoder, limits](const std::filesystem::path& folder) {
        return decoder.load_adapter(folder, limits);
      },
      facts_.lora->max_loaded);
  for (const LoraModule& module : facts_.lora->modules) {
    try {
      (void)adapters_->load(
          {.name = module.name, .path = module.path, .base_model = module.base_model});
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("adapter '{}': {}", module.name, error.what()),
                  error.hint());
    }
  }
}

EngineSetup::~EngineSetup() {
  client_.reset();
  engine_.reset();
}

server::ServingModel EngineSetup::serving_model(std::vector<std::string> names) const {
  server::ServingModel model;
  model.names = std::move(names);
  const std::filesystem::path whole = std::filesystem::weakly_canonical(folder_);
  model.root = whole.filename().string();
  model.created = std::chrono::duration_cast<std::chrono::seconds>(
                      std::chrono::system_clock::now().time_since_epoch())
                      .count();
  model.max_model_len = facts_.pool.max_model_len;
  model.vocab_size = vocab_size_;
  model.num_speculative_tokens = facts_.num_speculative_tokens;
  model.defaults = defaults_;
  const SelectionShape selections = model_->decoder->selection_shape();
  model.msa = {.layers = selections.layers,
               .num_groups = selections.num_groups,
               .top_k = selections.top_k,
               .block_tokens = facts_.block_tokens};
  model.banned_tokens = banned_tokens_;
  model.tokenizer = tokenizer_.get();
  model.grammars = grammars_.get();
  model.chat_template = renderer_.get();
  model.engine = client_.get();
  model.adapters = adapters_.get();
  return model;
}

}  // namespace winnow::cli
