#include "grammar/tool_grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "grammar/testing/grammar_text.h"
#include "text/tool_call_parser.h"

namespace winnow {
namespace {

using namespace testing;
using Json = nlohmann::ordered_json;

const std::string kNs = "]<]minimax[>[";

std::string element(const std::string& key, const std::string& value) {
  return kNs + "<" + key + ">" + value + kNs + "</" + key + ">";
}

std::string call(const std::string& name, const std::string& inside) {
  return kNs + "<invoke name=\"" + name + "\">" + inside + kNs + "</invoke>\n";
}

std::string block(const std::string& calls) {
  return kNs + "<tool_call>\n" + calls + kNs + "</tool_call>";
}

std::shared_ptr<const CompiledGrammar> grammar_of(const Json& parameters,
                                                  bool allows_several = true) {
  const std::vector<CallableTool> tools = {
      {.name = "f", .parameters = &parameters, .path = "tools[0].function.parameters"}};
  return tiny_compiler().compile(tool_call_grammar(tools, {.allows_several = allows_several}));
}

bool takes(const std::string& parameters, const std::string& inside) {
  return accepts(grammar_of(Json::parse(parameters)), block(call("f", inside)));
}

TEST(ToolGrammar, TakesBlocksOfCallsAndNothingElse) {
  const Json parameters = Json::parse(
      R"({"type":"object","properties":{"city":{"type":"string"}},"required":["city"]})");
  const auto several = grammar_of(parameters);
  const std::string one = call("f", element("city", "Paris, <b> & \"x\""));
  EXPECT_TRUE(accepts(several, block(one)));
  EXPECT_TRUE(accepts(several, block(one + one)));
  EXPECT_FALSE(accepts(several, block("")));
  EXPECT_FALSE(accepts(several, "Sure. " + block(one)));
  EXPECT_FALSE(accepts(several, block(one) + "x"));
  EXPECT_FALSE(accepts(several, block(call("g", element("city", "Paris")))));
  EXPECT_FALSE(accepts(several, block(call("f", ""))));
  EXPECT_FALSE(accepts(several, block(call("f", element("town", "Paris")))));
  EXPECT_FALSE(accepts(several, block(call("f", element("city", "a" + kNs + "<b>")))));
  const auto single = grammar_of(parameters, false);
  EXPECT_TRUE(accepts(single, block(one)));
  EXPECT_FALSE(accepts(single, block(one + one)));
}

TEST(ToolGrammar, TypesLeavesByTheSchema) {
  const std::string schema = R"({"type":"object","properties":{
      "i":{"type":"integer"},"n":{"type":["number","null"]},"b":{"type":"boolean"},
      "e":{"enum":["low","high"]},"r":{"type":"integer","minimum":3,"maximum":5}}})";
  EXPECT_TRUE(takes(schema, element("i", "-12") + element("n", "null") + element("b", "true")));
  EXPECT_TRUE(takes(schema, element("n", "1.5e3") + element("e", "high") + element("r", "4")));
  EXPECT_TRUE(takes(schema, ""));
  EXPECT_FALSE(takes(schema, element("i", "1.5")));
  EXPECT_FALSE(takes(schema, element("i", "99999999999999999999")));
  EXPECT_FALSE(takes(schema, element("b", "yes")));
  EXPECT_FALSE(takes(schema, element("e", "mid")));
  EXPECT_FALSE(takes(schema, element("r", "6")));
  EXPECT_FALSE(takes(schema, element("b", "true") + element("i", "1")));  // the schema's order
}

TEST(ToolGrammar, NestsArraysAndObjects) {
  const std::string schema = R"({"type":"object","properties":{
      "points":{"type":"array","minItems":1,"maxItems":2,"items":{"type":"object",
        "properties":{"x":{"type":"integer"},"tags":{"type":"array","items":{"type":"string"}}},
        "required":["x"]}}},"required":["points"]})";
  const std::string point = element(
      "item", element("x", "1") + element("tags", element("item", "a") + element("item", "")));
  EXPECT_TRUE(takes(schema, element("points", point)));
  EXPECT_TRUE(takes(schema, element("points", point + point)));
  EXPECT_FALSE(takes(schema, element("points", point + point + point)));
  EXPECT_FALSE(takes(schema, element("points", "")));
}

TEST(ToolGrammar, WritesFreeObjectsAndRecursionAsJson) {
  const std::string free =
      R"({"type":"object","properties":{"o":{"type":"object"},"l":{"type":"array"}}})";
  EXPECT_TRUE(takes(free, element("o", R"({"a":[1]})") + element("l", "[1,\"x\"]")));
  EXPECT_FALSE(takes(free, element("o", "text")));
  const std::string tree = R"({"type":"object","$defs":{"t":{"type":"object","properties":{
      "v":{"type":"integer"},"next":{"$ref":"#/$defs/t"}},"required":["v"]}},
      "properties":{"root":{"$ref":"#/$defs/t"}}})";
  EXPECT_TRUE(takes(
      tree, element("root", element("v", "1") + element("next", R"({"v":2,"next":{"v":3}})"))));
  EXPECT_FALSE(takes(tree, element("root", element("v", "1") + element("next", R"({"w":2})"))));
}

TEST(ToolGrammar, LeavesNamesOpenWhereNoneAreDeclared) {
  EXPECT_TRUE(takes(R"({"type":"object"})", element("any_name", "text")));
  EXPECT_TRUE(takes("null", ""));
  EXPECT_FALSE(takes(R"({"type":"object","properties":{}})", element("any_name", "text")));
}

TEST(ToolGrammar, NamesTheMemberAtFault) {
  const auto param = [](const std::string& parameters) -> std::string {
    try {
      (void)grammar_of(Json::parse(parameters));
    } catch (const Error& error) {
      return error.param();
    }
    return "";
  };
  EXPECT_EQ(param(R"({"type":"object","properties":{"a":{"type":"int"}}})"),
            "tools[0].function.parameters.properties.a.type");
  EXPECT_EQ(param(R"({"type":"object","properties":{"a>b":{"type":"string"}}})"),
            "tools[0].function.parameters.properties.a>b");
  EXPECT_EQ(param(R"({"type":"object","properties":{"a":{"const":"]<]minimax[>["}}})"),
            "tools[0].function.parameters.properties.a.const");
}

// What a constrained reply holds is read back as calls whose arguments are of the schema's types.
TEST(ToolGrammar, RandomWalksAreReadAsCallsOfTheSchema) {
  const Json parameters = Json::parse(R"({"type":"object","properties":{
      "s":{"type":"string","minLength":1,"maxLength":6},"i":{"type":"integer"},
      "o":{"type":"object","properties":{"b":{"type":"boolean"}},"required":["b"]},
      "l":{"type":"array","items":{"type":"number"},"maxItems":2}},"required":["s","i","o","l"]})");
  const auto grammar = grammar_of(parameters);
  const ToolSchemas schemas = {{"f", parameters}};
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  int num_ended = 0;
  for (int i = 0; i < 40; ++i) {
    const std::string text = random_text(grammar, random, 600);
    if (text.empty()) continue;
    ++num_ended;
    ToolCallParser parser(schemas);
    ToolCallParser::Piece piece = parser.add(text);
    EXPECT_EQ(parser.finish().content + piece.content, "") << text;
    ASSERT_FALSE(piece.calls.empty()) << text;
    for (const ToolCall& one : piece.calls) {
      const Json arguments = Json::parse(one.arguments);
      EXPECT_TRUE(arguments["s"].is_string()) << text;
      EXPECT_TRUE(arguments["i"].is_number_integer()) << text;
      EXPECT_TRUE(arguments["o"]["b"].is_boolean()) << text;
      ASSERT_TRUE(arguments["l"].is_array()) << text;
      for (const Json& number : arguments["l"]) EXPECT_TRUE(number.is_number()) << text;
    }
  }
  EXPECT_GT(num_ended, 10);
}

}  // namespace
}  // namespace winnow
