#include "text/tool_call_parser.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

namespace winnow {
namespace {

using Json = nlohmann::ordered_json;

const std::string kNs = "]<]minimax[>[";

Json vectors() {
  std::ifstream file(WINNOW_SOURCE_DIR "/tests/text/data/tool_call_vectors.json");
  return Json::parse(file);
}

ToolSchemas schemas_of(const Json& tools) {
  ToolSchemas schemas;
  for (const Json& tool : tools) schemas[tool["name"]] = tool["parameters"];
  return schemas;
}

void append(const ToolCallParser::Piece& piece, ToolCallParser::Piece& all) {
  all.content += piece.content;
  all.calls.insert(all.calls.end(), piece.calls.begin(), piece.calls.end());
}

/// `first_index`: the vectors count calls over the whole message.
void expect_piece(const Json& expected, const ToolCallParser::Piece& piece,
                  std::size_t first_index) {
  const Json content = expected.value("content", Json());
  EXPECT_EQ(piece.content, content.is_string() ? content.get<std::string>() : "");
  const Json calls = expected.value("tool_calls", Json::array());
  ASSERT_EQ(piece.calls.size(), calls.size());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    EXPECT_EQ(calls[i]["index"], first_index + i);
    EXPECT_EQ(piece.calls[i].name, calls[i]["name"]);
    // Unordered, so that the order of keys does not count; the kind of a number does.
    const auto ours = nlohmann::json::parse(piece.calls[i].arguments);
    const auto theirs = nlohmann::json::parse(calls[i]["arguments"].dump());
    EXPECT_EQ(ours.dump(), theirs.dump());
  }
}

std::string whole_text(const Json& vector) {
  std::string whole;
  for (const Json& chunk : vector["chunks"]) whole += chunk.get<std::string>();
  return whole;
}

ToolCallParser::Piece parse(const std::string& text, const ToolSchemas& schemas) {
  ToolCallParser parser(schemas);
  ToolCallParser::Piece all = parser.add(text);
  append(parser.finish(), all);
  return all;
}

TEST(ToolCallParser, GivesThePublishedDeltas) {
  const Json all = vectors();
  const ToolSchemas schemas = schemas_of(all["tools"]);
  for (const Json& vector : all["tool_calls"]) {
    SCOPED_TRACE(vector["id"]);
    ToolCallParser parser(schemas);
    std::size_t num_calls = 0;
    for (std::size_t i = 0; i < vector["chunks"].size(); ++i) {
      SCOPED_TRACE(i);
      const auto piece = parser.add(vector["chunks"][i].get<std::string>());
      expect_piece(vector["expect_deltas"][i], piece, num_calls);
      num_calls += piece.calls.size();
    }
    expect_piece(vector["expect_finish_delta"], parser.finish(), num_calls);
  }
}

// Case H3: no call and no byte depends on how the stream was cut.
TEST(ToolCallParser, ReadsTheSameForEveryWayOfCutting) {
  const Json all = vectors();
  const ToolSchemas schemas = schemas_of(all["tools"]);
  for (const Json& vector : all["tool_calls"]) {
    const std::string whole = whole_text(vector);
    expect_piece(vector["expect_final"], parse(whole, schemas), 0);
    for (std::size_t first = 0; first <= whole.size(); ++first) {
      for (const std::size_t size :
           {std::size_t{1}, std::size_t{2}, std::size_t{3}, whole.size()}) {
        SCOPED_TRACE(vector["id"].get<std::string>() + " cut at " + std::to_string(first));
        ToolCallParser parser(schemas);
        ToolCallParser::Piece pieces = parser.add(whole.substr(0, first));
        for (std::size_t at = first; at < whole.size(); at += size) {
          append(parser.add(whole.substr(at, size)), pieces);
        }
        append(parser.finish(), pieces);
        expect_piece(vector["expect_final"], pieces, 0);
        if (HasFailure()) return;
      }
    }
  }
}

/// What a client makes of the pieces: the calls that were completed, by index.
struct Told {
  std::map<int, ToolCall> calls;
  std::map<int, bool> is_complete;
  std::string content;

  void add(const ToolCallParser::Piece& piece) {
    content += piece.content;
    for (const ToolCallDelta& delta : piece.deltas) {
      ToolCall& call = calls[delta.index];
      EXPECT_EQ(call.name.empty(), !delta.name.empty()) << "a name comes first, and once";
      call.name += delta.name;
      call.arguments += delta.arguments;
      EXPECT_FALSE(is_complete[delta.index]) << "nothing follows the end";
      is_complete[delta.index] = delta.is_complete;
    }
  }
  std::vector<ToolCall> complete() const {
    std::vector<ToolCall> out;
    for (const auto& [index, call] : calls) {
      if (is_complete.at(index)) out.push_back(call);
    }
    return out;
  }
};

void expect_told(const std::string& whole, const std::vector<std::size_t>& cuts,
                 const ToolSchemas& schemas) {
  const ToolCallParser::Piece expected = parse(whole, schemas);
  ToolCallParser parser(schemas, /*gives_deltas=*/true);
  Told told;
  std::size_t at = 0;
  for (const std::size_t cut : cuts) {
    told.add(parser.add(whole.substr(at, cut - at)));
    at = cut;
  }
  told.add(parser.add(whole.substr(at)));
  told.add(parser.finish());
  EXPECT_EQ(told.content, expected.content);
  const std::vector<ToolCall> complete = told.complete();
  ASSERT_EQ(complete.size(), expected.calls.size());
  for (std::size_t i = 0; i < complete.size(); ++i) {
    EXPECT_EQ(complete[i].name, expected.calls[i].name);
    EXPECT_EQ(complete[i].arguments, expected.calls[i].arguments);
  }
  for (const auto& [index, call] : told.calls) {  // nobody can run what was given up
    EXPECT_TRUE(told.is_complete.at(index) || !Json::accept(call.arguments)) << call.arguments;
  }
}

// Case H3: pieces add up to the call of the whole text, however the stream was cut.
TEST(ToolCallParser, DeltasAddUpToTheCallForEveryWayOfCutting) {
  const Json all = vectors();
  const ToolSchemas schemas = schemas_of(all["tools"]);
  for (const Json& vector : all["tool_calls"]) {
    const std::string whole = whole_text(vector);
    for (std::size_t first = 0; first <= whole.size(); ++first) {
      for (const std::size_t size :
           {std::size_t{1}, std::size_t{2}, std::size_t{3}, whole.size() + 1}) {
        SCOPED_TRACE(vector["id"].get<std::string>() + " cut at " + std::to_string(first) +
                     " and by " + std::to_string(size));
        std::vector<std::size_t> cuts = {first};
        while (cuts.back() + size < whole.size()) cuts.push_back(cuts.back() + size);
        expect_told(whole, cuts, schemas);
        if (HasFailure()) return;
      }
    }
  }
}

std::string block(const std::string& inside) {
  return kNs + "<tool_call>\n" + kNs + "<invoke name=\"f\">" + inside + kNs + "</invoke>\n" + kNs +
         "</tool_call>";
}

std::string element(const std::string& key, const std::string& value) {
  return kNs + "<" + key + ">" + value + kNs + "</" + key + ">";
}

/// Arguments of a call of f, whose parameters are `properties`.
std::string arguments_of(const std::string& inside, const std::string& properties) {
  const ToolSchemas schemas = {
      {"f", Json{{"type", "object"}, {"properties", Json::parse(properties)}}}};
  const auto piece = parse(block(inside), schemas);
  return piece.calls.size() == 1 ? piece.calls[0].arguments : "no call, content " + piece.content;
}

TEST(ToolArguments, AreTypedByTheSchema) {
  const struct {
    std::string inside;
    std::string properties;
    std::string expected;
  } cases[] = {
      {element("a", "007"), R"({"a":{"type":"integer"}})", R"({"a":7})"},
      {element("a", " -3\n"), R"({"a":{"type":"INT32"}})", R"({"a":-3})"},
      {element("a", "99999999999999999999"), R"({"a":{"type":"integer"}})",
       R"({"a":"99999999999999999999"})"},
      {element("a", "5"), R"({"a":{"type":"number"}})", R"({"a":5})"},
      {element("a", "1e999"), R"({"a":{"type":"number"}})", R"({"a":"1e999"})"},
      {element("a", "nan"), R"({"a":{"type":"float"}})", R"({"a":"nan"})"},
      {element("a", "TRUE"), R"({"a":{"type":"boolean"}})", R"({"a":true})"},
      {element("a", "yes"), R"({"a":{"type":"boolean"}})", R"({"a":"yes"})"},
      // A literal null is a string where only strings are taken.
      {element("a", "null"), R"({"a":{"type":"string"}})", R"({"a":"null"})"},
      {element("a", "null"), R"({"a":{"enum":["null","x"]}})", R"({"a":"null"})"},
      {element("a", "null"), R"({"a":{"type":["string","null"]}})", R"({"a":null})"},
      {element("a", "null"), "{}", R"({"a":null})"},
      {element("a", "12"), "{}", R"({"a":"12"})"},
      {element("a", "12"), R"({"a":{"anyOf":[{"type":"integer"},{"type":"string"}]}})",
       R"({"a":12})"},
      {element("a", "x"), R"({"a":{"anyOf":[{"type":"integer"},{"type":"string"}]}})",
       R"({"a":"x"})"},
      {element("a", R"({"b": [1, 2]})"), R"({"a":{"type":"object"}})", R"({"a":{"b":[1,2]}})"},
      {element("a", "[1"), R"({"a":{"items":{}}})", R"({"a":"[1"})"},
      {element("a", ""), R"({"a":{"type":"array"}})", R"({"a":[]})"},
      {element("a", ""), R"({"a":{"type":"string"}})", R"({"a":""})"},
      {element("a", "  two\nlines "), R"({"a":{"type":"string"}})", R"({"a":"  two\nlines "})"},
      {element("a", "<b>&amp;\\\"</b>"), R"({"a":{"type":"string"}})",
       R"({"a":"<b>&amp;\\\"</b>"})"},
      {element("-A", "1") + element("x.y z", "2"), "{}", R"({"-A":"1","x.y z":"2"})"},
      {element("say \"hi\"", "1"), "{}", R"({"say \"hi\"":"1"})"},
      // One element of a list is still a list.
      {element("a", element("item", "1")), R"({"a":{"type":"array","items":{"type":"integer"}}})",
       R"({"a":[1]})"},
      {element("a", element("item", element("item", "1"))), "{}", R"({"a":[["1"]]})"},
      {element("a", element("x", "1") + element("x", "2") + element("x", "3")), "{}",
       R"({"a":{"x":["1","2","3"]}})"},
      {element("a", element("item", "1") + element("item", "2")),
       R"({"a":{"prefixItems":[{"type":"string"}],"items":{"type":"integer"},"type":"array"}})",
       R"({"a":["1",2]})"},
      {element("a", "note" + element("b", "1")), "{}", R"({"a":{"b":"1","$text":"note"}})"},
      {element("a", "\n" + element("b", "1") + "\n"), "{}", R"({"a":{"b":"1"}})"},
      {"", "{}", "{}"},
      {"\n " + element("a", "1") + "\n", "{}", R"({"a":"1"})"},
  };
  for (const auto& c : cases)
    EXPECT_EQ(arguments_of(c.inside, c.properties), c.expected) << c.inside;
}

TEST(ToolArguments, FollowReferencesWithinTheSchema) {
  const Json schema = Json::parse(R"({
    "properties": {"p": {"$ref": "#/$defs/Point"}, "q": {"$ref": "#/$defs/Nowhere"},
                   "r": {"$ref": "#/$defs/Loop"}, "s": {"$ref": "file:///etc/passwd"}},
    "$defs": {"Point": {"type": "object", "properties": {"x": {"type": "integer"}}},
              "Loop": {"$ref": "#/$defs/Loop"}}})");
  const TaggedValue call{.members = {{.key = "p", .members = {{.key = "x", .text = "1"}}},
                                     {.key = "q", .text = "1"},
                                     {.key = "r", .text = "1"},
                                     {.key = "s", .text = "1"}}};
  EXPECT_EQ(tool_arguments(call, schema).dump(), R"({"p":{"x":1},"q":"1","r":"1","s":"1"})");
}

TEST(ToolArguments, ASchemaThatMakesNoSenseIsNone) {
  for (const char* const properties :
       {R"({"a":7})", R"({"a":{"type":7}})", R"({"a":{"type":["x",null]}})",
        R"({"a":{"anyOf":"x"}})", R"({"a":{"$ref":7}})", R"({"a":{"$ref":"#no/pointer"}})"}) {
    EXPECT_EQ(arguments_of(element("a", "1"), properties), R"({"a":"1"})") << properties;
  }
  for (const char* const schema : {"null", "[]", "7", R"({"properties":[]})"}) {
    const TaggedValue call{.members = {{.key = "a", .text = "1"}}};
    EXPECT_EQ(tool_arguments(call, Json::parse(schema)).dump(), R"({"a":"1"})") << schema;
  }
}

// Case H3: a broken call is text, never a call with parameters missing.
TEST(ToolCallParser, ABrokenCallIsText) {
  const std::string broken[] = {
      element("a", "1") + "stray" + element("b", "2"),
      kNs + "<a>1",
      element("a", "1") + kNs + "</a>",
      kNs + "<>1" + kNs + "</>",
      kNs + "<a" + element("b", "1"),
      element("a", kNs + "1"),
  };
  for (const std::string& inside : broken) {
    const auto piece = parse("Go. " + block(inside), {});
    EXPECT_TRUE(piece.calls.empty()) << inside;
    EXPECT_EQ(piece.content, "Go. " + kNs + "<invoke name=\"f\">" + inside + kNs + "</invoke>");
  }
}

TEST(ToolCallParser, TakesTheNamesThatModelsWrite) {
  for (const char* const opener : {"<invoke name=\"g h\">", "<invoke name='g h'>",
                                   "<invoke  name=g h>", "<invoke\nname=\"g h\" >"}) {
    const auto piece = parse(kNs + "<tool_call>" + kNs + " " + opener + kNs + "</invoke>", {});
    ASSERT_EQ(piece.calls.size(), 1U) << opener;
    EXPECT_EQ(piece.calls[0].name, "g h");
  }
  for (const char* const opener : {"<invoke>", "<invokename=f>", "<invoke name=>",
                                   "<invoke name=\"f>", "<invoke f>", "<invoke name=\"\">"}) {
    const auto piece = parse(kNs + "<tool_call>" + kNs + opener + kNs + "</invoke>", {});
    EXPECT_TRUE(piece.calls.empty()) << opener;
    EXPECT_EQ(piece.content, kNs + opener + kNs + "</invoke>");
  }
}

TEST(ToolCallParser, NothingNestsWithoutEnd) {
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += kNs + "<a>";
  EXPECT_TRUE(parse(block(deep), {}).calls.empty());
  const std::string brackets(100'000, '[');
  EXPECT_EQ(arguments_of(element("a", brackets), R"({"a":{"type":"array"}})"),
            "{\"a\":\"" + brackets + "\"}");
}

TEST(ToolCallParser, ACallOutsideOfABlockAndAnEmptyBlock) {
  const std::string call = kNs + "<invoke name=\"f\">" + kNs + "</invoke>";
  EXPECT_EQ(parse("see " + call, {}).content, "see " + call);
  const auto piece = parse("a" + kNs + "<tool_call>" + kNs + "</tool_call> b", {});
  EXPECT_EQ(piece.content, "a");
  EXPECT_TRUE(piece.calls.empty());
}

TEST(ToolCallParser, BytesThatAreNoUtf8StillMakeJson) {
  const auto piece = parse(block(element("a", "\xFF\xC3")), {});
  ASSERT_EQ(piece.calls.size(), 1U);
  EXPECT_TRUE(nlohmann::json::accept(piece.calls[0].arguments));
}

/// All that was told of the arguments once `inside` was read, the call being open still.
std::string told_of(const std::string& inside, const std::string& properties) {
  const ToolSchemas schemas = {
      {"f", Json{{"type", "object"}, {"properties", Json::parse(properties)}}}};
  ToolCallParser parser(schemas, /*gives_deltas=*/true);
  std::string told;
  for (const char c : kNs + "<tool_call>\n" + kNs + "<invoke name=\"f\">" + inside) {
    for (const ToolCallDelta& delta : parser.add(std::string(1, c)).deltas) {
      told += delta.arguments;
    }
  }
  return told;
}

// Case H3: the first bytes come long before the call is complete.
TEST(ToolCallParser, TellsArgumentsAsTheyAreWritten) {
  EXPECT_EQ(told_of("", "{}"), "{");
  EXPECT_EQ(told_of(kNs + "<s>Par", R"({"s":{"type":"string"}})"), R"({"s":"Par)");
  EXPECT_EQ(told_of(kNs + "<s>a\"\n\xC3", R"({"s":{"type":"string"}})"), R"({"s":"a\"\n)");
  EXPECT_EQ(told_of(kNs + "<s>nul", "{}"), "{");
  EXPECT_EQ(told_of(kNs + "<s>nulls", "{}"), R"({"s":"nulls)");
  EXPECT_EQ(told_of(element("i", "12") + kNs + "<n>3", R"({"i":{"type":"integer"}})"),
            R"({"i":12,"n":"3)");
  const std::string list = R"({"l":{"type":"array","items":{"type":"object",
      "properties":{"x":{"type":"integer"},"t":{"type":"string"}}}}})";
  EXPECT_EQ(told_of(kNs + "<l>" + kNs + "<item>" + element("x", "1") + kNs + "<t>ab", list),
            R"({"l":[{"x":1,"t":"ab)");
  EXPECT_EQ(told_of(kNs + "<l>" + element("item", element("x", "1")) + kNs + "<item>", list),
            R"({"l":[{"x":1})");
}

TEST(ToolCallParser, RandomCallsAreToldAsTheyAreRead) {
  const std::vector<std::string> pieces = {kNs,
                                           "<invoke name=\"f\">",
                                           "</invoke>",
                                           "<tool_call>",
                                           "</tool_call>",
                                           "<a>",
                                           "</a>",
                                           "<b>",
                                           "</b>",
                                           "<item>",
                                           "</item>",
                                           "null",
                                           "1",
                                           " ",
                                           "x\"y",
                                           "\xE6\x97\xA5",
                                           "{}",
                                           "<"};
  const ToolSchemas schemas = {{"f", Json::parse(R"({"type":"object","properties":{
      "a":{"type":["array","string"],"items":{"type":"object"}},"b":{"anyOf":[{"type":"null"},
      {"type":"object","properties":{"a":{"type":"string"}}}]}}})")}};
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 3000 && !::testing::Test::HasFailure(); ++round) {
    std::string whole = random() % 4 == 0 ? "" : kNs + "<tool_call>" + kNs + "<invoke name=\"f\">";
    for (std::size_t n = random() % 40; n > 0; --n) {
      if (random() % 2 == 0) whole += kNs;
      whole += pieces[random() % pieces.size()];
    }
    if (random() % 2 == 0) whole += kNs + "</invoke>" + kNs + "</tool_call>";
    std::vector<std::size_t> cuts;
    for (std::size_t at = 0; at < whole.size(); at += 1 + random() % 7) cuts.push_back(at);
    SCOPED_TRACE(whole);
    expect_told(whole, cuts, schemas);
  }
}

}  // namespace
}  // namespace winnow
