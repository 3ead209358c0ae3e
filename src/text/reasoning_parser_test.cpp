#include "text/reasoning_parser.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace winnow {
namespace {

using Json = nlohmann::json;

Json vectors() {
  std::ifstream file(WINNOW_SOURCE_DIR "/tests/text/data/reasoning_vectors.json");
  return Json::parse(file);
}

ReasoningParser parser_for(const Json& vector) {
  return ReasoningParser(vector["thinking_mode"] == "enabled" ? ReasoningParser::State::kReasoning
                                                              : ReasoningParser::State::kOpen,
                         {.tools_active = vector["tools_present"].get<bool>()});
}

std::string text_or_empty(const Json& object, const char* key) {
  return object.contains(key) && object[key].is_string() ? object[key].get<std::string>() : "";
}

void expect_piece(const Json& expected, const ReasoningParser::Piece& piece) {
  EXPECT_EQ(piece.reasoning, text_or_empty(expected, "reasoning"));
  EXPECT_EQ(piece.content, text_or_empty(expected, "content"));
}

TEST(ReasoningParser, GivesThePublishedDeltas) {
  for (const Json& vector : vectors()) {
    SCOPED_TRACE(vector["id"]);
    ReasoningParser parser = parser_for(vector);
    for (std::size_t i = 0; i < vector["chunks"].size(); ++i) {
      expect_piece(vector["expect_deltas"][i], parser.add(vector["chunks"][i].get<std::string>()));
    }
    expect_piece(vector["expect_finish_delta"], parser.finish());
  }
}

// Case H1: the same split for every piece size, no byte lost or doubled.
TEST(ReasoningParser, SplitsTheSameForEveryWayOfCutting) {
  for (const Json& vector : vectors()) {
    std::string whole;
    for (const Json& chunk : vector["chunks"]) whole += chunk.get<std::string>();
    for (std::size_t first = 0; first <= whole.size(); ++first) {
      for (std::size_t size : {std::size_t{1}, std::size_t{2}, std::size_t{3}, whole.size() + 1}) {
        SCOPED_TRACE(vector["id"].get<std::string>() + " cut at " + std::to_string(first));
        ReasoningParser parser = parser_for(vector);
        ReasoningParser::Piece all = parser.add(whole.substr(0, first));
        for (std::size_t at = first; at < whole.size(); at += size) {
          const ReasoningParser::Piece piece = parser.add(whole.substr(at, size));
          all.reasoning += piece.reasoning;
          all.content += piece.content;
        }
        const ReasoningParser::Piece rest = parser.finish();
        all.reasoning += rest.reasoning;
        all.content += rest.content;
        expect_piece(vector["expect_final"], all);
      }
    }
  }
}

// A constrained answer may hold a marker's text: only a marker at its very beginning is one.
TEST(ReasoningParser, TakesLaterMarkersForTheAnswerWhereItThinksFirstOnly) {
  const struct {
    std::string text, reasoning, content;
  } kCases[] = {
      {"{\"a\":\"<mm:think>x</mm:think>\"}", "", "{\"a\":\"<mm:think>x</mm:think>\"}"},
      {"</mm:think>{}<mm:think>", "", "{}<mm:think>"},
      {"<mm:think>why</mm:think>{}", "why", "{}"},
      {"<mm:thin", "", "<mm:thin"},
      {"</mm:think", "", "</mm:think"},
      {"", "", ""},
  };
  for (const auto& row : kCases) {
    for (std::size_t size = 1; size <= row.text.size() + 1; ++size) {
      ReasoningParser parser(ReasoningParser::State::kOpen, {.thinks_first_only = true});
      ReasoningParser::Piece all;
      const auto append = [&all](const ReasoningParser::Piece& piece) {
        all.reasoning += piece.reasoning;
        all.content += piece.content;
      };
      for (std::size_t at = 0; at < row.text.size(); at += size) {
        append(parser.add(row.text.substr(at, size)));
      }
      append(parser.finish());
      EXPECT_EQ(all.reasoning, row.reasoning) << row.text << " by " << size;
      EXPECT_EQ(all.content, row.content) << row.text << " by " << size;
    }
  }
}

}  // namespace
}  // namespace winnow
