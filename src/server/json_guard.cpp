#include "server/json_guard.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"

namespace winnow::server {
namespace {

constexpr std::size_t kMaxNameShown = 64;

class Guard {
 public:
  Guard(std::string_view text, int max_depth, std::int64_t max_comparisons)
      : text_(text), max_depth_(max_depth), comparisons_left_(max_comparisons) {}

  void run() {
    while (position_ < text_.size()) {
      const char c = text_[position_];
      if (c == '"') {
        take_string();
      } else if (c == '{' || c == '[') {
        open();
      } else if (c == '}' || c == ']') {
        if (!levels_.empty()) levels_.pop_back();
        ++position_;
      } else if (c == ':') {
        if (!levels_.empty()) add_member(levels_.back());
        ++position_;
      } else if (c == '-' || c == '+' || (c >= '0' && c <= '9') || c == 'N' || c == 'I' ||
                 c == 'n' || c == 'i') {
        take_word();
      } else {
        ++position_;
      }
    }
  }

 private:
  void take_string() {
    const std::size_t begin = ++position_;
    while (position_ < text_.size() && text_[position_] != '"') {
      position_ += text_[position_] == '\\' ? 2 : 1;
    }
    const std::size_t end = std::min(position_, text_.size());
    last_string_ = text_.substr(begin, end - begin);
    ++position_;
  }

  struct Level {
    std::string_view name;  // the key being read; empty in arrays
    std::int64_t num_members = 0;
  };

  void add_member(Level& level) {
    level.name = last_string_;
    comparisons_left_ -= level.num_members++;
    if (comparisons_left_ < 0) {
      throw Error(ErrorCode::kInvalidJson, "the JSON has objects with too many members");
    }
  }

  void open() {
    levels_.emplace_back();
    if (static_cast<int>(levels_.size()) > max_depth_) {
      throw Error(ErrorCode::kInvalidJson,
                  fmt::format("the JSON is nested more than {} levels deep", max_depth_));
    }
    ++position_;
  }

  void take_word() {
    const std::size_t begin = position_;
    while (position_ < text_.size() &&
           std::string_view(",]}: \t\r\n\"[{").find(text_[position_]) == std::string_view::npos) {
      ++position_;
    }
    const std::string_view word = text_.substr(begin, position_ - begin);
    std::string_view unsigned_word = word;
    if (unsigned_word.starts_with('-') || unsigned_word.starts_with('+')) {
      unsigned_word.remove_prefix(1);
    }
    if (unsigned_word == "NaN" || unsigned_word == "Infinity" || unsigned_word == "nan" ||
        unsigned_word == "inf" || unsigned_word == "Inf") {
      fail(word);
    }
    if (!unsigned_word.empty() && unsigned_word.front() >= '0' && unsigned_word.front() <= '9') {
      double value = 0;
      const auto result = std::from_chars(word.data(), word.data() + word.size(), value);
      if (result.ec == std::errc::result_out_of_range && is_too_large(word)) fail(word);
    }
  }

  /// from_chars reports both overflow and underflow; only the first is refused.
  static bool is_too_large(std::string_view word) {
    return std::isinf(std::strtod(std::string(word).c_str(), nullptr));
  }

  [[noreturn]] void fail(std::string_view word) const {
    std::string_view name;
    for (auto it = levels_.rbegin(); it != levels_.rend() && name.empty(); ++it) name = it->name;
    const std::string shown(name.substr(0, kMaxNameShown));
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: {} is not a finite number", shown.empty() ? "body" : shown,
                            word.substr(0, kMaxNameShown)),
                {}, shown);
  }

  std::string_view text_;
  int max_depth_;
  std::int64_t comparisons_left_;
  std::size_t position_ = 0;
  std::string_view last_string_;
  std::vector<Level> levels_;
};

}  // namespace

void check_json_text(std::string_view text, int max_depth, std::int64_t max_comparisons) {
  Guard(text, max_depth, max_comparisons).run();
}

}  // namespace winnow::server
