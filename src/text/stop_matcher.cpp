#include "text/stop_matcher.h"

#include "base/error.h"

namespace winnow {

StopMatcher::StopMatcher(const std::vector<std::string>& stop_strings, bool include_stop)
    : nodes_(1), include_stop_(include_stop) {
  for (std::size_t index = 0; index < stop_strings.size(); ++index) {
    const std::string& stop = stop_strings[index];
    if (stop.empty()) {
      throw Error(ErrorCode::kInvalidArgument, "stop: a stop string is empty",
                  "remove it or give at least one character", "stop");
    }
    std::int32_t node = 0;
    for (const char byte : stop) {
      std::int32_t to = child(node, byte);
      if (to < 0) {
        to = static_cast<std::int32_t>(nodes_.size());
        nodes_[static_cast<std::size_t>(node)].children.emplace_back(byte, to);
        nodes_.emplace_back().depth = nodes_[static_cast<std::size_t>(node)].depth + 1;
      }
      node = to;
    }
    std::int32_t& output = nodes_[static_cast<std::size_t>(node)].output;
    if (output < 0) output = static_cast<std::int32_t>(index);
    lengths_.push_back(stop.size());
  }
  link_nodes();
}

// Breadth first, so that a node's fallback is complete before its children need it.
void StopMatcher::link_nodes() {
  std::vector<std::int32_t> order = {0};
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::int32_t parent = order[i];
    for (const auto& [byte, node] : nodes_[static_cast<std::size_t>(parent)].children) {
      order.push_back(node);
      Node& current = nodes_[static_cast<std::size_t>(node)];
      if (parent != 0) {
        current.fallback = next(nodes_[static_cast<std::size_t>(parent)].fallback, byte);
      }
      if (current.output < 0) {
        current.output = nodes_[static_cast<std::size_t>(current.fallback)].output;
      }
    }
  }
}

std::int32_t StopMatcher::child(std::int32_t node, char byte) const {
  for (const auto& [label, to] : nodes_[static_cast<std::size_t>(node)].children) {
    if (label == byte) return to;
  }
  return -1;
}

std::int32_t StopMatcher::next(std::int32_t node, char byte) const {
  while (true) {
    const std::int32_t to = child(node, byte);
    if (to >= 0) return to;
    if (node == 0) return 0;
    node = nodes_[static_cast<std::size_t>(node)].fallback;
  }
}

std::string StopMatcher::add(std::string_view piece) {
  if (matched_) return {};
  std::string text = std::move(held_);
  held_.clear();
  for (const char byte : piece) {
    text.push_back(byte);
    state_ = next(state_, byte);
    const Node& node = nodes_[static_cast<std::size_t>(state_)];
    if (node.output >= 0) {
      matched_ = static_cast<std::size_t>(node.output);
      if (!include_stop_) text.resize(text.size() - lengths_[*matched_]);
      return text;
    }
  }
  const auto depth = static_cast<std::size_t>(nodes_[static_cast<std::size_t>(state_)].depth);
  held_ = text.substr(text.size() - depth);
  text.resize(text.size() - depth);
  return text;
}

std::string StopMatcher::finish() {
  state_ = 0;
  return matched_ ? std::string() : std::exchange(held_, {});
}

}  // namespace winnow
