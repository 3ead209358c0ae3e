// Reads JSON lines on standard input, writes one JSON line for each: what the pytest files beside
// it compare with the public `tokenizers` and `jinja2` packages.
//   text_tool encode TOKENIZER   {"text"|"hex", "add_special_tokens", "match_added_tokens"} or
//                                {"segments": [[text, is_from_template], …]}
//   text_tool decode TOKENIZER   {"ids", "skip_special_tokens"}
//   text_tool render NAME        {"template", "context"}; NAME stands for the template in messages
#include <fmt/format.h>

#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "text/chat_template.h"
#include "text/detokenizer.h"
#include "text/jinja/json.h"
#include "text/tokenizer.h"

namespace {

using Json = nlohmann::ordered_json;

std::string input_text(const Json& request) {
  if (request.contains("text")) return request.at("text").get<std::string>();
  const std::string hex = request.at("hex").get<std::string>();
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

Json encode(const winnow::Tokenizer& tokenizer, const Json& request) {
  winnow::EncodeOptions options;
  options.add_special_tokens = request.value("add_special_tokens", false);
  options.match_added_tokens = request.value("match_added_tokens", true);
  if (request.contains("segments")) {
    std::vector<winnow::TextSegment> segments;
    for (const Json& segment : request["segments"]) {
      segments.push_back({segment.at(0).get<std::string>(), segment.at(1).get<bool>()});
    }
    return {{"ids", tokenizer.encode(segments, options)}};
  }
  const std::string text = input_text(request);
  const winnow::Encoding encoding = tokenizer.encode_with_offsets(text, options);
  Json offsets = Json::array();
  for (const winnow::TokenOffsets& range : encoding.offsets) {
    offsets.push_back({range.begin, range.end});
  }
  const bool is_same = tokenizer.encode(text, options) == encoding.ids;
  return {{"ids", encoding.ids}, {"offsets", offsets}, {"same_without_offsets", is_same}};
}

Json decode(const winnow::Tokenizer& tokenizer, const Json& request) {
  const auto ids = request.at("ids").get<std::vector<winnow::TokenId>>();
  const bool skip = request.value("skip_special_tokens", true);
  winnow::Detokenizer detokenizer(tokenizer, {.skip_special_tokens = skip});
  std::string streamed;
  for (const winnow::TokenId id : ids) streamed += detokenizer.add(id);
  streamed += detokenizer.finish();
  return {{"text", tokenizer.decode(ids, skip)}, {"streamed", streamed}};
}

// Read by the template engine's own JSON reader, which keeps the digits of large integers.
Json render(const std::string& name, const std::string& line) {
  const winnow::jinja::Value request = winnow::jinja::parse_json(line);
  const winnow::ChatTemplate chat_template(request.dict()->find("template")->text()->bytes(), name);
  winnow::RenderOptions options;
  options.now = std::chrono::system_clock::from_time_t(1'700'000'000);
  Json segments = Json::array();
  std::string text;
  for (const winnow::TextSegment& segment :
       chat_template.render_segments(*request.dict()->find("context"), options)) {
    segments.push_back({segment.text, segment.is_from_template});
    text += segment.text;
  }
  return {{"text", text}, {"segments", segments}};
}

template <typename Answer>
int answer_lines(Answer answer) {
  std::string line;
  while (std::getline(std::cin, line)) {
    Json reply;
    try {
      reply = answer(line);
    } catch (const winnow::Error& error) {
      reply = {{"error", error.text()}};
    }
    std::cout << reply.dump() << '\n';
  }
  return 0;
}

int run(const std::string& verb, const char* path) {
  if (verb == "encode" || verb == "decode") {
    const winnow::Tokenizer tokenizer = winnow::Tokenizer::from_file(path);
    return answer_lines([&](const std::string& line) {
      const Json request = Json::parse(line);
      return verb == "encode" ? encode(tokenizer, request) : decode(tokenizer, request);
    });
  }
  if (verb == "render") {
    return answer_lines([&](const std::string& line) { return render(path, line); });
  }
  std::cerr << "usage: text_tool encode|decode TOKENIZER, text_tool render NAME\n";
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  std::ios::sync_with_stdio(false);
  try {
    return run(argc == 3 ? argv[1] : "", argc == 3 ? argv[2] : "");
  } catch (const winnow::Error& error) {
    std::cerr << error.text() << '\n';
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
  }
  return 1;
}
