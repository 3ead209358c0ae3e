// Rules of our own around the template engine; equality with jinja2 is tests/text.
#include "text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "text/jinja/json.h"

namespace winnow {
namespace {

using Json = nlohmann::ordered_json;
using testing::HasSubstr;

std::string failure(std::string_view source, const Json& context = Json::object(),
                    ErrorCode code = ErrorCode::kInvalidArgument,
                    const RenderOptions& options = {}) {
  try {
    return "rendered: " + ChatTemplate(source, "T").render(context, options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.text();
    return error.text();
  }
}

TEST(ChatTemplate, MarksWhatCameInWithTheRequest) {
  const ChatTemplate chat("]~b]{{ m.role }}\n{{ m.content }}[e~[");
  const auto segments = chat.render_segments({{"m", {{"role", "user"}, {"content", "[e~["}}}});
  ASSERT_EQ(segments.size(), 5U);
  EXPECT_EQ(segments[0].text, "]~b]");
  EXPECT_TRUE(segments[0].is_from_template);
  EXPECT_EQ(segments[3].text, "[e~[");
  EXPECT_FALSE(segments[3].is_from_template);
  EXPECT_TRUE(segments[4].is_from_template);
}

TEST(ChatTemplate, KeepsKeyOrderAndTheSpellingOfNumbers) {
  const ChatTemplate chat("{{ a|tojson }} {{ a.z }} {{ a.y }}");
  const jinja::Value context = jinja::parse_json(
      R"({"a": {"z": 123456789012345678901234567890, "y": 1.0, "x": 1, "w": -0, "v": 1e2}})");
  std::string text;
  for (const TextSegment& segment : chat.render_segments(context)) text += segment.text;
  EXPECT_EQ(text, R"({"z": 123456789012345678901234567890, "y": 1.0, "x": 1, "w": 0, "v": 100.0})"
                  " 123456789012345678901234567890 1.0");
}

TEST(ChatTemplate, ErrorsNameTheTemplateAndLine) {
  EXPECT_THAT(failure("a\n{{ 1 + }}", Json::object(), ErrorCode::kInvalidCheckpoint),
              HasSubstr("T, line 2"));
  EXPECT_EQ(failure("\n\n{{ raise_exception('no') }}"), "T, line 3: no");
  EXPECT_THAT(failure("{{ user.name }}"), HasSubstr("'user' is undefined"));
  EXPECT_THAT(failure("{{ [].append(1) }}"), HasSubstr("use a namespace"));
  EXPECT_EQ(failure("\n{{ {[]: 1} }}"), "T, line 2: a list cannot be the key of a mapping");
  EXPECT_THAT(failure("x", Json::array()), HasSubstr("must be an object"));
}

TEST(ChatTemplate, StopsAtItsLimits) {
  RenderOptions few_steps;
  few_steps.limits.max_steps = 1000;
  EXPECT_THAT(failure("{% for a in range(9999) %}{{ a }}{% endfor %}", Json::object(),
                      ErrorCode::kTooLarge, few_steps),
              HasSubstr("1000 steps"));
  RenderOptions small;
  small.limits.max_output_bytes = 100;
  EXPECT_THAT(failure("{% for a in range(99) %}{{ 'abc' }}{% endfor %}", Json::object(),
                      ErrorCode::kTooLarge, small),
              HasSubstr("100 bytes"));
  EXPECT_THAT(failure("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", Json::object(),
                      ErrorCode::kTooLarge),
              HasSubstr("deep"));
}

TEST(ChatTemplate, RefusesJsonNestedTooDeeply) {
  EXPECT_THROW(jinja::parse_json(std::string(100'000, '[')), Error);
  Json nested;
  for (int i = 0; i < 1000; ++i) nested = Json::array({std::move(nested)});
  EXPECT_THAT(failure("x", {{"a", nested}}, ErrorCode::kInvalidJson), HasSubstr("deep"));
}

TEST(ChatTemplate, RendersTheSameOnManyThreads) {
  const ChatTemplate chat(
      "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n "
      "+ 1 %}{{ ns.n }}{{ m|upper }}{% endfor %}");
  const Json context = {{"messages", {"a", "b", "c"}}};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 200; ++round) ASSERT_EQ(chat.render(context), "1A2B3C");
    });
  }
  for (std::thread& thread : threads) thread.join();
}

class TemplateFolder : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "template_XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void write(const char* name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  std::filesystem::path folder_;
};

TEST_F(TemplateFolder, PrefersTheJinjaFileToTheTokenizerConfig) {
  EXPECT_THROW(ChatTemplate::from_folder(folder_), Error);
  write("tokenizer_config.json", R"({"chat_template": "from config"})");
  EXPECT_EQ(ChatTemplate::from_folder(folder_).render(Json::object()), "from config");
  write("tokenizer_config.json",
        R"({"chat_template": [{"name": "tool_use", "template": "t"},
                              {"name": "default", "template": "d"}]})");
  EXPECT_EQ(ChatTemplate::from_folder(folder_).render(Json::object()), "d");
  write("tokenizer_config.json", R"({"chat_template": 5})");
  EXPECT_THROW(ChatTemplate::from_folder(folder_), Error);
  write("chat_template.jinja", "from file\n");
  EXPECT_EQ(ChatTemplate::from_folder(folder_).render(Json::object()), "from file");
}

}  // namespace
}  // namespace winnow
