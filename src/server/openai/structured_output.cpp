#include "server/openai/structured_output.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "base/error.h"
#include "grammar/grammar_compiler.h"
#include "grammar/schema_check.h"
#include "server/json_guard.h"
#include "server/token_constraint.h"

namespace winnow::server {
namespace {

constexpr std::size_t kMaxChoices = 2000;

[[noreturn]] void fail(const std::string& param, const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, param + ": " + what, {}, param);
}

/// A schema, or the text of one.
Json schema_of(const Json& value, const std::string& param) {
  if (!value.is_string()) return value;
  const auto& text = value.get_ref<const std::string&>();
  try {
    check_json_text(text);
  } catch (const Error& error) {
    fail(param, error.what());
  }
  Json schema = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (schema.is_discarded()) fail(param, "the string is not the JSON of a schema");
  return schema;
}

AnswerGrammar schema_grammar(const Json& value, const std::string& param) {
  const Json schema = schema_of(value, param);
  check_schema(schema, param);
  return {.source = {.kind = GrammarKind::kJsonSchema, .text = compilable_schema(schema)},
          .param = param};
}

AnswerGrammar any_object(const std::string& param) {
  return {.source = {.kind = GrammarKind::kJsonSchema, .text = R"({"type":"object"})"},
          .param = param};
}

std::string text_of(const Json& value, const std::string& param) {
  if (!value.is_string() || value.get_ref<const std::string&>().empty()) {
    fail(param, describe(value) + " is not a string with something in it");
  }
  return value.get<std::string>();
}

AnswerGrammar choice_grammar(const Json& value, const std::string& param) {
  if (!value.is_array() || value.empty()) fail(param, "is not a list with at least one string");
  if (value.size() > kMaxChoices) {
    fail(param, fmt::format("{} choices, at most {}", value.size(), kMaxChoices));
  }
  Json elements = Json::array();
  for (const Json& item : value) {
    elements.push_back({{"type", "const_string"}, {"value", text_of(item, param)}});
  }
  const Json tag{{"type", "structural_tag"},
                 {"format", {{"type", "or"}, {"elements", std::move(elements)}}}};
  return {.source = {.kind = GrammarKind::kStructuralTag, .text = tag.dump()}, .param = param};
}

/// vLLM takes Lark as well as EBNF and tells them apart by the sign that only EBNF has.
AnswerGrammar written_grammar(const Json& value, const std::string& param) {
  std::string text = text_of(value, param);
  const bool is_ebnf = text.find("::=") != std::string::npos;
  return {.source = {.kind = is_ebnf ? GrammarKind::kEbnf : GrammarKind::kLark,
                     .text = std::move(text)},
          .param = param};
}

/// XGrammar's form; its older one, a list of structures and triggers, becomes the newer.
AnswerGrammar tag_grammar(const Json& value, const std::string& param) {
  Json tag = schema_of(value, param);
  if (!tag.is_object()) fail(param, describe(tag) + " is not a structural tag: an object");
  tag["type"] = "structural_tag";
  if (tag.contains("structures")) {
    Fields fields(tag, param);
    const Json* structures = fields.array("structures");
    const Json* triggers = fields.array("triggers");
    if (structures == nullptr || triggers == nullptr) fields.fail("triggers", "missing");
    Json tags = Json::array();
    for (std::size_t i = 0; i < structures->size(); ++i) {
      Fields one((*structures)[i], fmt::format("{}.structures[{}]", param, i));
      const Json* schema = one.find("schema");
      if (schema == nullptr) one.fail("schema", "missing");
      check_schema(*schema, one.full_name("schema"));
      tags.push_back(
          {{"type", "tag"},
           {"begin", one.string("begin").value_or("")},
           {"content",
            {{"type", "json_schema"}, {"json_schema", Json::parse(compilable_schema(*schema))}}},
           {"end", one.string("end").value_or("")}});
    }
    tag["format"] = {
        {"type", "triggered_tags"}, {"triggers", *triggers}, {"tags", std::move(tags)}};
    tag.erase("structures");
    tag.erase("triggers");
  }
  return {.source = {.kind = GrammarKind::kStructuralTag,
                     .text = tag.dump(-1, ' ', false, Json::error_handler_t::replace)},
          .param = param};
}

std::optional<AnswerGrammar> from_response_format(Fields& fields) {
  const Json* format = fields.object("response_format");
  if (format == nullptr) return std::nullopt;
  Fields inner(*format, "response_format");
  const std::string type = inner.string("type").value_or("");
  if (type == "text") return std::nullopt;
  if (type == "json_object") return any_object("response_format");
  if (type == "structural_tag") return tag_grammar(*format, "response_format");
  if (type != "json_schema") {
    inner.fail("type",
               fmt::format("'{}' is not text, json_object, json_schema or structural_tag", type));
  }
  const Json* described = inner.object("json_schema");
  if (described == nullptr) inner.fail("json_schema", "missing");
  Fields members(*described, "response_format.json_schema");
  members.string("name");
  members.string("description");
  members.boolean("strict");  // a schema is always applied to the letter
  const Json* schema = members.find("schema");
  if (schema == nullptr) members.fail("schema", "missing");
  return schema_grammar(*schema, members.full_name("schema"));
}

/// Names of one kind of grammar in structured_outputs, and before that.
struct GrammarField {
  const char* name;
  const char* guided;
  AnswerGrammar (*read)(const Json&, const std::string&);
};

AnswerGrammar regex_grammar(const Json& value, const std::string& param) {
  return {.source = {.kind = GrammarKind::kRegex, .text = text_of(value, param)}, .param = param};
}

AnswerGrammar object_grammar(const Json&, const std::string& param) { return any_object(param); }

constexpr std::array<GrammarField, 6> kGrammarFields = {{
    {"json", "guided_json", schema_grammar},
    {"regex", "guided_regex", regex_grammar},
    {"choice", "guided_choice", choice_grammar},
    {"grammar", "guided_grammar", written_grammar},
    {"json_object", "guided_json_object", object_grammar},
    {"structural_tag", nullptr, tag_grammar},
}};

/// The one grammar among the members of `fields`, by the names that `name_of` picks.
template <typename NameOf>
std::optional<AnswerGrammar> only_grammar(Fields& fields, NameOf name_of) {
  std::optional<AnswerGrammar> found;
  for (const GrammarField& field : kGrammarFields) {
    const char* name = name_of(field);
    const Json* value = name == nullptr ? nullptr : fields.find(name);
    if (value == nullptr) continue;
    if (field.read == object_grammar && !fields.boolean(name).value_or(false)) continue;
    if (found) fields.fail(name, fmt::format("not together with {}", found->param));
    found = field.read(*value, fields.full_name(name));
  }
  return found;
}

}  // namespace

std::optional<AnswerGrammar> read_structured_output(Fields& fields) {
  std::optional<AnswerGrammar> grammar =
      only_grammar(fields, [](const GrammarField& field) { return field.guided; });
  fields.ignore("guided_decoding_backend");
  if (fields.find("guided_whitespace_pattern") != nullptr) {
    fields.fail("guided_whitespace_pattern", "not offered");
  }
  if (const Json* object = fields.object("structured_outputs")) {
    Fields inner(*object, "structured_outputs");
    std::optional<AnswerGrammar> newer =
        only_grammar(inner, [](const GrammarField& field) { return field.name; });
    if (!newer)
      inner.fail("json",
                 "missing: give json, regex, choice, grammar, json_object or structural_tag");
    if (grammar) inner.fail("json", "structured_outputs and " + grammar->param + " are both given");
    grammar = std::move(newer);
    grammar->source.any_whitespace = !inner.boolean("disable_any_whitespace").value_or(false);
    inner.boolean("disable_additional_properties");  // undeclared properties are never allowed
    inner.ignore("disable_fallback");
    if (inner.find("whitespace_pattern") != nullptr) {
      inner.fail("whitespace_pattern", "not offered");
    }
  }
  if (std::optional<AnswerGrammar> format = from_response_format(fields)) return format;
  return grammar;
}

std::shared_ptr<const TokenFilter> make_token_filter(
    const AnswerGrammar& grammar, std::optional<ReasoningParser::State> reasoning,
    const ServingModel& model) {
  if (model.grammars == nullptr) {
    throw Error(ErrorCode::kUnsupported, grammar.param + ": not offered by this server", {},
                grammar.param);
  }
  using State = ReasoningParser::State;
  const ConstraintStart start = reasoning == State::kOpen        ? ConstraintStart::kOpen
                                : reasoning == State::kReasoning ? ConstraintStart::kThinking
                                                                 : ConstraintStart::kAnswer;
  try {
    return std::make_shared<TokenConstraint>(std::make_unique<OutputConstraint>(
        model.grammars->compile(grammar.source), start, grammar.source.allows_markers));
  } catch (const Error& error) {
    throw Error(error.code(), grammar.param + ": " + error.what(), error.hint(), grammar.param);
  }
}

}  // namespace winnow::server
