#include "cli/lora_flags.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/testing/usage_error_text.h"

namespace winnow::cli {
namespace {

using ::testing::HasSubstr;

std::optional<LoraSettings> parse(std::vector<std::string> words,
                                  std::map<std::string, std::string> variables = {}) {
  FlagSet set("serve");
  LoraFlags flags;
  add_lora_flags(set, flags);
  set.set_environment(std::move(variables));
  EXPECT_TRUE(set.parse(words));
  return lora_settings(flags);
}

std::string usage_error(const std::vector<std::string>& words) {
  return testing::usage_error_text([&] { parse(words); });
}

TEST(LoraFlags, DefaultsAreThoseOfVllm) {
  EXPECT_FALSE(parse({}).has_value());
  EXPECT_FALSE(parse({"--no-enable-lora"}).has_value());
  const auto settings = parse({"--enable-lora"});
  ASSERT_TRUE(settings.has_value());
  EXPECT_EQ(settings->max_loras, 1);
  EXPECT_EQ(settings->max_rank, 16);
  EXPECT_TRUE(settings->modules.empty());
}

TEST(LoraFlags, ModulesAreNamesOrObjects) {
  const auto settings =
      parse({"--enable-lora", "--lora-modules", "sql=/a/b=c",
             R"({"name":"x","path":"rel","base_model_name":"org/base"})", "--max-loras", "2"});
  ASSERT_EQ(settings->modules.size(), 2U);
  EXPECT_EQ(settings->modules[0].name, "sql");
  EXPECT_EQ(settings->modules[0].path, "/a/b=c");
  EXPECT_EQ(settings->modules[0].base_model, "");
  EXPECT_EQ(settings->modules[1].name, "x");
  EXPECT_EQ(settings->modules[1].path, "rel");
  EXPECT_EQ(settings->modules[1].base_model, "org/base");
  EXPECT_EQ(settings->max_loras, 2);
  const auto from_environment =
      parse({}, {{"WINNOW_ENABLE_LORA", "true"},
                 {"WINNOW_LORA_MODULES", R"(["a=/x", {"name":"b","path":"/y"}])"},
                 {"WINNOW_MAX_LORA_RANK", "64"}});
  ASSERT_EQ(from_environment->modules.size(), 2U);
  EXPECT_EQ(from_environment->modules[1].path, "/y");
  EXPECT_EQ(from_environment->max_rank, 64);
}

TEST(LoraFlags, EveryMisuseSaysWhatIsWrong) {
  const struct {
    std::vector<std::string> words;
    const char* message;
  } cases[] = {
      {{"--lora-modules", "a=/x"}, "--lora-modules needs --enable-lora"},
      {{"--max-loras", "2"}, "--max-loras needs --enable-lora"},
      {{"--max-lora-rank", "8"}, "--max-lora-rank needs --enable-lora"},
      {{"--max-cpu-loras", "8"}, "--max-cpu-loras needs --enable-lora"},
      {{"--enable-lora", "--lora-modules", "a"}, "neither name=path"},
      {{"--enable-lora", "--lora-modules", "=x"}, "neither name=path"},
      {{"--enable-lora", "--lora-modules", "a="}, "neither name=path"},
      {{"--enable-lora", "--lora-modules", "{"}, "not JSON"},
      {{"--enable-lora", "--lora-modules", "{}"}, "neither name=path"},
      {{"--enable-lora", "--lora-modules", R"({"name":1,"path":"x"})"}, "name of"},
      {{"--enable-lora", "--lora-modules", R"({"name":"a","path":"x","rank":8})"},
       "unknown member 'rank'"},
      {{"--enable-lora", "--lora-modules", "a=x", "a=y"}, "named twice"},
      {{"--enable-lora", "--max-loras", "0"}, "--max-loras: 0"},
      {{"--enable-lora", "--max-loras", "x"}, "--max-loras"},
      {{"--enable-lora", "--max-lora-rank", "24"}, "1, 8, 16, 32, 64, 128, 256, 320, 512"},
      {{"--enable-lora", "--max-loras", "4", "--max-cpu-loras", "2"}, "below --max-loras 4"},
      {{"--enable-lora", "--max-cpu-loras", "1", "--lora-modules", "a=x", "b=y"},
       "more than --max-cpu-loras 1"},
  };
  for (const auto& one : cases) {
    EXPECT_THAT(usage_error(one.words), HasSubstr(one.message))
        << ::testing::PrintToString(one.words);
  }
}

TEST(LoraFlags, AsManyAsAreNamedMayBeLoaded) {
  std::vector<std::string> words = {"--enable-lora", "--lora-modules"};
  for (int i = 0; i < 20; ++i) words.push_back(fmt::format("a{}=x", i));
  EXPECT_EQ(parse(words)->max_loaded, 20);
  EXPECT_EQ(parse({"--enable-lora", "--max-loras", "32"})->max_loaded, 32);
  EXPECT_EQ(parse({"--enable-lora", "--max-loras", "2", "--max-cpu-loras", "3"})->max_loaded, 3);
}

}  // namespace
}  // namespace winnow::cli
