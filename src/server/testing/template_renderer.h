// A model folder's chat template behind the server's interface, without the model.
#pragma once

#include <filesystem>
#include <vector>

#include "server/generation.h"
#include "server/json_fields.h"
#include "text/chat_template.h"

namespace winnow::server::testing {

class TemplateRenderer final : public ChatRenderer {
 public:
  explicit TemplateRenderer(const std::filesystem::path& folder)
      : template_(ChatTemplate::from_folder(folder)) {}

  std::vector<TextSegment> render(const Json& variables) const override {
    // Chosen by type: the other overload's argument is incomplete here.
    constexpr auto kRender = static_cast<std::vector<TextSegment> (ChatTemplate::*)(
        const Json&, const RenderOptions&) const>(&ChatTemplate::render_segments);
    return (template_.*kRender)(variables, {});
  }

 private:
  ChatTemplate template_;
};

}  // namespace winnow::server::testing
