#include "grammar/tool_grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "grammar/schema_check.h"
#include "text/minimax_markers.h"

namespace winnow {
namespace {

using Json = nlohmann::ordered_json;

const std::string kNamespace(kToolNamespace);

// Within what the parser's int64 and double hold.
constexpr const char* kInteger = "-?(0|[1-9][0-9]{0,17})";
constexpr const char* kNumber = "-?(0|[1-9][0-9]{0,17})(\\.[0-9]{1,17})?([eE][+-]?[0-9]{1,2})?";
constexpr const char* kKey = "[A-Za-z_][A-Za-z0-9_.\\-]{0,63}";

Json literal(const std::string& text) { return {{"type", "const_string"}, {"value", text}}; }
Json regex(const std::string& pattern) { return {{"type", "regex"}, {"pattern", pattern}}; }
Json sequence(Json elements) { return {{"type", "sequence"}, {"elements", std::move(elements)}}; }
Json choice(Json elements) {
  if (elements.size() == 1) return elements[0];
  return {{"type", "or"}, {"elements", std::move(elements)}};
}
Json wrapped(const char* type, Json content) {
  return {{"type", type}, {"content", std::move(content)}};
}

/// Text of a leaf: anything without the namespace marker.
Json text(std::int64_t max_chars = -1) {
  Json out{{"type", "any_text"}, {"excludes", Json::array({kNamespace})}};
  if (max_chars >= 0) out["max_chars"] = max_chars;
  return out;
}

Json element(const std::string& key, Json content) {
  return sequence(Json::array({literal(kNamespace + "<" + key + ">"), std::move(content),
                               literal(kNamespace + "</" + key + ">")}));
}

const Json* member(const Json& schema, const char* name) {
  const auto found = schema.find(name);
  return found == schema.end() ? nullptr : &*found;
}

/// The elements of one tool's parameters.
class SchemaElements {
 public:
  SchemaElements(const Json& root, std::string path) : root_(root), path_(std::move(path)) {}

  Json arguments() { return members_of(root_, path_); }

 private:
  [[noreturn]] static void fail(const std::string& path, const std::string& what) {
    throw Error(ErrorCode::kInvalidArgument, path + ": " + what, {}, path);
  }

  /// What stands between the tags of a value.
  Json content(const Json& schema, const std::string& path) {
    if (schema.is_boolean()) {
      if (!schema.get<bool>()) fail(path, "no value is allowed here");
      return text();
    }
    if (const Json* reference = member(schema, "$ref")) return referenced(*reference, path);
    if (const Json* value = member(schema, "const")) return value_of(*value, path + ".const");
    if (const Json* values = member(schema, "enum")) {
      Json options = Json::array();
      for (const Json& value : *values) options.push_back(value_of(value, path + ".enum"));
      return choice(std::move(options));
    }
    for (const char* name : {"anyOf", "oneOf", "allOf"}) {
      const Json* branches = member(schema, name);
      if (branches == nullptr) continue;
      Json options = Json::array();
      for (const Json& branch : *branches) options.push_back(content(branch, path + "." + name));
      return choice(std::move(options));
    }
    const Json* type = member(schema, "type");
    if (type == nullptr) {
      if (member(schema, "properties") != nullptr) return object(schema, path);
      if (member(schema, "items") != nullptr) return array(schema, path);
      return text();
    }
    if (type->is_string()) return of_type(type->get<std::string>(), schema, path);
    Json options = Json::array();
    for (const Json& one : *type) options.push_back(of_type(one.get<std::string>(), schema, path));
    return choice(std::move(options));
  }

  Json of_type(const std::string& type, const Json& schema, const std::string& path) {
    if (type == "string") return string(schema);
    if (type == "integer") return number(type, schema, kInteger);
    if (type == "number") return number(type, schema, kNumber);
    if (type == "boolean") return choice(Json::array({literal("true"), literal("false")}));
    if (type == "null") return literal("null");
    return type == "array" ? array(schema, path) : object(schema, path);
  }

  static Json string(const Json& schema) {
    if (const Json* pattern = member(schema, "pattern")) return regex(pattern->get<std::string>());
    const std::int64_t least = schema.value("minLength", std::int64_t{0});
    const std::int64_t most = schema.value("maxLength", std::int64_t{-1});
    if (least == 0) return text(most);
    // The first ones cannot begin a marker, so that the two parts are apart.
    return sequence(Json::array(
        {regex(fmt::format("[^\\]]{{{}}}", least)), text(most < 0 ? -1 : most - least)}));
  }

  static Json number(const std::string& type, const Json& schema, const char* unbounded) {
    Json bounds{{"type", type}};
    for (const char* name :
         {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}) {
      if (const Json* bound = member(schema, name)) bounds[name] = *bound;
    }
    if (bounds.size() == 1) return regex(unbounded);
    return {{"type", "json_schema"}, {"json_schema", std::move(bounds)}};
  }

  Json array(const Json& schema, const std::string& path) {
    const Json* items = member(schema, "items");
    const Json* prefix = member(schema, "prefixItems");
    if (prefix == nullptr && (items == nullptr || items->is_boolean())) return json_text(schema);
    Json elements = Json::array();
    if (prefix != nullptr) {
      for (const Json& item : *prefix) {
        elements.push_back(element("item", content(item, path + ".prefixItems")));
      }
    }
    const auto num_prefix = static_cast<std::int64_t>(elements.size());
    const std::int64_t least =
        std::max<std::int64_t>(schema.value("minItems", std::int64_t{0}) - num_prefix, 0);
    const std::int64_t most = schema.value("maxItems", std::int64_t{-1});
    if (items != nullptr && items->is_object()) {
      const std::int64_t room = most < 0 ? -1 : std::max<std::int64_t>(most - num_prefix, 0);
      elements.push_back({{"type", "repeat"},
                          {"min", least},
                          {"max", room},
                          {"content", element("item", content(*items, path + ".items"))}});
    }
    return elements.empty() ? literal("") : sequence(std::move(elements));
  }

  Json object(const Json& schema, const std::string& path) {
    const Json* properties = member(schema, "properties");
    if (properties == nullptr || properties->empty()) return json_text(schema);
    return members_of(schema, path);
  }

  Json members_of(const Json& schema, const std::string& path) {
    Json elements = Json::array();
    const Json* properties = member(schema, "properties");
    if (properties == nullptr) return literal("");
    const Json* required = member(schema, "required");
    for (const auto& [key, property] : properties->items()) {
      const std::string at = path + ".properties." + key;
      check_key(key, at);
      Json one = element(key, content(property, at));
      const bool is_required =
          required != nullptr && std::ranges::find(*required, Json(key)) != required->end();
      elements.push_back(is_required ? std::move(one) : wrapped("optional", std::move(one)));
    }
    return elements.empty() ? literal("") : sequence(std::move(elements));
  }

  static void check_key(const std::string& key, const std::string& path) {
    if (key.empty() || key.starts_with('/') || key.find('>') != std::string::npos ||
        key.find(kNamespace) != std::string::npos) {
      fail(path, "this name cannot be written as a tag");
    }
  }

  static Json value_of(const Json& value, const std::string& path) {
    std::string written = value.is_string()
                              ? value.get<std::string>()
                              : value.dump(-1, ' ', false, Json::error_handler_t::replace);
    if (written.find(kNamespace) != std::string::npos) fail(path, "a value holds a marker");
    return literal(written);
  }

  Json referenced(const Json& reference, const std::string& path) {
    const auto& target = reference.get_ref<const std::string&>();
    const Json* schema = target == "#" ? &root_ : &root_.at(Json::json_pointer(target.substr(1)));
    if (std::ranges::find(open_, schema) != open_.end()) {
      return json_text(Json{{"$ref", target}});
    }
    open_.push_back(schema);
    Json out = content(*schema, path);
    open_.pop_back();
    return out;
  }

  /// The value as JSON.
  Json json_text(const Json& schema) const {
    Json whole = Json::parse(compilable_schema(schema));
    for (const char* name : {"$defs", "definitions"}) {
      if (const Json* definitions = member(root_, name)) {
        whole[name] = Json::parse(compilable_schema(*definitions));
      }
    }
    return {{"type", "json_schema"},
            {"json_schema", std::move(whole)},
            {"max_whitespace_cnt", kMaxJsonBlanks},
            {"excludes", Json::array({kNamespace})}};
  }

  const Json& root_;
  std::string path_;
  std::vector<const Json*> open_;  // references being followed
};

/// Arguments of a tool that declares none: names are not tied to anything.
Json free_arguments() {
  return wrapped("star",
                 sequence(Json::array({literal(kNamespace + "<"), regex(kKey), literal(">"), text(),
                                       literal(kNamespace + "</"), regex(kKey), literal(">")})));
}

Json arguments_of(const CallableTool& tool) {
  if (tool.parameters == nullptr || tool.parameters->is_null()) return free_arguments();
  check_schema(*tool.parameters, tool.path);
  if (!tool.parameters->is_object()) return free_arguments();
  const Json* additional = member(*tool.parameters, "additionalProperties");
  const bool is_closed =
      additional != nullptr && additional->is_boolean() && !additional->get<bool>();
  if (member(*tool.parameters, "properties") == nullptr && !is_closed) return free_arguments();
  return SchemaElements(*tool.parameters, tool.path).arguments();
}

/// Another grammar as part of a structural tag.
Json format_of(const GrammarSource& source) {
  switch (source.kind) {
    case GrammarKind::kRegex:
      return regex(source.text);
    case GrammarKind::kEbnf:
      return {{"type", "grammar"}, {"grammar", source.text}};
    case GrammarKind::kLark:
      return {{"type", "grammar"}, {"grammar", source.text}, {"syntax", "lark"}};
    case GrammarKind::kStructuralTag:
      return Json::parse(source.text).value("format", Json());
    case GrammarKind::kJsonSchema:
      break;
  }
  return {{"type", "json_schema"},
          {"json_schema", Json::parse(source.text)},
          {"max_whitespace_cnt", kMaxJsonBlanks},
          {"excludes", Json::array({kNamespace})}};
}

}  // namespace

GrammarSource tool_call_grammar(std::span<const CallableTool> tools,
                                const ToolGrammarOptions& options) {
  Json calls = Json::array();
  for (const CallableTool& tool : tools) {
    calls.push_back(
        sequence(Json::array({literal(kNamespace + "<invoke name=\"" + tool.name + "\">"),
                              arguments_of(tool), literal(kNamespace + "</invoke>\n")})));
  }
  Json one = choice(std::move(calls));
  Json format = sequence(
      Json::array({literal(std::string(kToolBlock) + "\n"),
                   options.allows_several ? wrapped("plus", std::move(one)) : std::move(one),
                   literal(kNamespace + std::string(kToolBlockCloser))}));
  if (options.may_answer && options.other_answer != nullptr) {
    format = choice(Json::array({std::move(format), format_of(*options.other_answer)}));
  } else if (options.may_answer) {
    Json free{{"type", "any_text"}, {"excludes", Json::array({std::string(kToolBlock)})}};
    format = sequence(Json::array({std::move(free), wrapped("optional", std::move(format))}));
  }
  const Json tag{{"type", "structural_tag"}, {"format", std::move(format)}};
  return {.kind = GrammarKind::kStructuralTag,
          .text = tag.dump(-1, ' ', false, Json::error_handler_t::replace),
          .allows_markers = true};
}

}  // namespace winnow
