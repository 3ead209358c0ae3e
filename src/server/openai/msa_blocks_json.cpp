#include "server/openai/msa_blocks_json.h"

#include <openssl/evp.h>

#include <algorithm>
#include <string>

#include "server/openai/logprobs_json.h"

namespace winnow::server {
namespace {

constexpr std::int64_t kMaxSelectionBytes = 32LL << 20;  // of one request, before base64
constexpr std::int64_t kEntryBytes = 2;

std::string base64(const std::vector<unsigned char>& bytes) {
  std::string out((bytes.size() + 2) / 3 * 4 + 1, '\0');  // EVP_EncodeBlock ends with a NUL
  const int size = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()), bytes.data(),
                                   static_cast<int>(bytes.size()));
  out.resize(static_cast<std::size_t>(size));
  return out;
}

Json kept_json(const std::vector<std::int32_t>& blocks) {
  if (blocks.empty()) return nullptr;
  std::vector<unsigned char> bytes;
  bytes.reserve(blocks.size() * kEntryBytes);
  for (const std::int32_t block : blocks) {
    const auto value = static_cast<std::uint16_t>(block);  // -1 is 65535
    bytes.push_back(static_cast<unsigned char>(value & 0xFFU));
    bytes.push_back(static_cast<unsigned char>(value >> 8U));
  }
  return base64(bytes);
}

}  // namespace

Json msa_shape_json(const MsaShape& shape) {
  return {{"layers", shape.layers},
          {"num_groups", shape.num_groups},
          {"top_k", shape.top_k},
          {"block_tokens", shape.block_tokens}};
}

std::int32_t max_block_selections(const MsaShape& shape, std::int64_t num_choices) {
  const std::int64_t token_bytes =
      std::ssize(shape.layers) * shape.num_groups * shape.top_k * kEntryBytes;
  return static_cast<std::int32_t>(
      std::max<std::int64_t>(1, kMaxSelectionBytes / (token_bytes * num_choices)));
}

Json msa_blocks_json(const Tokenizer& tokenizer, const std::vector<SampledToken>& tokens,
                     std::int64_t position) {
  Json out = Json::array();
  for (const SampledToken& sampled : tokens) {
    out.push_back({{"token", token_text(tokenizer, sampled.token, false)},
                   {"position", position++},
                   {"kept", kept_json(sampled.kept_blocks)}});
  }
  return out;
}

}  // namespace winnow::server
