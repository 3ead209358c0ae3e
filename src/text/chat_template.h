// Chat templates: the Jinja source of a model folder, rendered as transformers' apply_chat_template
// renders it (jinja2 in its immutable sandbox, trim_blocks and lstrip_blocks on, loop controls on).
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/text_segment.h"

namespace winnow {

namespace jinja {
class Value;
}

/// What one rendering may use before it is stopped with kTooLarge, so that neither a template nor
/// a request can hang or exhaust the process.
struct RenderLimits {
  std::int64_t max_steps = 50'000'000;                       // evaluated nodes and iterations
  std::int64_t max_output_bytes = std::int64_t{256} << 20;   // of the result and of any string
  std::int64_t max_allocated_bytes = std::int64_t{1} << 30;  // by all strings and lists made
  int max_depth = 1000;                                      // nested calls and expressions
};

struct RenderOptions {
  /// Time for strftime_now; the clock when absent.
  std::optional<std::chrono::system_clock::time_point> now;
  RenderLimits limits;
};

/// Immutable after construction; any number of threads may render at once.
class ChatTemplate {
 public:
  /// Throws Error (kInvalidCheckpoint) with the template's line for a syntax error or a construct
  /// that is not offered. `name` stands for the file in messages.
  explicit ChatTemplate(std::string_view source, std::string name = "chat template");

  /// chat_template.jinja of a model folder, else `chat_template` in its tokenizer_config.json (a
  /// string, or the entry named "default"). Throws kNotFound when there is neither.
  static ChatTemplate from_folder(const std::filesystem::path& folder);

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  /// `context` is an object; each member becomes a variable (messages, tools,
  /// add_generation_prompt, …). Throws Error: kInvalidArgument for what the template itself
  /// refuses (raise_exception) or cannot do with this context, kTooLarge past a limit.
  std::string render(const nlohmann::ordered_json& context,
                     const RenderOptions& options = {}) const;

  /// The same text, cut where its origin changes. Rule: a character is from the template if it was
  /// written in the template's source or computed from nothing else (a number of its own, a
  /// boolean, loop.index, the date); it is from the request if it was copied or derived from a
  /// string, key or number of the context, through slices, filters, methods and joins alike. Where
  /// a string is transformed as a whole (upper, tojson, format, …) one value character makes all
  /// of the result a value. Adjacent segments differ in origin; none is empty.
  std::vector<TextSegment> render_segments(const nlohmann::ordered_json& context,
                                           const RenderOptions& options = {}) const;

  /// For contexts built with jinja/json.h, which keeps integers beyond 64 bits as written.
  std::vector<TextSegment> render_segments(const jinja::Value& context,
                                           const RenderOptions& options = {}) const;

  const std::string& source() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace winnow
