// An agent sends its whole history with every turn. What was encoded before comes from the token
// cache, with the ids of a server that has seen nothing, whatever tools, thinking switches and
// system messages do to the prompt around it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "server/metrics.h"
#include "server/openai/prepare.h"
#include "server/template_renderer.h"
#include "server/testing/test_server.h"
#include "text/token_cache.h"
#include "text/tokenizer.h"

namespace winnow::server {
namespace {

using ::testing::Gt;
using ::testing::HasSubstr;
using Random = std::mt19937_64;

const std::filesystem::path kSource = WINNOW_SOURCE_DIR;

std::size_t below(Random& random, std::size_t n) { return random() % n; }

std::string random_text(Random& random, std::size_t num_words) {
  static const std::vector<std::string> kWords = {
      "the",  " ",          "test",         "\n",          "fails",         " 12345",
      "[e~[", "]~b]user\n", "<mm:think>",   "</mm:think>", "]<]minimax[>[", "<tool_call>",
      "\t",   "  ",         "\u4F60\u597D", "e\u0301",     "{\"a\": 1}",    "'s",
      "// ",  "return x;",  "\r\n",         "]~b",         "[e~",           "\u00A0"};
  std::string text;
  for (std::size_t i = 0; i < num_words; ++i) {
    text += kWords[below(random, kWords.size())];
    if (below(random, 2) == 0) text += ' ';
  }
  return text;
}

std::size_t random_length(Random& random) {
  return below(random, 5) == 0 ? 2500 : 1 + below(random, 40);  // 2,500 words are several pieces
}

void add_turn(Random& random, Json& messages) {
  const std::string id = "call_" + std::to_string(messages.size());
  messages.push_back({{"role", "user"}, {"content", random_text(random, random_length(random))}});
  Json answer = {{"role", "assistant"}, {"content", random_text(random, random_length(random))}};
  if (below(random, 2) == 0) answer["reasoning_content"] = random_text(random, 30);
  const bool calls = below(random, 2) == 0;
  if (calls) {
    const Json arguments = {{"path", random_text(random, 3)}, {"line", below(random, 500)}};
    answer["tool_calls"] = {{{"id", id},
                             {"type", "function"},
                             {"function", {{"name", "read"}, {"arguments", arguments.dump()}}}}};
  }
  messages.push_back(answer);
  if (!calls) return;
  messages.push_back({{"role", "tool"},
                      {"tool_call_id", id},
                      {"content", random_text(random, random_length(random))}});
}

Json random_body(Random& random, const Json& history) {
  Json body = {{"messages", history}};
  if (below(random, 3) == 0) {
    body["messages"].insert(body["messages"].begin(),
                            Json{{"role", "system"}, {"content", random_text(random, 300)}});
  }
  body["messages"].push_back({{"role", "user"}, {"content", random_text(random, 20)}});
  if (below(random, 2) == 0) {
    body["tools"] = {{{"type", "function"},
                      {"function",
                       {{"name", "read"},
                        {"description", random_text(random, 50)},
                        {"parameters", {{"type", "object"}}}}}}};
  }
  if (below(random, 2) == 0) {
    body["chat_template_kwargs"] = {
        {"thinking_mode", below(random, 2) == 0 ? "enabled" : "disabled"}};
  }
  if (below(random, 4) == 0) body["add_generation_prompt"] = false;
  return body;
}

/// A word of one message is changed, a message loses its end, or the last turns are taken back.
void edit(Random& random, Json& history) {
  if (history.empty()) return;
  std::string& text = history[below(random, history.size())]["content"].get_ref<std::string&>();
  switch (below(random, 4)) {
    case 0:
      text.insert(below(random, text.size() + 1), "edited");
      break;
    case 1:
      text.resize(text.size() / 2);  // in the middle of a character, at times
      break;
    case 2:
      while (history.size() > 3 && history.back()["role"] != "user")
        history.erase(history.size() - 1);
      if (history.size() > 3) history.erase(history.size() - 1);
      break;
    default:
      break;
  }
}

TEST(LongConversation, CachedIdsAreThoseOfAColdServer) {
  const Tokenizer tokenizer = Tokenizer::from_file(kSource / "models/winnow-tiny");
  const TemplateRenderer renderer(ChatTemplate::from_folder(kSource / "models/winnow-tiny"));
  TokenCache large(64 << 20), small(60'000);
  ServingModel model;
  model.tokenizer = &tokenizer;
  model.chat_template = &renderer;
  Random random(21);
  for (const bool is_plain : {true, false}) {
    const RequestPolicy policy{.encode_request_text_as_plain = is_plain};
    for (int conversation = 0; conversation < 5; ++conversation) {
      Json history = Json::array();
      for (int turn = 0; turn < 6; ++turn) {
        add_turn(random, history);
        if (below(random, 3) == 0) edit(random, history);
        const ChatRequest request =
            read_chat_request(random_body(random, history), policy, model.defaults);
        model.token_cache = nullptr;
        model.num_encode_threads = 1;
        const PreparedPrompt cold = prepare_chat_prompt(request, model, policy);
        for (TokenCache* cache : {&large, &small}) {
          model.token_cache = cache;
          model.num_encode_threads = 2;
          const PreparedPrompt warm = prepare_chat_prompt(request, model, policy);
          ASSERT_EQ(warm.tokens, cold.tokens);
          ASSERT_EQ(warm.text, cold.text);
        }
      }
    }
  }
  const TokenCacheStats stats = large.stats();
  EXPECT_GT(stats.hit_bytes, stats.query_bytes / 2);
  EXPECT_LE(small.stats().used_bytes, 60'000);
}

TEST(LongConversation, OnlyTheNewMessageIsEncoded) {
  const Tokenizer tokenizer = Tokenizer::from_file(kSource / "models/winnow-tiny");
  const TemplateRenderer renderer(ChatTemplate::from_folder(kSource / "models/winnow-tiny"));
  TokenCache cache(64 << 20);
  ServingModel model;
  model.tokenizer = &tokenizer;
  model.chat_template = &renderer;
  model.token_cache = &cache;
  Random random(22);
  Json history = Json::array();
  for (int turn = 0; turn < 40; ++turn) add_turn(random, history);
  const auto send = [&](const std::string& last) {
    Json body = {{"messages", history}};
    body["messages"].push_back({{"role", "user"}, {"content", last}});
    return prepare_chat_prompt(read_chat_request(body, {}, model.defaults), model, {});
  };
  send("first");
  const TokenCacheStats before = cache.stats();
  const std::string last = random_text(random, 100);
  send(last);
  const TokenCacheStats after = cache.stats();
  const std::int64_t new_bytes =
      (after.query_bytes - before.query_bytes) - (after.hit_bytes - before.hit_bytes);
  EXPECT_LE(new_bytes, static_cast<std::int64_t>(last.size()) + 64);
  EXPECT_THAT(after.hit_bytes - before.hit_bytes, Gt(40'000));
}

TEST(LongConversation, MetricsTellWhatWasKnown) {
  ServerMetrics metrics({.model_name = "m", .max_model_len = 4096, .cache_config = {}});
  TokenCacheStats stats{.query_bytes = 1000, .hit_bytes = 0, .used_bytes = 640, .max_bytes = 5000};
  metrics.text({}, stats);
  stats.query_bytes = 3000;
  stats.hit_bytes = 900;
  const std::string text = metrics.text({}, stats);
  const std::string labels = "{engine=\"0\",model_name=\"m\"} ";
  EXPECT_THAT(text, HasSubstr("winnow:token_cache_query_bytes_total" + labels + "3000"));
  EXPECT_THAT(text, HasSubstr("winnow:token_cache_hit_bytes_total" + labels + "900"));
  EXPECT_THAT(text, HasSubstr("winnow:token_cache_bytes" + labels + "640"));
}

/// The value of a metric, -1 where it is missing.
double metric(testing::TestServer& server, const std::string& name) {
  const std::string text = server.get("/metrics").body;
  const std::size_t at = text.find("\n" + name + "{");
  return at == std::string::npos ? -1 : std::stod(text.substr(text.find("} ", at) + 2));
}

TEST(LongConversation, AllRoutesShareWhatIsKnown) {
  testing::TestServer server;
  const std::string content(300, 'a');
  const Json chat = {{"model", "test-model"},
                     {"messages", {{{"role", "user"}, {"content", content}}}},
                     {"max_tokens", 1}};
  const char* const hits = "winnow:token_cache_hit_bytes_total";
  ASSERT_EQ(server.post(testing::kChat, chat.dump()).status, 200);
  const std::vector<TokenId> cold = server.engine().last_request().prompt;
  EXPECT_EQ(metric(server, hits), 0);
  ASSERT_EQ(server.post(testing::kChat, chat.dump()).status, 200);
  EXPECT_EQ(server.engine().last_request().prompt, cold);
  const double after_chat = metric(server, hits);
  EXPECT_GE(after_chat, 300);
  ASSERT_EQ(server.post("/v1/messages", chat.dump()).status, 200);
  EXPECT_EQ(server.engine().last_request().prompt, cold);
  EXPECT_GT(metric(server, hits), after_chat);
  EXPECT_GT(metric(server, "winnow:token_cache_bytes"), 300);
  Json salted = chat;
  salted["cache_salt"] = "of one caller";
  const double before = metric(server, hits);
  ASSERT_EQ(server.post(testing::kChat, salted.dump()).status, 200);
  EXPECT_EQ(metric(server, hits), before);
}

}  // namespace
}  // namespace winnow::server
