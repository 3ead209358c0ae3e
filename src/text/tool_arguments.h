// Arguments of a tool call: from the tagged text a model writes to JSON, typed by the tool's
// schema. Source: spec/frontend.md section 4.2.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
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

/// The same conversion in parts, for a call that is still being written. The root outlives it;
/// schemas may be null.
class ArgumentTyping {
 public:
  using Json = nlohmann::ordered_json;
  explicit ArgumentTyping(const Json& root) : root_(&root) {}

  /// What becomes of a value with elements in it.
  enum class Container { kArray, kObject, kUnknown };
  Container container(const Json* schema) const;
  /// The schema of that among the alternatives.
  const Json* container_schema(const Json* schema) const;

  /// Whether a value without elements, whose text starts so, becomes a string whatever follows.
  bool is_text(const Json* schema, std::string_view text) const;
  Json value(const TaggedValue& value, const Json* schema) const;

  const Json* member_schema(const Json* schema, const std::string& key) const;
  const Json* item_schema(const Json* array, std::size_t index) const;

 private:
  const Json* root_;
};

}  // namespace winnow
