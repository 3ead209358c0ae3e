// The message object and its events. Source: spec/serving.md 2.6, serving-fields.md 2.8.
#pragma once

#include <memory>
#include <string>

#include "server/openai/reply_format.h"

namespace winnow::server {

struct MessagesFormatOptions {
  std::string id;
  std::string model;
  bool shows_thinking = true;
  bool is_cut_by_context = false;  // fewer tokens fit than were asked for
  bool has_context_management = false;
};

std::unique_ptr<ReplyFormat> make_messages_format(MessagesFormatOptions options);

}  // namespace winnow::server
