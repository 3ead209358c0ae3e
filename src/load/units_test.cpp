#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "load/arrivals.h"
#include "load/dataset.h"
#include "load/report.h"
#include "load/statistics.h"
#include "load/stream_reader.h"
#include "server/testing/test_server.h"
#include "text/tokenizer.h"

namespace winnow::load {
namespace {

using testing::DoubleEq;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(Statistics, PercentilesInterpolateAsNumpyDoes) {
  // numpy.percentile([1, 2, 4, 8], [0, 25, 50, 90, 99, 100])
  const std::vector<double> values = {1, 2, 4, 8};
  EXPECT_DOUBLE_EQ(percentile(values, 0), 1);
  EXPECT_DOUBLE_EQ(percentile(values, 25), 1.75);
  EXPECT_DOUBLE_EQ(percentile(values, 50), 3);
  EXPECT_DOUBLE_EQ(percentile(values, 90), 6.8);
  EXPECT_DOUBLE_EQ(percentile(values, 99), 7.88);
  EXPECT_DOUBLE_EQ(percentile(values, 100), 8);
  EXPECT_DOUBLE_EQ(percentile({5}, 99), 5);
  EXPECT_DOUBLE_EQ(percentile({}, 50), 0);
}

TEST(Statistics, SummaryTakesValuesInAnyOrder) {
  const Summary summary = summarise({8, 1, 4, 2}, {50, 90});
  EXPECT_DOUBLE_EQ(summary.mean, 3.75);
  EXPECT_DOUBLE_EQ(summary.median, 3);
  EXPECT_DOUBLE_EQ(summary.deviation, std::sqrt(7.1875));  // numpy.std
  EXPECT_THAT(summary.percentiles, ElementsAre(DoubleEq(3), DoubleEq(6.8)));
  EXPECT_THAT(summarise({}, {99}).percentiles, ElementsAre(0));
}

TEST(Arrivals, InfiniteRateSendsAllAtOnce) {
  EXPECT_THAT(arrival_seconds({}, 3), ElementsAre(0, 0, 0));
  EXPECT_TRUE(arrival_seconds({.request_rate = 5}, 0).empty());
}

TEST(Arrivals, GapsHaveTheRateAndTheSpreadOfTheirBurstiness) {
  for (const double burstiness : {0.25, 1.0, 4.0}) {
    constexpr std::size_t kCount = 20000;
    const std::vector<double> at =
        arrival_seconds({.request_rate = 50, .burstiness = burstiness, .seed = 7}, kCount);
    ASSERT_TRUE(std::ranges::is_sorted(at));
    EXPECT_EQ(at.front(), 0);
    EXPECT_NEAR(at.back(), kCount / 50.0, 1);
    std::vector<double> gaps;
    for (std::size_t i = 1; i < at.size(); ++i) gaps.push_back(at[i] - at[i - 1]);
    const Summary summary = summarise(gaps, {});
    // A gamma distribution of shape k has the coefficient of variation 1 / sqrt(k).
    EXPECT_NEAR(summary.deviation / summary.mean, 1 / std::sqrt(burstiness), 0.05);
    EXPECT_EQ(at,
              arrival_seconds({.request_rate = 50, .burstiness = burstiness, .seed = 7}, kCount));
    EXPECT_NE(at,
              arrival_seconds({.request_rate = 50, .burstiness = burstiness, .seed = 8}, kCount));
  }
}

class Dataset : public testing::Test {
 protected:
  ~Dataset() override { std::filesystem::remove(path_); }
  FileOptions file(const std::string& text) {
    std::ofstream(path_, std::ios::binary) << text;
    return {.path = path_, .output_len = {}};
  }
  std::filesystem::path path_ =
      std::filesystem::temp_directory_path() / ("winnow-dataset-" + std::to_string(::getpid()));
};

TEST_F(Dataset, MadePromptsHaveTheirLengthsAndShareTheirBeginnings) {
  const DatasetOptions options{.num_prompts = 200, .seed = 3};
  const std::vector<Prompt> prompts = make_prompts(
      options,
      {.input_len = 20, .output_len = 10, .range_ratio = 0.5, .prefix_len = 8, .num_prefixes = 2});
  ASSERT_EQ(prompts.size(), 200U);
  std::int64_t shortest = 1000, longest = 0;
  for (const Prompt& prompt : prompts) {
    EXPECT_EQ(std::ranges::count(prompt.text, ' '), prompt.num_tokens);
    EXPECT_TRUE(prompt.output_tokens >= 5 && prompt.output_tokens <= 15);
    shortest = std::min(shortest, prompt.num_tokens);
    longest = std::max(longest, prompt.num_tokens);
  }
  EXPECT_EQ(shortest, 18);
  EXPECT_EQ(longest, 38);
  EXPECT_EQ(prompts[0].text.substr(0, 16), prompts[2].text.substr(0, 16));
  EXPECT_NE(prompts[0].text.substr(0, 16), prompts[1].text.substr(0, 16));
  EXPECT_EQ(prompts[0].text, make_prompts(options, {.input_len = 20,
                                                    .output_len = 10,
                                                    .range_ratio = 0.5,
                                                    .prefix_len = 8,
                                                    .num_prefixes = 2})[0]
                                 .text);
}

TEST_F(Dataset, ATokenizerWithoutWordsIsRefused) {
  const Tokenizer bytes = server::testing::make_byte_tokenizer();
  EXPECT_THROW((void)make_prompts({.num_prompts = 1, .seed = 0, .tokenizer = &bytes}, {}), Error);
}

TEST_F(Dataset, ShareGptTakesTheFirstTwoTurnsAndSkipsTheRest) {
  const std::string usable =
      R"({"conversations":[{"from":"human","value":"what is the time in Rome?"},)"
      R"({"from":"gpt","value":"it is five to twelve there"}]})";
  const FileOptions hostile = file(
      "[1, null, [], {}, \"x\", {\"conversations\": 5}, {\"conversations\": []},"
      "{\"conversations\": [1, 2]}, {\"conversations\": [{\"value\": 1}, {\"value\": {}}]},"
      "{\"conversations\": [{\"value\": \"a\"}, {\"value\": \"too short a prompt\"}]}," +
      usable + "]");
  const std::vector<Prompt> prompts = read_sharegpt({.num_prompts = 3, .seed = 0}, hostile);
  ASSERT_EQ(prompts.size(), 3U);  // the only one, again
  EXPECT_EQ(prompts[2].text, "what is the time in Rome?");
  EXPECT_EQ(prompts[2].num_tokens, 7);     // 25 bytes, four a token
  EXPECT_EQ(prompts[2].output_tokens, 7);  // 26

  const Tokenizer bytes = server::testing::make_byte_tokenizer();
  FileOptions fixed = hostile;
  fixed.output_len = 2;
  const Prompt counted =
      read_sharegpt({.num_prompts = 1, .seed = 0, .tokenizer = &bytes}, fixed)[0];
  EXPECT_EQ(counted.output_tokens, 2);
}

TEST_F(Dataset, HostileFilesAreErrorsThatNameTheFile) {
  const std::vector<std::string> bad = {"",
                                        "{",
                                        "{}",
                                        "[]",
                                        "\xff\xfe",
                                        "[{\"conversations\":[{",
                                        std::string(100'000, '['),
                                        std::string(64, '\0')};
  for (const std::string& text : bad) {
    const FileOptions options = file(text);
    try {
      (void)read_sharegpt({.num_prompts = 1}, options);
      ADD_FAILURE() << text.substr(0, 20);
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(path_.string()));
    }
  }
  EXPECT_THROW((void)read_sharegpt({}, {.path = "/nonexistent", .output_len = {}}), Error);
  EXPECT_THROW((void)read_custom({}, {.path = "/", .output_len = {}}), Error);
}

TEST_F(Dataset, CustomLinesKeepTheirOrderAndAreChecked) {
  const std::vector<Prompt> prompts =
      read_custom({.num_prompts = 3}, file("{\"prompt\":\"one\",\"output_tokens\":7}\r\n\n"
                                           "{\"prompt\":\"two\"}"));
  EXPECT_EQ(prompts[0].output_tokens, 7);
  EXPECT_EQ(prompts[1].text, "two");
  EXPECT_EQ(prompts[1].output_tokens, 256);
  EXPECT_EQ(prompts[2].text, "one");
  for (const char* line :
       {"7", "{\"prompt\":1}", "{\"prompt\":\"a\",\"output_tokens\":0}",
        "{\"prompt\":\"a\",\"output_tokens\":-1}", "{\"prompt\":\"a\",\"output_tokens\":1e300}",
        "{\"prompt\":\"a\",\"output_tokens\":18446744073709551615}",
        "{\"prompt\":\"a\",\"output_tokens\":\"9\"}", "{\"prompt\":\"\xff\"}"}) {
    const FileOptions options = file(std::string("{\"prompt\":\"fine\"}\n") + line);
    try {
      (void)read_custom({.num_prompts = 2}, options);
      ADD_FAILURE() << line;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("line 2"));
    }
  }
}

std::vector<std::string> events_of(std::string_view bytes, std::size_t piece) {
  std::vector<std::string> out;
  EventReader reader([&](std::string_view data) { out.emplace_back(data); });
  for (std::size_t at = 0; at < bytes.size(); at += piece) {
    EXPECT_TRUE(reader.add(bytes.substr(at, piece)));
  }
  return out;
}

TEST(EventReader, IsTheSameForEveryWayOfCutting) {
  const std::string_view stream =
      ": comment\n\ndata: one\n\nevent: x\r\ndata:two\r\n\r\ndata: a\rdata: b\r\rid: 7\n\ndata: "
      "cut";
  for (std::size_t piece = 1; piece <= stream.size(); ++piece) {
    EXPECT_THAT(events_of(stream, piece), ElementsAre("one", "two", "a\nb")) << piece;
  }
}

TEST(EventReader, DoesNotGrowWithoutEnd) {
  EventReader reader([](std::string_view) {});
  const std::string piece(1U << 20, 'x');
  bool is_taken = true;
  for (int i = 0; i < 20 && is_taken; ++i) is_taken = reader.add(piece);
  EXPECT_FALSE(is_taken);
}

RequestRecord record_of(const std::vector<std::string>& events) {
  RequestRecord record;
  ReplyReader reader(record);
  double now = 0;
  for (const std::string& event : events) reader.add_event(event, now += 1);
  reader.finish();
  return record;
}

TEST(ReplyReader, TimesWhatHasTextAndTakesTheServersCount) {
  const RequestRecord record = record_of(
      {R"({"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]})",
       R"({"choices":[{"index":0,"delta":{"reasoning":"hm","reasoning_content":"hm"}}],"usage":null})",
       R"({"choices":[{"index":0,"delta":{"content":"yes"}}]})",
       R"({"choices":[{"index":0,"delta":{"tool_calls":[{"function":{"name":"f","arguments":"{}"}}]}}]})",
       R"({"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]})",
       R"({"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":9}})", "[DONE]"});
  EXPECT_TRUE(record.success) << record.error;
  EXPECT_EQ(record.text, "hmyesf{}");
  ASSERT_EQ(record.pieces.size(), 3U);
  EXPECT_EQ(record.first_token(), 2);
  EXPECT_EQ(record.latency, 5);
  EXPECT_EQ(record.prompt_tokens, 5);
  EXPECT_EQ(record.output_tokens, 9);
}

TEST(ReplyReader, WhatIsNoAnswerIsAFailure) {
  const std::string text = R"({"choices":[{"text":"a","finish_reason":null}]})";
  EXPECT_THAT(record_of({}).error, HasSubstr("cut"));
  EXPECT_THAT(record_of({text}).error, HasSubstr("cut"));
  EXPECT_THAT(record_of({"[DONE]"}).error, HasSubstr("no answer"));
  EXPECT_THAT(record_of({text, R"({"error":{"message":"out of luck"}})", "[DONE]"}).error,
              HasSubstr("out of luck"));
  EXPECT_THAT(record_of({text, "{not json", "[DONE]"}).error, HasSubstr("not json"));
  // Members of other types than promised are as good as absent.
  for (const char* odd :
       {"[]", "7", R"({"choices":7})", R"({"choices":[7,null,[]]})",
        R"({"choices":[{"delta":5}],"usage":[1]})",
        R"({"choices":[{"delta":{"content":5,"tool_calls":{"a":1}}}]})",
        R"({"usage":{"prompt_tokens":-1,"completion_tokens":18446744073709551615}})"}) {
    const RequestRecord record = record_of({odd, text});
    EXPECT_FALSE(record.success);
    EXPECT_EQ(record.output_tokens, 0);
  }
  EXPECT_TRUE(record_of({text, "[DONE]"}).success);
}

TEST(Url, IsTakenApart) {
  const Url url = parse_url("http://[::1]:8080/base/");
  EXPECT_EQ(url.host, "::1");
  EXPECT_EQ(url.port, "8080");
  EXPECT_EQ(url.path, "/base");
  EXPECT_EQ(parse_url("http://h").port, "80");
  for (const char* bad : {"h:1", "https://h", "http://", "http://h:", "http://h:x",
                          "http://h:99999", "http://h:1/a b", "http://h\r\nx"}) {
    EXPECT_THROW((void)parse_url(bad), Error) << bad;
  }
}

RunResult two_answers() {
  RunResult result;
  result.model = "m";
  result.seconds = 2;
  result.peak_concurrency = 2;
  RequestRecord counted;
  counted.success = counted.has_usage = true;
  counted.prompt_tokens = 10;
  counted.output_tokens = 5;
  counted.latency = 0.5;
  counted.pieces = {{0.1, 1}, {0.2, 1}, {0.5, 1}};
  RequestRecord uncounted = counted;
  uncounted.has_usage = false;
  uncounted.start = 1;
  RequestRecord failed;
  failed.error = "HTTP 500: no";
  result.records = {counted, uncounted, failed};
  return result;
}

// The layout that scripts of other tools cut apart.
TEST(Report, TableIsLaidOutAsPeopleKnowIt) {
  const std::vector<Prompt> prompts = {{"a", 4, 5}, {"b", 4, 5}, {"c", 4, 5}};
  ReportOptions options;
  options.goodput_ms = {{"ttft", 100.5}, {"tpot", 100.5}};
  RunOptions run;
  run.arrivals.request_rate = 4;
  run.max_concurrency = 2;
  const Json json = result_json(run, two_answers(), prompts, options);
  EXPECT_EQ(result_text(json, options),
            R"(============ Serving Benchmark Result ============
Successful requests:                     2        
Failed requests:                         1        
Maximum request concurrency:             2        
Request rate configured (RPS):           4.00     
Benchmark duration (s):                  2.00     
Total input tokens:                      14       
Total generated tokens:                  8        
Request throughput (req/s):              1.00     
Request goodput (req/s):                 0.50     
Output token throughput (tok/s):         4.00     
Peak output token throughput (tok/s):    5.00     
Peak concurrent requests:                2        
Total token throughput (tok/s):          11.00    
---------------Time to First Token----------------
Mean TTFT (ms):                          100.00   
Median TTFT (ms):                        100.00   
P50 TTFT (ms):                           100.00   
P90 TTFT (ms):                           100.00   
P99 TTFT (ms):                           100.00   
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          150.00   
Median TPOT (ms):                        150.00   
P50 TPOT (ms):                           150.00   
P90 TPOT (ms):                           190.00   
P99 TPOT (ms):                           199.00   
---------------Inter-token Latency----------------
Mean ITL (ms):                           200.00   
Median ITL (ms):                         200.00   
P50 ITL (ms):                            200.00   
P90 ITL (ms):                            300.00   
P99 ITL (ms):                            300.00   
----------------End-to-end Latency----------------
Mean E2EL (ms):                          500.00   
Median E2EL (ms):                        500.00   
P50 E2EL (ms):                           500.00   
P90 E2EL (ms):                           500.00   
P99 E2EL (ms):                           500.00   
==================================================
1 answers came without usage: their tokens are events with text.
failed 1 times: HTTP 500: no
)");
  EXPECT_EQ(json["request_rate"], 4);
  EXPECT_EQ(json["p90_tpot_ms"], 190);
}

}  // namespace
}  // namespace winnow::load
