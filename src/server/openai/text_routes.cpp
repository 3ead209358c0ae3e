// /tokenize, /detokenize and /v1/models. Source: spec/serving.md 2.7.
#include <fmt/format.h>

#include <ctime>

#include "base/error.h"
#include "server/openai/chat_request.h"
#include "server/openai/logprobs_json.h"
#include "server/openai/prepare.h"
#include "server/openai/reply_format.h"
#include "server/openai/routes.h"
#include "text/tokenizer.h"

namespace winnow::server {
namespace {

std::string utc_time(std::int64_t seconds) {
  const auto time = static_cast<std::time_t>(seconds);
  std::tm parts{};
  gmtime_r(&time, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", parts.tm_year + 1900, parts.tm_mon + 1,
                     parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec);
}

/// `adapter` null: of the model itself, under one of its names.
Json model_card(const std::string& name, const ServingModel& model, const ServedAdapter* adapter) {
  const std::int64_t created = adapter != nullptr ? adapter->created : model.created;
  Json permission;
  permission["id"] = "modelperm-" + name;
  permission["object"] = "model_permission";
  permission["created"] = created;
  permission["allow_create_engine"] = false;
  permission["allow_sampling"] = true;
  permission["allow_logprobs"] = true;
  permission["allow_search_indices"] = false;
  permission["allow_view"] = true;
  permission["allow_fine_tuning"] = false;
  permission["organization"] = "*";
  permission["group"] = nullptr;
  permission["is_blocking"] = false;
  Json card;
  card["id"] = name;
  card["object"] = "model";
  card["created"] = created;
  card["owned_by"] = "winnow";
  card["root"] = model.root;
  card["parent"] = nullptr;
  if (adapter != nullptr) {
    card["root"] = adapter->path;
    card["parent"] = adapter->base_model.empty() ? model.names.front() : adapter->base_model;
  }
  card["max_model_len"] = model.max_model_len;
  card["permission"] = Json::array({std::move(permission)});
  // What Anthropic's clients read.
  card["type"] = "model";
  card["display_name"] = name;
  card["created_at"] = utc_time(created);
  return card;
}

HttpResponse json_response(const Json& value) { return {.body = dump_json(value)}; }

}  // namespace

HttpReply tokenize(const HttpRequest& request, const RouteContext& context) {
  const Json body = parse_body(request.body);
  Fields fields(body);
  check_model_name(fields.string("model").value_or(""), context.model);
  const bool want_strings = fields.boolean("return_token_strs").value_or(false);
  std::vector<TokenId> tokens;
  if (fields.find("messages") != nullptr) {
    ChatRequest chat;
    read_chat_prompt(fields, context.policy, chat);
    tokens = prepare_chat_prompt(chat, context.model, context.policy).tokens;
  } else {
    const auto prompt = fields.string("prompt");
    if (!prompt) fields.fail("prompt", "give prompt or messages");
    const bool add_special = fields.boolean("add_special_tokens").value_or(true);
    tokens = context.model.tokenizer->encode(*prompt, {.add_special_tokens = add_special});
  }
  warn_unknown_fields(fields, "/tokenize");
  Json out;
  out["count"] = tokens.size();
  out["max_model_len"] = context.model.max_model_len;
  out["tokens"] = tokens;
  out["token_strs"] = nullptr;
  if (want_strings) {
    out["token_strs"] = Json::array();
    for (const TokenId token : tokens) {
      out["token_strs"].push_back(token_text(*context.model.tokenizer, token, false));
    }
  }
  return json_response(out);
}

HttpReply detokenize(const HttpRequest& request, const RouteContext& context) {
  const Json body = parse_body(request.body);
  Fields fields(body);
  check_model_name(fields.string("model").value_or(""), context.model);
  const auto ids = fields.integers("tokens");
  if (!ids) fields.fail("tokens", "missing");
  std::vector<TokenId> tokens;
  for (const std::int64_t id : *ids) {
    if (id < 0 || id >= context.model.vocab_size) {
      fields.fail("tokens",
                  fmt::format("{} is outside the vocabulary of {}", id, context.model.vocab_size));
    }
    tokens.push_back(static_cast<TokenId>(id));
  }
  warn_unknown_fields(fields, "/detokenize");
  return json_response(Json{{"prompt", context.model.tokenizer->decode(tokens, false)}});
}

HttpReply list_models(const RouteContext& context) {
  Json out;
  out["object"] = "list";
  out["data"] = Json::array();
  for (const std::string& name : context.model.names) {
    out["data"].push_back(model_card(name, context.model, nullptr));
  }
  if (context.model.adapters != nullptr) {
    for (const auto& adapter : context.model.adapters->list()) {
      out["data"].push_back(model_card(adapter->name, context.model, adapter.get()));
    }
  }
  out["has_more"] = false;
  const Json first = out["data"].front()["id"];
  const Json last = out["data"].back()["id"];
  out["first_id"] = first;
  out["last_id"] = last;
  return json_response(out);
}

HttpReply get_model(const std::string& name, const RouteContext& context) {
  if (name.empty()) throw Error(ErrorCode::kNotFound, "no model name in the path");
  const auto adapter = find_model(name, context.model);
  return json_response(model_card(name, context.model, adapter.get()));
}

}  // namespace winnow::server
