// Which KV blocks MSA kept for generated tokens, as replies report them (docs/api.md, "Kept
// blocks").
#pragma once

#include <cstdint>
#include <vector>

#include "engine/request.h"
#include "server/generation.h"
#include "server/json_fields.h"

namespace winnow {
class Tokenizer;
}

namespace winnow::server {

/// {layers, num_groups, top_k, block_tokens}: how to read the entries.
Json msa_shape_json(const MsaShape& shape);

/// How many tokens of each of `num_choices` choices can be reported, at most: what all of them
/// take stays within some tens of megabytes.
std::int32_t max_block_selections(const MsaShape& shape, std::int64_t num_choices);

/// [{token, position, kept}], one entry a token. `position`: of the first, counted from the start
/// of the prompt. `kept`: base64 of [layers][num_groups][top_k] 16-bit little-endian block numbers,
/// 65535 where a group kept fewer; null for a token that was not asked for.
Json msa_blocks_json(const Tokenizer& tokenizer, const std::vector<SampledToken>& tokens,
                     std::int64_t position);

}  // namespace winnow::server
