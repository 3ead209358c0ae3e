// The engine as the server sees it, so that handlers are tested without a model, and what a loaded
// checkpoint offers to requests.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "engine/engine.h"
#include "text/text_segment.h"

namespace winnow {
class GrammarCompiler;
class TokenCache;
class Tokenizer;
}  // namespace winnow

namespace winnow::server {

class AdapterRegistry;

class EngineClient {
 public:
  virtual ~EngineClient() = default;
  [[nodiscard]] virtual Engine::Submitted submit(GenerationRequest request) = 0;
  virtual void abort(RequestId id) = 0;
  virtual void stop_choice(RequestId id, std::int32_t choice) = 0;
  virtual EngineStats stats() const = 0;
};

/// Forwards to `engine`, which outlives it.
std::unique_ptr<EngineClient> make_engine_client(Engine& engine);

/// The checkpoint's chat template. Any thread.
class ChatRenderer {
 public:
  virtual ~ChatRenderer() = default;
  /// `variables` holds messages, tools, add_generation_prompt and the template's own switches.
  /// Throws Error{kInvalidArgument} with what the template raised.
  virtual std::vector<TextSegment> render(const nlohmann::ordered_json& variables) const = 0;
};

/// Sampling defaults of the checkpoint (generation_config.json) or of the command line; absent
/// ones take the API's own.
struct GenerationDefaults {
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<std::int64_t> top_k;
  std::optional<std::int64_t> max_new_tokens;
};

/// What each generated token's selection of KV blocks is made of; no layers: the model has none.
struct MsaShape {
  std::vector<std::int32_t> layers{};  // those with sparse attention
  std::int32_t num_groups = 0;         // each of them keeps blocks of its own
  std::int32_t top_k = 0;
  std::int32_t block_tokens = 0;
};

/// Set once loading is done, immutable afterwards; what it points to outlives the server.
struct ServingModel {
  std::vector<std::string> names;  // all are accepted, the first is reported
  std::string root;                // what /v1/models calls the folder
  std::int64_t created = 0;        // Unix seconds
  std::string fingerprint;         // system_fingerprint
  std::string version_body;        // JSON of /version
  std::int32_t max_model_len = 0;
  std::int32_t vocab_size = 0;
  std::int32_t num_speculative_tokens = 0;  // drafts of a step, at most; 0: nothing is drafted
  GenerationDefaults defaults;
  MsaShape msa;
  std::vector<TokenId> banned_tokens;  // never sampled: ids without a string, input-only markers
  const Tokenizer* tokenizer = nullptr;
  GrammarCompiler* grammars = nullptr;  // none: structured output is refused
  TokenCache* token_cache = nullptr;    // of that tokenizer; none: every prompt is encoded anew
  int num_encode_threads = 1;           // may encode a long prompt together
  const ChatRenderer* chat_template = nullptr;  // none: chat is refused
  EngineClient* engine = nullptr;
  AdapterRegistry* adapters = nullptr;  // further models by name; none: the server has none
};

}  // namespace winnow::server
