#include "server/openai/tool_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "grammar/tool_grammar.h"

namespace winnow::server {
namespace {

enum class ChoiceMode { kNone, kAuto, kRequired, kNamed };

struct ToolChoice {
  ChoiceMode mode = ChoiceMode::kNone;
  std::string name = {};  // with kNamed
};

const std::string& name_of(const Json& tool) {
  return tool["function"]["name"].get_ref<const std::string&>();
}

bool is_strict(const Json& tool) {
  const Json& function = tool["function"];
  const auto strict = function.find("strict");
  return strict != function.end() && strict->is_boolean() && strict->get<bool>();
}

ToolChoice read_choice(Fields& fields, const Json& tools) {
  const Json* choice = fields.find("tool_choice");
  if (choice == nullptr) return {.mode = tools.is_null() ? ChoiceMode::kNone : ChoiceMode::kAuto};
  const std::string mode = choice->is_string() ? choice->get<std::string>() : "";
  if (mode == "none") return {};
  if (tools.is_null()) fields.fail("tool_choice", "needs tools");
  if (mode == "auto") return {.mode = ChoiceMode::kAuto};
  if (mode == "required") return {.mode = ChoiceMode::kRequired};
  if (!choice->is_object()) {
    fields.fail("tool_choice",
                describe(*choice) + " is not none, auto, required or {\"type\":\"function\",…}");
  }
  Fields named(*choice, "tool_choice");
  const std::string type = named.string("type").value_or("function");
  if (type != "function") named.fail("type", fmt::format("'{}' is not function", type));
  const Json* function = named.object("function");
  if (function == nullptr) named.fail("function", "missing");
  Fields inner(*function, "tool_choice.function");
  const std::string name = inner.string("name").value_or("");
  const bool is_known =
      std::ranges::any_of(tools, [&](const Json& tool) { return name_of(tool) == name; });
  if (!is_known) inner.fail("name", fmt::format("'{}' is not among the tools", name.substr(0, 64)));
  return {.mode = ChoiceMode::kNamed, .name = name};
}

std::vector<CallableTool> callable_tools(const Json& tools, const ToolChoice& choice) {
  std::vector<CallableTool> out;
  for (std::size_t i = 0; i < tools.size(); ++i) {
    if (choice.mode == ChoiceMode::kNamed && name_of(tools[i]) != choice.name) continue;
    const Json& function = tools[i]["function"];
    const auto parameters = function.find("parameters");
    out.push_back({.name = name_of(tools[i]),
                   .parameters = parameters == function.end() ? nullptr : &*parameters,
                   .path = fmt::format("tools[{}].function.parameters", i)});
    if (choice.mode == ChoiceMode::kNamed) break;
  }
  return out;
}

}  // namespace

void read_tool_choice(Fields& fields, const RequestPolicy& policy, ChatRequest& out) {
  GenerationFields& generation = out.generation;
  generation.parallel_tool_calls = fields.boolean("parallel_tool_calls").value_or(true);
  const ToolChoice choice = read_choice(fields, out.tools);
  if (choice.mode == ChoiceMode::kNone) return;
  const bool must_call = choice.mode != ChoiceMode::kAuto;
  if (!policy.parse_tool_calls) {
    if (must_call) fields.fail("tool_choice", "needs a server started with a --tool-call-parser");
    return;
  }
  auto schemas = std::make_shared<ToolSchemas>();
  for (const Json& tool : out.tools) {
    (*schemas)[name_of(tool)] = tool["function"].value("parameters", Json());
  }
  generation.tools = std::move(schemas);
  if (choice.mode == ChoiceMode::kNamed && generation.grammar &&
      generation.grammar->param != "response_format") {
    fields.fail("tool_choice", fmt::format("a named tool excludes {}", generation.grammar->param));
  }
  if (!must_call && !generation.grammar && std::ranges::none_of(out.tools, is_strict)) return;
  const std::vector<CallableTool> tools = callable_tools(out.tools, choice);
  ToolGrammarOptions options{.allows_several = generation.parallel_tool_calls};
  if (!must_call) {
    options.other_answer = generation.grammar ? &generation.grammar->source : nullptr;
    options.may_answer = true;
  }
  generation.grammar = AnswerGrammar{
      .source = tool_call_grammar(tools, options),
      .param = must_call || !generation.grammar ? "tools" : generation.grammar->param};
}

}  // namespace winnow::server
