// Arguments of a tool call: from the tagged text a model writes to JSON, typed by the tool's
// schema. Source: spec/frontend.md section 4.2.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace winnow {

/// One tagged value: text, or members, or both. A call's arguments are the members of its root.
struct TaggedValue {
  std::string key = {};
  std::string text = {};  // everything outside of members, joined
  std::vector<TaggedValue> members = {};
};

/// Deeper calls are malformed.
inline constexpr int kMaxTaggedDepth = 64;

/// An object in the order of the members. `schema` is the tool's JSON schema of its parameters;
/// null when the tool is unknown. A value that its schema does not accept stays a string; a schema
/// that makes no sense is taken for none. Never throws on account of `value` or `schema`.
nlohmann::ordered_json tool_arguments(const TaggedValue& call,
                                      const nlohmann::ordered_json& schema);

}  // namespace winnow
