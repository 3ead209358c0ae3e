#include "grammar/schema_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "base/error.h"

namespace winnow {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxDepth = 64;
constexpr int kMaxSchemas = 10'000;             // in one schema
constexpr std::int64_t kMaxCount = 100'000;     // of characters, items or members
constexpr std::size_t kMaxAlternatives = 2000;  // of one enum or union

constexpr std::array<std::string_view, 7> kTypes = {"string", "number", "integer", "boolean",
                                                    "object", "array",  "null"};
// Read by nobody here: an answer would break them without notice.
constexpr std::array<const char*, 9> kRefused = {
    "not",         "if",          "then",    "else", "dependentRequired", "dependentSchemas",
    "minContains", "maxContains", "contains"};

bool has_lengths(const Json& schema) {
  return (schema.contains("minLength") && schema["minLength"].is_number()) ||
         (schema.contains("maxLength") && schema["maxLength"].is_number());
}

class SchemaCheck {
 public:
  explicit SchemaCheck(const Json& root) : root_(root) {}

  void check(const Json& schema, const std::string& path, int depth) {
    if (schema.is_boolean()) return;
    if (!schema.is_object()) {
      fail(path, std::string(schema.type_name()) + " is not a schema: an object or a boolean");
    }
    if (depth > kMaxDepth) fail(path, fmt::format("nested deeper than {}", kMaxDepth));
    if (++num_schemas_ > kMaxSchemas) fail(path, fmt::format("more than {} schemas", kMaxSchemas));
    check_type(schema, path);
    check_values(schema, path);
    check_reference(schema, path);
    check_strings(schema, path);
    check_counts(schema, path);
    check_refused(schema, path);
    for (const char* name : {"properties", "patternProperties", "$defs", "definitions"}) {
      if (const Json* members = member(schema, name)) check_members(*members, path, name, depth);
    }
    for (const char* name : {"items", "additionalProperties", "unevaluatedProperties",
                             "unevaluatedItems", "propertyNames", "additionalItems"}) {
      if (const Json* inner = member(schema, name)) check_inner(*inner, path, name, depth);
    }
    for (const char* name : {"anyOf", "oneOf", "allOf", "prefixItems"}) {
      if (const Json* list = member(schema, name)) check_list(*list, path, name, depth);
    }
  }

 private:
  [[noreturn]] static void fail(const std::string& path, const std::string& what) {
    throw Error(ErrorCode::kInvalidArgument, path + ": " + what, {}, path);
  }

  static const Json* member(const Json& schema, const char* name) {
    const auto found = schema.find(name);
    return found == schema.end() ? nullptr : &*found;
  }

  static std::string shown(const Json& value) {
    const std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
    return text.size() > 40 ? text.substr(0, 40) + "…" : text;
  }

  static void check_type(const Json& schema, const std::string& path) {
    const Json* type = member(schema, "type");
    if (type == nullptr) return;
    const auto check_name = [&](const Json& name) {
      if (name.is_string() &&
          std::ranges::count(kTypes, std::string_view(name.get_ref<const std::string&>())) > 0) {
        return;
      }
      fail(path + ".type",
           fmt::format("{} is not one of {}", shown(name), fmt::join(kTypes, ", ")));
    };
    if (!type->is_array()) return check_name(*type);
    if (type->empty()) fail(path + ".type", "the list is empty");
    for (const Json& name : *type) check_name(name);
  }

  static void check_values(const Json& schema, const std::string& path) {
    const Json* values = member(schema, "enum");
    if (values == nullptr) return;
    if (!values->is_array() || values->empty()) {
      fail(path + ".enum", "is not a list with at least one value");
    }
    if (values->size() > kMaxAlternatives) {
      fail(path + ".enum", fmt::format("{} values, at most {}", values->size(), kMaxAlternatives));
    }
  }

  void check_reference(const Json& schema, const std::string& path) const {
    const Json* reference = member(schema, "$ref");
    if (reference == nullptr) return;
    const std::string at = path + ".$ref";
    if (!reference->is_string()) fail(at, shown(*reference) + " is not a string");
    const auto& target = reference->get_ref<const std::string&>();
    if (target != "#" && !target.starts_with("#/")) {
      fail(at, shown(*reference) + " is not within this schema (#/…)");
    }
    try {
      if (root_.contains(Json::json_pointer(target.substr(1)))) return;
    } catch (const Json::exception&) {
    }
    fail(at, shown(*reference) + " leads nowhere");
  }

  static void check_strings(const Json& schema, const std::string& path) {
    for (const char* name : {"pattern", "format"}) {
      const Json* text = member(schema, name);
      if (text != nullptr && !text->is_string()) {
        fail(path + "." + name, shown(*text) + " is not a string");
      }
    }
    if (const Json* required = member(schema, "required")) {
      const bool is_list =
          required->is_array() &&
          std::ranges::all_of(*required, [](const Json& j) { return j.is_string(); });
      if (!is_list) fail(path + ".required", "is not a list of strings");
    }
    for (const char* name : {"pattern", "format"}) {
      if (schema.contains(name) && has_lengths(schema)) {
        fail(path + "." + name, "not offered together with minLength or maxLength");
      }
    }
  }

  static std::optional<std::int64_t> count(const Json& schema, const std::string& path,
                                           const char* name) {
    const Json* value = member(schema, name);
    if (value == nullptr) return std::nullopt;
    const bool is_whole =
        value->is_number_integer() ||
        (value->is_number_float() && value->get<double>() >= 0 && value->get<double>() <= 1e15 &&
         value->get<double>() == static_cast<double>(value->get<std::int64_t>()));
    const bool is_negative = value->is_number() && value->get<double>() < 0;
    if (!is_whole || is_negative) {
      fail(path + "." + name, shown(*value) + " is not a whole number from 0 on");
    }
    if (value->get<double>() > static_cast<double>(kMaxCount)) {
      fail(path + "." + name, fmt::format("{} is above {}", shown(*value), kMaxCount));
    }
    return value->get<std::int64_t>();
  }

  static void check_counts(const Json& schema, const std::string& path) {
    constexpr std::array<std::array<const char*, 2>, 3> kPairs = {
        {{"minLength", "maxLength"}, {"minItems", "maxItems"}, {"minProperties", "maxProperties"}}};
    for (const auto& [low_name, high_name] : kPairs) {
      const auto low = count(schema, path, low_name);
      const auto high = count(schema, path, high_name);
      if (low && high && *low > *high) {
        fail(path + "." + low_name, fmt::format("{} is above {} {}", *low, high_name, *high));
      }
    }
    for (const char* name :
         {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}) {
      const Json* value = member(schema, name);
      if (value != nullptr && !value->is_number()) {
        fail(path + "." + name, shown(*value) + " is not a number");
      }
    }
  }

  static void check_refused(const Json& schema, const std::string& path) {
    for (const char* name : kRefused) {
      if (schema.contains(name)) fail(path + "." + name, "this keyword is not offered");
    }
    if (const Json* unique = member(schema, "uniqueItems"); unique != nullptr && *unique != false) {
      fail(path + ".uniqueItems", "this keyword is not offered");
    }
    if (const Json* multiple = member(schema, "multipleOf")) {
      const Json* type = member(schema, "type");
      const double value = multiple->get<double>();
      if (type == nullptr || *type != "integer" || value < 1 || value > 1000 ||
          value != static_cast<double>(static_cast<std::int64_t>(value))) {
        fail(path + ".multipleOf", "offered for type integer and whole numbers up to 1000");
      }
    }
    if (const Json* all = member(schema, "allOf"); all != nullptr && all->size() > 1) {
      fail(path + ".allOf", "offered with one schema only: merge them into one");
    }
    if (const Json* items = member(schema, "items"); items != nullptr && items->is_array()) {
      fail(path + ".items", "a list of schemas is called prefixItems");
    }
  }

  void check_members(const Json& members, const std::string& path, const char* name, int depth) {
    const std::string at = path + "." + name;
    if (!members.is_object()) fail(at, std::string(members.type_name()) + " is not an object");
    for (const auto& [key, schema] : members.items()) {
      check(schema, at + "." + key.substr(0, 64), depth + 1);
    }
  }

  void check_inner(const Json& inner, const std::string& path, const char* name, int depth) {
    check(inner, path + "." + name, depth + 1);
  }

  void check_list(const Json& list, const std::string& path, const char* name, int depth) {
    const std::string at = path + "." + name;
    if (!list.is_array() || list.empty()) fail(at, "is not a list with at least one schema");
    if (list.size() > kMaxAlternatives) {
      fail(at, fmt::format("{} schemas, at most {}", list.size(), kMaxAlternatives));
    }
    for (std::size_t i = 0; i < list.size(); ++i) {
      check(list[i], fmt::format("{}[{}]", at, i), depth + 1);
    }
  }

  const Json& root_;
  int num_schemas_ = 0;
};

/// XGrammar's own strings of bounded length let control characters through, which JSON does not
/// allow. Quotes and escapes are left out of such strings, as it does.
void bound_strings_by_pattern(Json& schema) {
  if (schema.is_array()) {
    for (Json& one : schema) bound_strings_by_pattern(one);
    return;
  }
  if (!schema.is_object()) return;
  for (auto& [key, value] : schema.items()) {
    const bool is_data = key == "enum" || key == "const" || key == "default" || key == "examples";
    if (!is_data) bound_strings_by_pattern(value);
  }
  if (!has_lengths(schema) || schema.contains("pattern") || schema.contains("format")) return;
  std::string count = std::to_string(static_cast<std::int64_t>(
      schema.contains("minLength") ? schema["minLength"].get<double>() : 0));
  count += ",";
  if (schema.contains("maxLength")) {
    count += std::to_string(static_cast<std::int64_t>(schema["maxLength"].get<double>()));
  }
  schema.erase("minLength");
  schema.erase("maxLength");
  schema["pattern"] = "^[^\\u0000-\\u001f\"\\\\]{" + count + "}$";
}

}  // namespace

std::string compilable_schema(const Json& schema) {
  Json out = schema;
  bound_strings_by_pattern(out);
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void check_schema(const Json& schema, const std::string& path) {
  SchemaCheck(schema).check(schema, path, 0);
}

}  // namespace winnow
