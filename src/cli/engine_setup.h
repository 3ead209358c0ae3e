// From flags to a running engine: the model folder is read, weights are packed, the KV pool is
// sized and allocated, the engine thread started.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/engine_flags.h"
#include "engine/engine.h"
#include "engine/pool_size.h"
#include "grammar/grammar_compiler.h"
#include "model/decoder_options.h"
#include "server/adapters/adapter_registry.h"
#include "server/generation.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace winnow {
struct LoadedModel;
struct LoadedDrafter;
}  // namespace winnow

namespace winnow::cli {

/// Facts for the start-up table, /version and /metrics.
struct EngineFacts {
  std::string model_type, backend, kv_dtype, index_dtype, dequant;
  std::int64_t weight_bytes = 0;
  std::int64_t row_bytes = 0;  // of one KV block
  std::int32_t block_tokens = 0;
  std::string speculation;  // one line; empty: off
  std::int64_t drafter_bytes = 0;
  std::int32_t num_speculative_tokens = 0;
  bool is_acceptance_synthetic = false;
  std::optional<LoraSettings> lora;  // none: no adapters
  PoolSize pool;
  std::int32_t max_num_seqs = 0, max_num_batched_tokens = 0;
  int num_threads = 0;
  std::string machine;                                // a GPU's name; empty on a CPU
  std::map<std::string, std::int64_t> device_memory;  // bytes by use; empty on a CPU
  std::int64_t free_device_bytes = 0;
  double load_seconds = 0;
};

/// Owns everything a verb needs; members are destroyed in the right order.
class EngineSetup {
 public:
  /// `progress` gets source bytes done and in all while weights are packed. `observer` may be null
  /// and outlives this. Throws Error before weights are read for whatever the flags alone make
  /// impossible.
  EngineSetup(const EngineFlags& flags, StepObserver* observer,
              const std::function<void(std::int64_t, std::int64_t)>& progress);
  ~EngineSetup();
  EngineSetup(const EngineSetup&) = delete;
  EngineSetup& operator=(const EngineSetup&) = delete;

  Engine& engine() { return *engine_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const EngineFacts& facts() const { return facts_; }
  std::int32_t vocab_size() const { return vocab_size_; }
  server::AdapterRegistry* adapters() { return adapters_.get(); }  // null: none

  /// What the server and the terminal verbs work with. `names` may be filled in later.
  server::ServingModel serving_model(std::vector<std::string> names) const;

 private:
  void open_adapters();

  EngineFacts facts_;
  std::int32_t vocab_size_ = 0;
  std::filesystem::path folder_;
  server::GenerationDefaults defaults_;
  std::vector<TokenId> banned_tokens_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<GrammarCompiler> grammars_;
  std::unique_ptr<server::ChatRenderer> renderer_;  // null: the checkpoint has no template
  std::unique_ptr<LoadedModel> model_;
  std::unique_ptr<LoadedDrafter> drafter_;             // null: none
  std::unique_ptr<server::AdapterRegistry> adapters_;  // null: none
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<server::EngineClient> client_;
};

/// Sets up behind a progress bar, which a terminal sees.
std::unique_ptr<EngineSetup> load_engine(const EngineFlags& flags);

/// What the flags say about the forward pass.
DecoderOptions decoder_options(const EngineFlags& flags);

/// The folder, checked to exist; a hub id gets an error that says how to get the model.
std::filesystem::path resolve_model_folder(const std::string& model);

/// Where the tokenizer has them: the model's own stop ids besides eos (a model that opens a new
/// turn has finished its own).
std::vector<TokenId> stop_tokens(const std::vector<TokenId>& eos, const Tokenizer& tokenizer);

}  // namespace winnow::cli
