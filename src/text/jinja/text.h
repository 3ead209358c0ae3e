// A string that knows which of its bytes were written by the template and which came in with the
// request; see ChatTemplate::render_segments for the rule. Always well-formed UTF-8.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace winnow::jinja {

enum class Origin : bool { kTemplate, kValue };

class Text {
 public:
  Text() = default;
  Text(std::string bytes, Origin origin);

  const std::string& bytes() const { return bytes_; }
  std::size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }

  /// kTemplate only if every byte is: the origin of anything computed from the whole.
  Origin origin() const;

  void append(const Text& other);
  void append(std::string_view bytes, Origin origin);
  /// Bytes [begin, end), with their origins.
  Text part(std::size_t begin, std::size_t end) const;

  struct Run {
    std::size_t end;  // exclusive; begins where the run before it ends
    Origin origin;
  };
  /// Ascending; neighbours differ in origin.
  const std::vector<Run>& runs() const { return runs_; }

 private:
  std::string bytes_;
  std::vector<Run> runs_;
};

}  // namespace winnow::jinja
