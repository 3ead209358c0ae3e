// config.json and generation_config.json of any bytes (separated by a zero byte): parsed or refused
// with a problem; an accepted config has sizes that the rest of the program can multiply.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/assert.h"
#include "base/error.h"
#include "checkpoint/json_file.h"
#include "checkpoint/model_config.h"
#include "formats/cache_row.h"

namespace {

using namespace winnow;

void check_accepted(const ModelConfig& config) {
  WINNOW_ASSERT(
      config.num_layers > 0 && config.layers.size() == static_cast<std::size_t>(config.num_layers),
      "one entry per layer", config.num_layers);
  WINNOW_ASSERT(config.num_heads % config.num_kv_heads == 0, "whole groups of query heads");
  WINNOW_ASSERT(config.rotary_dim <= config.head_dim && config.rotary_dim % 2 == 0, "rotary width");
  WINNOW_ASSERT(config.top_k_experts <= config.num_experts, "experts to choose from");
  WINNOW_ASSERT(config.swiglu_alpha > 0 && config.swiglu_limit > 0, "activation constants");
  for (const TokenId id : config.eos_token_ids) {
    WINNOW_ASSERT(id >= 0 && id < config.vocab_size, "token of the vocabulary", id);
  }
  const CacheRowLayout layout({.num_layers = config.num_layers,
                               .index_layers = config.sparse_layers(),
                               .num_kv_heads = config.num_kv_heads,
                               .head_dim = config.head_dim,
                               .index_head_dim = config.index_head_dim,
                               .block_tokens = config.block_tokens,
                               .kv_dtype = CacheDType::kBF16,
                               .index_dtype = CacheDType::kBF16,
                               .drafter = {}});
  WINNOW_ASSERT(layout.row_bytes() > 0, "row has a size", layout.row_bytes());
  (void)config.default_cache_dtype();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t split = input.find('\0');
  try {
    const nlohmann::json config = parse_json_object(input.substr(0, split), "config.json");
    nlohmann::json generation;
    if (split != std::string_view::npos) {
      generation = parse_json_object(input.substr(split + 1), "generation_config.json");
    }
    ProblemList problems;
    const ModelConfig parsed =
        parse_model_config(config, generation.is_object() ? &generation : nullptr, problems);
    if (problems.empty()) check_accepted(parsed);
  } catch (const Error& error) {
    WINNOW_ASSERT(!error.text().empty(), "an error says something");
  }
  return 0;
}
