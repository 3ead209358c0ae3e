#include "grammar/schema_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace winnow {
namespace {

/// "" when the schema is accepted.
std::string fault(const std::string& schema) {
  try {
    check_schema(nlohmann::ordered_json::parse(schema), "s");
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::StartsWith(error.param() + ": "));
    return error.param();
  }
  return "";
}

TEST(SchemaCheck, NamesTheMemberAtFault) {
  EXPECT_EQ(fault("3"), "s");
  EXPECT_EQ(fault(R"({"type":"strin"})"), "s.type");
  EXPECT_EQ(fault(R"({"type":[]})"), "s.type");
  EXPECT_EQ(fault(R"({"properties":{"a":{"items":{"type":7}}}})"), "s.properties.a.items.type");
  EXPECT_EQ(fault(R"({"properties":[]})"), "s.properties");
  EXPECT_EQ(fault(R"({"anyOf":[true,{"enum":[]}]})"), "s.anyOf[1].enum");
  EXPECT_EQ(fault(R"({"anyOf":[]})"), "s.anyOf");
  EXPECT_EQ(fault(R"({"$ref":"#/$defs/x"})"), "s.$ref");
  EXPECT_EQ(fault(R"({"$ref":"http://x"})"), "s.$ref");
  EXPECT_EQ(fault(R"({"required":"a"})"), "s.required");
  EXPECT_EQ(fault(R"({"minItems":-1})"), "s.minItems");
  EXPECT_EQ(fault(R"({"minItems":3,"maxItems":2})"), "s.minItems");
  EXPECT_EQ(fault(R"({"maxLength":1e9})"), "s.maxLength");
  EXPECT_EQ(fault(R"({"minimum":"1"})"), "s.minimum");
  EXPECT_EQ(fault(R"({"pattern":1})"), "s.pattern");
  EXPECT_EQ(fault(R"({"pattern":"a","maxLength":1})"), "s.pattern");
}

TEST(SchemaCheck, RefusesWhatWouldNotBeApplied) {
  EXPECT_EQ(fault(R"({"not":{}})"), "s.not");
  EXPECT_EQ(fault(R"({"if":{}})"), "s.if");
  EXPECT_EQ(fault(R"({"uniqueItems":true})"), "s.uniqueItems");
  EXPECT_EQ(fault(R"({"uniqueItems":false})"), "");
  EXPECT_EQ(fault(R"({"type":"number","multipleOf":0.5})"), "s.multipleOf");
  EXPECT_EQ(fault(R"({"type":"integer","multipleOf":5})"), "");
  EXPECT_EQ(fault(R"({"allOf":[{},{}]})"), "s.allOf");
}

TEST(SchemaCheck, AcceptsWhatSchemasOfProgramsHold) {
  EXPECT_EQ(fault(R"({"$schema":"x","title":"T","type":["string","null"],"default":null,
      "$defs":{"a":{"type":"integer","minimum":0,"exclusiveMaximum":5.5}},
      "properties":{"r":{"$ref":"#/$defs/a"},"q":{"allOf":[{"$ref":"#/$defs/a"}]},"self":{"$ref":"#"}},
      "required":["r"],"additionalProperties":false,"description":"d","x-own":1})"),
            "");
}

TEST(SchemaCheck, BoundsItsDepth) {
  std::string deep = "{}";
  for (int i = 0; i < 80; ++i) deep = R"({"items":)" + deep + "}";
  EXPECT_THAT(fault(deep), ::testing::StartsWith("s.items"));
}

}  // namespace
}  // namespace winnow
