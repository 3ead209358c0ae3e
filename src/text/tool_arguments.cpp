#include "text/tool_arguments.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

namespace winnow {
namespace {

using Json = nlohmann::ordered_json;

/// References and unions that lead into each other end here.
constexpr int kMaxSchemaSteps = 16;

enum class Kind { kString, kInteger, kNumber, kBoolean, kObject, kArray, kNull };

/// What one value may be. Alternatives are tried in the order of the schema.
struct Alternative {
  Kind kind;
  const Json* schema;
};

std::string lower(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

std::string_view trim(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

/// Names as model vendors' tools spell them, not only JSON schema's.
std::optional<Kind> kind_of_name(std::string_view type) {
  const std::string name = lower(type);
  const auto is_one_of = [&](std::initializer_list<std::string_view> names) {
    return std::ranges::find(names, name) != names.end();
  };
  const auto starts_with = [&](std::initializer_list<std::string_view> prefixes) {
    return std::ranges::any_of(prefixes, [&](std::string_view p) { return name.starts_with(p); });
  };
  if (is_one_of({"string", "str", "text", "varchar", "char", "enum"})) return Kind::kString;
  if (is_one_of({"boolean", "bool", "binary"})) return Kind::kBoolean;
  if (is_one_of({"object", "dict", "map"})) return Kind::kObject;
  if (is_one_of({"array", "arr", "list", "sequence"})) return Kind::kArray;
  if (name == "null") return Kind::kNull;
  if (starts_with({"int", "uint", "long", "short", "unsigned"})) return Kind::kInteger;
  if (starts_with({"num", "float", "double"})) return Kind::kNumber;
  return std::nullopt;
}

const Json* member(const Json& object, const std::string& name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

/// A schema and the root its "$ref"s are relative to.
class Typing {
 public:
  explicit Typing(const Json& root) : root_(root) {}

  Json object(const TaggedValue& value, const Json* schema) const {
    Json out = Json::object();
    std::map<std::string_view, int> num_seen;
    for (const TaggedValue& m : value.members) {
      Json converted = convert(m, member_schema(schema, m.key));
      const int seen = num_seen[m.key]++;
      if (seen == 0) {
        out[m.key] = std::move(converted);
      } else {  // a repeated key collects its values
        Json& collected = out[m.key];
        if (seen == 1) collected = Json::array({std::move(collected)});
        collected.push_back(std::move(converted));
      }
    }
    if (!is_blank(value.text) && !value.members.empty()) {
      std::string name = "$text";
      while (out.contains(name)) name.insert(name.begin(), '$');
      out[name] = value.text;
    }
    return out;
  }

  Json convert(const TaggedValue& value, const Json* schema) const {
    const std::vector<Alternative> alternatives = alternatives_of(schema);
    return value.members.empty() ? leaf(value.text, alternatives)
                                 : container(value, schema, alternatives);
  }

  std::vector<Alternative> alternatives_of(const Json* schema) const {
    std::vector<Alternative> alternatives;
    collect(schema, kMaxSchemaSteps, alternatives);
    return alternatives;
  }

  static const Json* item_schema(const Json* array, std::size_t index) {
    const Json* const prefix = array == nullptr ? nullptr : member(*array, "prefixItems");
    if (prefix != nullptr && prefix->is_array() && index < prefix->size()) return &(*prefix)[index];
    return array == nullptr ? nullptr : member(*array, "items");
  }

  /// The first alternative that has elements; null: none has.
  static const Alternative* container_of(const std::vector<Alternative>& alternatives) {
    const auto found = std::ranges::find_if(alternatives, [](const Alternative& a) {
      return a.kind == Kind::kArray || a.kind == Kind::kObject;
    });
    return found == alternatives.end() ? nullptr : &*found;
  }

  static bool takes_only_strings(const std::vector<Alternative>& alternatives) {
    return !alternatives.empty() && std::ranges::all_of(alternatives, [](const Alternative& a) {
      return a.kind == Kind::kString;
    });
  }

 private:
  Json container(const TaggedValue& value, const Json* schema,
                 const std::vector<Alternative>& alternatives) const {
    if (const Alternative* const found = container_of(alternatives)) {
      return found->kind == Kind::kArray ? array(value, found->schema)
                                         : object(value, found->schema);
    }
    const bool is_list =
        std::ranges::all_of(value.members, [](const TaggedValue& m) { return m.key == "item"; });
    if (alternatives.empty() && is_list) return array(value, nullptr);
    return object(value, schema);
  }

  Json array(const TaggedValue& value, const Json* schema) const {
    Json out = Json::array();
    for (const TaggedValue& m : value.members) {
      out.push_back(convert(m, item_schema(schema, out.size())));
    }
    return out;
  }

  static Json leaf(const std::string& text, const std::vector<Alternative>& alternatives) {
    // Many models write null for a value they leave out; a tool that takes only strings means it.
    if (!takes_only_strings(alternatives) && lower(text) == "null") return nullptr;
    for (const Alternative& alternative : alternatives) {
      if (std::optional<Json> value = leaf_as(alternative.kind, text)) return *std::move(value);
    }
    return text;
  }

  static std::optional<Json> leaf_as(Kind kind, const std::string& text) {
    const std::string_view word = trim(text);
    switch (kind) {
      case Kind::kString:
        return Json(text);
      case Kind::kInteger:
        return integer(word);
      case Kind::kNumber:
        if (std::optional<Json> whole = integer(word)) return whole;
        return number(word);
      case Kind::kBoolean:
        if (lower(word) == "true" || word == "1") return Json(true);
        if (lower(word) == "false" || word == "0") return Json(false);
        return std::nullopt;
      case Kind::kObject:
        return word.empty() ? Json::object() : nested(word, &Json::is_object);
      case Kind::kArray:
        return word.empty() ? Json::array() : nested(word, &Json::is_array);
      case Kind::kNull:
        return std::nullopt;  // the word null came before
    }
    return std::nullopt;
  }

  static std::optional<Json> integer(std::string_view word) {
    if (word.starts_with('+')) word.remove_prefix(1);
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
    return Json(value);
  }

  static std::optional<Json> number(std::string_view word) {
    double value = 0.0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || end != word.data() + word.size() || !std::isfinite(value)) {
      return std::nullopt;
    }
    return Json(value);
  }

  /// JSON text of the wanted kind, no deeper than a call may be.
  static std::optional<Json> nested(std::string_view text,
                                    bool (Json::*is_wanted)() const noexcept) {
    bool is_deep = false;
    const auto keep = [&](int depth, Json::parse_event_t, Json&) {
      is_deep = is_deep || depth > kMaxTaggedDepth;
      return !is_deep;
    };
    Json value = Json::parse(text, keep, /*allow_exceptions=*/false);
    if (is_deep || value.is_discarded() || !(value.*is_wanted)()) return std::nullopt;
    return value;
  }

  /// Follows "$ref"s within the root; null when one leads nowhere.
  const Json* resolve(const Json* schema) const {
    for (int step = 0; step < kMaxSchemaSteps && schema != nullptr; ++step) {
      const Json* const reference = member(*schema, "$ref");
      if (reference == nullptr || !reference->is_string()) return schema;
      const auto& path = reference->get_ref<const std::string&>();
      if (!path.starts_with('#')) return nullptr;
      try {
        const Json::json_pointer pointer(path.substr(1));
        schema = root_.contains(pointer) ? &root_.at(pointer) : nullptr;
      } catch (const Json::exception&) {
        return nullptr;
      }
    }
    return schema;
  }

  /// The kinds a value may have, in the order of the schema.
  void collect(const Json* schema, int steps, std::vector<Alternative>& out) const {
    schema = resolve(schema);
    if (schema == nullptr || !schema->is_object() || steps == 0) return;
    const auto add = [&](const Json& type) {
      if (!type.is_string()) return;
      if (const auto kind = kind_of_name(type.get_ref<const std::string&>())) {
        out.push_back({*kind, schema});
      }
    };
    if (const Json* const type = member(*schema, "type")) {
      if (type->is_array()) {
        for (const Json& one : *type) add(one);
      } else {
        add(*type);
      }
      return;
    }
    for (const char* const name : {"anyOf", "oneOf", "allOf"}) {
      const Json* const branches = member(*schema, name);
      if (branches == nullptr || !branches->is_array()) continue;
      for (const Json& branch : *branches) collect(&branch, steps - 1, out);
    }
    if (!out.empty()) return;
    if (member(*schema, "enum") != nullptr) out.push_back({Kind::kString, schema});
    if (member(*schema, "items") != nullptr) out.push_back({Kind::kArray, schema});
    if (member(*schema, "properties") != nullptr) out.push_back({Kind::kObject, schema});
  }

 public:
  const Json* member_schema(const Json* schema, const std::string& key,
                            int steps = kMaxSchemaSteps) const {
    schema = resolve(schema);
    if (schema == nullptr || steps == 0) return nullptr;
    if (const Json* const properties = member(*schema, "properties")) {
      if (const Json* const found = member(*properties, key)) return found;
    }
    const Json* const additional = member(*schema, "additionalProperties");
    if (additional != nullptr && additional->is_object()) return additional;
    for (const char* const name : {"anyOf", "oneOf", "allOf"}) {
      const Json* const branches = member(*schema, name);
      if (branches == nullptr || !branches->is_array()) continue;
      for (const Json& branch : *branches) {
        if (const Json* const found = member_schema(&branch, key, steps - 1)) return found;
      }
    }
    return nullptr;
  }

 private:
  const Json& root_;
};

}  // namespace

Json tool_arguments(const TaggedValue& call, const Json& schema) {
  return Typing(schema).object(call, &schema);
}

ArgumentTyping::Container ArgumentTyping::container(const Json* schema) const {
  const std::vector<Alternative> alternatives = Typing(*root_).alternatives_of(schema);
  if (alternatives.empty()) return Container::kUnknown;
  const Alternative* const found = Typing::container_of(alternatives);
  return found != nullptr && found->kind == Kind::kArray ? Container::kArray : Container::kObject;
}

const ArgumentTyping::Json* ArgumentTyping::container_schema(const Json* schema) const {
  const std::vector<Alternative> alternatives = Typing(*root_).alternatives_of(schema);
  const Alternative* const found = Typing::container_of(alternatives);
  return found == nullptr ? schema : found->schema;
}

bool ArgumentTyping::is_text(const Json* schema, std::string_view text) const {
  const std::vector<Alternative> alternatives = Typing(*root_).alternatives_of(schema);
  if (Typing::takes_only_strings(alternatives)) return true;
  const bool is_string_first = alternatives.empty() || alternatives.front().kind == Kind::kString;
  return is_string_first && !std::string_view("null").starts_with(lower(text));
}

ArgumentTyping::Json ArgumentTyping::value(const TaggedValue& value, const Json* schema) const {
  return Typing(*root_).convert(value, schema);
}

const ArgumentTyping::Json* ArgumentTyping::member_schema(const Json* schema,
                                                          const std::string& key) const {
  return Typing(*root_).member_schema(schema, key);
}

const ArgumentTyping::Json* ArgumentTyping::item_schema(const Json* array,
                                                        std::size_t index) const {
  return Typing::item_schema(array, index);
}

}  // namespace winnow
