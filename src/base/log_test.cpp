#include "base/log.h"

#include <gtest/gtest.h>

#include <string>

namespace winnow {
namespace {

/// What the logger writes to stderr during `log`.
template <typename F>
std::string written(LogFormat format, F&& log) {
  ::testing::internal::CaptureStderr();
  init_log("info", format);
  log();
  spdlog::default_logger()->flush();
  init_log("info");
  return ::testing::internal::GetCapturedStderr();
}

TEST(Log, TextHasFieldsBehindTheMessage) {
  const std::string line = written(LogFormat::kText, [] {
    const LogField fields[] = {{"status", std::int64_t{200}},
                               {"ms", 1.5},
                               {"path", std::string("/a b\n\x1b[1m")},
                               {"id", std::string("r-1")}};
    log_event(spdlog::level::info, "GET", fields);
  });
  EXPECT_TRUE(line.ends_with("info GET status=200 ms=1.500 path=\"/a b\\n\\u001b[1m\" id=r-1\n"))
      << line;
}

TEST(Log, JsonIsOneObjectALine) {
  const std::string line = written(LogFormat::kJson, [] {
    const LogField fields[] = {{"status", std::int64_t{200}},
                               {"who", std::string("\"\xFF\xC3\xA9")}};
    log_event(spdlog::level::warn, "two\nlines", fields);
    spdlog::info("plain \"words\"");
    log_event(spdlog::level::debug, "below the level", fields);
  });
  const std::size_t end = line.find('\n');
  EXPECT_TRUE(line.starts_with("{\"time\":\"2")) << line;
  EXPECT_NE(line.find("Z\",\"level\":\"warning\",\"message\":\"two\\nlines\",\"status\":200,"
                      "\"who\":\"\\\"\xEF\xBF\xBD\xC3\xA9\"}\n"),
            std::string::npos)
      << line;
  EXPECT_NE(line.find("\"message\":\"plain \\\"words\\\"\"}\n", end), std::string::npos) << line;
  EXPECT_EQ(line.find("below"), std::string::npos);
}

TEST(Log, TextFromOutsideMakesNoFields) {
  const std::string line = written(
      LogFormat::kJson, [] { spdlog::info("unknown field '{}'", "\x1elevel\x1f\"error\""); });
  EXPECT_NE(line.find(R"("message":"unknown field '\u001elevel\u001f\"error\"'"})"),
            std::string::npos)
      << line;
}

TEST(Log, TextFromOutsideBreaksNoLine) {
  const std::string line = written(LogFormat::kText, [] {
    spdlog::warn("unknown field '{}'", "a\n[error] b\x1b[2J\xC2\x9B\xFF \"é\\");
  });
  EXPECT_TRUE(
      line.ends_with("warning unknown field 'a\\n[error] b\\u001b[2J\\u009b\xEF\xBF\xBD "
                     "\"é\\'\n"))
      << line;
}

TEST(Log, QuotesWhatIsNoUtf8) {
  EXPECT_EQ(json_quoted("\xED\xA0\x80"),
            "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");  // a surrogate
  EXPECT_EQ(json_quoted("\xC0\xAF\xF5"), "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");
  EXPECT_EQ(json_quoted("\xF0\x9F\x98\x80\t"), "\"\xF0\x9F\x98\x80\\u0009\"");
}

}  // namespace
}  // namespace winnow
