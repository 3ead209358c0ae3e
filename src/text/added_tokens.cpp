#include "text/added_tokens.h"

#include <algorithm>

#include "text/unicode.h"

namespace winnow {

namespace {

std::size_t previous_character(std::string_view text, std::size_t end) {
  std::size_t begin = end - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return begin;
}

bool word_ends_at(std::string_view text, std::size_t end) {
  return end > 0 && is_word(step_utf8(text, previous_character(text, end)).code_point);
}

bool word_starts_at(std::string_view text, std::size_t begin) {
  return begin < text.size() && is_word(step_utf8(text, begin).code_point);
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(const std::vector<AddedToken>& tokens,
                                     const std::vector<std::string>& patterns)
    : tokens_(&tokens), nodes_(1) {
  std::fill(std::begin(first_), std::end(first_), -1);
  for (std::size_t index = 0; index < patterns.size(); ++index) {
    if (patterns[index].empty()) continue;
    std::int32_t node = 0;
    for (const char byte : patterns[index]) {
      auto& children = nodes_[static_cast<std::size_t>(node)].children;
      const auto found = std::find_if(children.begin(), children.end(),
                                      [&](const auto& child) { return child.first == byte; });
      if (found != children.end()) {
        node = found->second;
        continue;
      }
      const auto added = static_cast<std::int32_t>(nodes_.size());
      children.emplace_back(byte, added);
      if (node == 0) first_[static_cast<unsigned char>(byte)] = added;
      nodes_.emplace_back();
      node = added;
    }
    nodes_[static_cast<std::size_t>(node)].token = static_cast<std::int32_t>(index);
  }
}

std::pair<std::size_t, int> AddedTokenMatcher::longest_match(std::string_view text,
                                                             std::size_t position,
                                                             std::size_t limit) const {
  std::pair<std::size_t, int> best{position, -1};
  std::int32_t node = first_[static_cast<unsigned char>(text[position])];
  std::size_t i = position + 1;
  while (node >= 0) {
    const Node& current = nodes_[static_cast<std::size_t>(node)];
    if (current.token >= 0) best = {i, current.token};
    if (i == limit) break;
    const char byte = text[i++];
    node = -1;
    for (const auto& [label, child] : current.children) {
      if (label == byte) {
        node = child;
        break;
      }
    }
  }
  return best;
}

// `covered` is where the text not yet in `out` begins. A token that strips to its right may reach
// over the start of the next match; the library then reports both, and so do we.
void AddedTokenMatcher::add_match(std::string_view text, ByteRange match, int token,
                                  std::size_t& covered, std::size_t& space_end,
                                  std::vector<TextSection>& out) const {
  const AddedToken& added = (*tokens_)[static_cast<std::size_t>(token)];
  if (added.is_single_word &&
      (word_ends_at(text, match.begin) || word_starts_at(text, match.end))) {
    return;
  }
  if (added.strips_left) {
    while (match.begin > covered) {
      const std::size_t previous = previous_character(text, match.begin);
      if (previous < covered || !is_white_space(step_utf8(text, previous).code_point)) break;
      match.begin = previous;
    }
    match.begin = std::max(match.begin, covered);
  }
  if (added.strips_right) {
    // The end of a run of white space, kept so that a run is walked once however many tokens
    // made of white space match inside it.
    if (match.end >= space_end) {
      space_end = match.end;
      while (space_end < text.size()) {
        const Utf8Step step = step_utf8(text, space_end);
        if (!is_white_space(step.code_point)) break;
        space_end += step.num_bytes;
      }
    }
    match.end = space_end;
  }
  if (covered < match.begin) out.push_back({covered, match.begin, -1});
  if (match.begin < match.end) out.push_back({match.begin, match.end, token});
  covered = match.end;
}

void AddedTokenMatcher::split(std::string_view text, std::span<const ByteRange> allowed,
                              std::vector<TextSection>& out) const {
  std::size_t covered = 0;
  std::size_t space_end = 0;
  if (!is_empty()) {
    for (const ByteRange& range : allowed) {
      std::size_t i = range.begin;
      while (i < range.end) {
        if (first_[static_cast<unsigned char>(text[i])] < 0) {
          ++i;
          continue;
        }
        const auto [end, token] = longest_match(text, i, range.end);
        if (token < 0) {
          ++i;
          continue;
        }
        add_match(text, {i, end}, token, covered, space_end, out);
        i = end;
      }
    }
  }
  if (covered < text.size()) out.push_back({covered, text.size(), -1});
}

}  // namespace winnow
