#include "checkpoint/problem_list.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace winnow {

namespace {

constexpr std::size_t kShownProblems = 10;
constexpr std::size_t kShownBytes = 200;

}  // namespace

void ProblemList::throw_if_any(std::string_view subject, std::string_view full_list) const {
  if (problems_.empty()) return;
  if (problems_.size() == 1) throw Error(ErrorCode::kInvalidCheckpoint, problems_.front());
  std::string text = fmt::format("{}: {} problems", subject, problems_.size());
  const std::size_t shown = std::min(problems_.size(), kShownProblems);
  for (std::size_t i = 0; i < shown; ++i) text += fmt::format("\n  {}", problems_[i]);
  if (shown < problems_.size()) {
    text += fmt::format("\n  … and {} more{}", problems_.size() - shown, full_list);
  }
  throw Error(ErrorCode::kInvalidCheckpoint, text);
}

std::string printable(std::string_view text) {
  std::string shown(text.substr(0, kShownBytes));
  if (shown.size() < text.size()) {
    // Cut before a continuation byte, so that the text stays UTF-8.
    while (!shown.empty() && (static_cast<unsigned char>(text[shown.size()]) & 0xC0) == 0x80) {
      shown.pop_back();
    }
    shown += "…";
  }
  std::replace_if(
      shown.begin(), shown.end(),
      [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }, '?');
  return shown;
}

}  // namespace winnow
