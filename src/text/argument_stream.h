// The JSON of a tool call's arguments while the call is being written: each byte as soon as nothing
// that may follow can change it, which for text is at once. Source: spec/frontend.md section 4.3.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "text/tool_arguments.h"

namespace winnow {

/// Gives a beginning of what tool_arguments() makes of the whole call. Where a call does what its
/// schema does not foresee (a key twice, text beside elements) it gives nothing more, and what it
/// gave may be wrong: the caller compares at the end.
class ArgumentStream {
 public:
  /// `schema` as for tool_arguments(); outlives the stream.
  explicit ArgumentStream(const nlohmann::ordered_json& schema);

  /// Bytes that became certain with `text`, which goes on where the last one ended.
  std::string add(std::string_view text);

 private:
  enum class Mode {
    kUndecided,  // text so far, of which nothing was written
    kText,       // a string whose beginning was written
    kObject,
    kArray,
    kHeld,  // written when it is complete
  };
  struct Frame {
    std::string key;
    const nlohmann::ordered_json* schema = nullptr;
    Mode mode = Mode::kUndecided;
    std::string text{};            // not written yet
    TaggedValue held{};            // kHeld: all of it
    std::set<std::string> keys{};  // of kObject
    std::size_t num_members = 0;
  };

  /// False: more text is needed.
  bool take_tag(std::string& out);
  void take_text(std::string_view text, std::string& out);
  void open(std::string key, std::string& out);
  void close(std::string_view key, std::string& out);
  void write_text(Frame& frame, std::string& out);
  void begin_value(std::string& out);
  const nlohmann::ordered_json* schema_of_member(Frame& parent, const std::string& key) const;

  ArgumentTyping typing_;
  std::vector<Frame> frames_;
  std::string pending_;
  bool is_begun_ = false;
  bool is_stopped_ = false;
};

}  // namespace winnow
