// Thinking as an opaque text that a client hands back unread: the `signature` of Anthropic's
// thinking blocks, the `encrypted_content` of OpenAI's reasoning items. It holds the thinking
// itself, so that a client which was not shown it, or dropped it, keeps the model's train of
// thought over the turns. It is no secret: who may see the seal may see the thinking.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace winnow::server {

std::string seal_thinking(std::string_view thinking);

/// What was sealed; nullopt for a text that is none of ours.
std::optional<std::string> open_seal(std::string_view seal);

}  // namespace winnow::server
