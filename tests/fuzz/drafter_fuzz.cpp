// dspark/config.json of any bytes: parsed or refused with a problem; an accepted drafter fits the
// target and has sizes that the rest of the program can multiply.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/assert.h"
#include "base/error.h"
#include "checkpoint/drafter_config.h"
#include "checkpoint/json_file.h"
#include "checkpoint/model_config.h"
#include "formats/cache_row.h"

namespace {

using namespace winnow;

/// What tests/golden/nano-text has, which the corpus was made for.
ModelConfig target() {
  ModelConfig config;
  config.num_layers = 5;
  config.vocab_size = 512;
  config.hidden_size = 128;
  config.rotary_dim = 16;
  config.rope_theta = 5e6;
  config.rms_eps = 1e-6;
  config.swiglu_alpha = 1.702;
  config.swiglu_limit = 7;
  return config;
}

void check_accepted(const DrafterConfig& config) {
  WINNOW_ASSERT(config.hidden_size == 128 && config.vocab_size == 512, "the target's sizes");
  WINNOW_ASSERT(config.num_heads % config.num_kv_heads == 0, "whole groups of query heads");
  WINNOW_ASSERT(
      config.rotary_dim > 0 && config.rotary_dim <= config.head_dim && config.rotary_dim % 2 == 0,
      "rotary width", config.rotary_dim, config.head_dim);
  WINNOW_ASSERT(config.kind == DrafterKind::kMinimax || config.rotary_dim == config.head_dim,
                "whole heads are rotated");
  WINNOW_ASSERT(config.noise_token >= 0 && config.noise_token < 512, "a token of the vocabulary");
  WINNOW_ASSERT(config.num_streams() > 0, "streams");
  std::int32_t previous = -1;
  for (const std::int32_t layer : config.target_layers) {
    WINNOW_ASSERT(layer > previous && layer < 5, "ascending layers of the target", layer);
    previous = layer;
  }
  WINNOW_ASSERT(config.sliding_window > 0 && config.block_size > 0 && config.markov_rank > 0 &&
                    config.ffn_width > 0,
                "sizes");
  WINNOW_ASSERT(config.swiglu_limit > 0 && config.rope_theta > 0 && config.rms_eps > 0,
                "constants");
  const CacheRowLayout layout(
      {.num_layers = 1,
       .index_layers = {},
       .num_kv_heads = 1,
       .head_dim = 16,
       .index_head_dim = 16,
       .block_tokens = 128,
       .kv_dtype = CacheDType::kBF16,
       .index_dtype = CacheDType::kBF16,
       .drafter = CacheRowShape::Drafter{.num_layers = config.num_layers,
                                         .num_kv_heads = config.num_kv_heads,
                                         .head_dim = config.head_dim,
                                         .dtype = CacheDType::kFp8}});
  WINNOW_ASSERT(layout.row_bytes() > 0, "row has a size", layout.row_bytes());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const nlohmann::json config =
        parse_json_object({reinterpret_cast<const char*>(data), size}, "config.json");
    ProblemList problems;
    const DrafterConfig parsed = parse_drafter_config(config, target(), problems);
    if (problems.empty()) check_accepted(parsed);
  } catch (const Error&) {
    // Refused: not JSON.
  }
  return 0;
}
