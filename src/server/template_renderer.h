// A chat template behind the interface by which the server renders conversations.
#pragma once

#include <utility>
#include <vector>

#include "server/generation.h"
#include "server/json_fields.h"
#include "text/chat_template.h"

namespace winnow::server {

class TemplateRenderer final : public ChatRenderer {
 public:
  explicit TemplateRenderer(ChatTemplate source) : template_(std::move(source)) {}

  std::vector<TextSegment> render(const Json& variables) const override {
    // Chosen by type: the other overload's argument is incomplete here.
    constexpr auto kRender = static_cast<std::vector<TextSegment> (ChatTemplate::*)(
        const Json&, const RenderOptions&) const>(&ChatTemplate::render_segments);
    return (template_.*kRender)(variables, {});
  }

 private:
  ChatTemplate template_;
};

}  // namespace winnow::server
