// /v1/responses and what is below it.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "server/api_keys.h"
#include "server/error_body.h"
#include "server/openai/prepare.h"
#include "server/responses/background_replies.h"
#include "server/responses/responses_format.h"
#include "server/responses/responses_request.h"
#include "server/responses/routes.h"

namespace winnow::server {
namespace {

constexpr std::string_view kStop = "/cancel";
constexpr std::string_view kInputItems = "/input_items";
constexpr int kReserveShare = 8;  // of the context, for the answer to a truncated conversation

/// 0.9, where the double of 0.9F has nine digits more.
double shortest(float value) { return std::stod(fmt::format("{}", value)); }

Json first_members(std::string id, const GenerationPlan& plan, const RouteContext& context) {
  const ReplyHeader header = make_header(plan.fields, context.model, context.policy, std::move(id));
  Json out;
  out["id"] = header.id;
  out["object"] = "response";
  out["created_at"] = header.created;
  out["status"] = nullptr;
  out["model"] = header.model;
  out["temperature"] = shortest(plan.fields.sampling.temperature);
  out["top_p"] = shortest(plan.fields.sampling.top_p);
  out["service_tier"] = "default";
  out["max_tool_calls"] = nullptr;
  return out;
}

/// truncation "auto": leaves out the oldest turns when the conversation has outgrown the context.
void truncate(ChatRequest& chat, const ResponsesRequest& asked, const RouteContext& context) {
  const std::int32_t length = context.model.max_model_len;
  const std::int32_t reserve =
      std::clamp(asked.max_output_tokens.value_or(length / kReserveShare), 1, length / 2);
  const auto fits = [&](const ChatRequest& candidate) {
    const auto num_tokens =
        prepare_chat_prompt(candidate, context.model, context.policy).tokens.size();
    return num_tokens + static_cast<std::size_t>(reserve) <= static_cast<std::size_t>(length);
  };
  if (!fits(chat)) (void)drop_oldest_turns(chat, fits);  // if not even so: refused for its length
}

ResponseStore::Record find_record(const std::string& id, const HttpRequest& request,
                                  const RouteContext& context) {
  std::optional<ResponseStore::Record> found = context.responses.find(id, caller_of(request));
  if (!found) {
    throw Error(ErrorCode::kNotFound, fmt::format("there is no response '{}'", id.substr(0, 128)),
                "it may have been pushed out by newer ones, or was made with store: false", "id");
  }
  return std::move(*found);
}

HttpReply input_items(const ResponseStore::Record& record) {
  Json out{{"object", "list"}, {"data", Json::array()}};
  if (record.turn != nullptr) out["data"] = record.turn->input_items();
  for (std::size_t i = 0; i < out["data"].size(); ++i) {
    if (!out["data"][i].contains("id")) out["data"][i]["id"] = fmt::format("item_{}", i);
  }
  const Json& data = out["data"];
  const Json first_id = data.empty() ? Json() : data.front()["id"];
  const Json last_id = data.empty() ? Json() : data.back()["id"];
  out["first_id"] = first_id;
  out["last_id"] = last_id;
  out["has_more"] = false;
  return HttpResponse{.body = dump_json(out)};
}

HttpReply cancel(const ResponseStore::Record& record) {
  if (record.stop) record.stop();
  Json response = Json::parse(record.body);
  // One that has ended stays as it ended.
  if (record.stop) response["status"] = "cancelled";
  return HttpResponse{.body = dump_json(response)};
}

}  // namespace

HttpReply create_response(const HttpRequest& request, const RouteContext& context) {
  const std::string caller = caller_of(request);
  ResponsesRequest asked =
      read_responses_request(parse_body(request.body), context.responses, caller);
  ChatRequest chat = read_translated_chat(asked.chat, kResponsesFieldNames, context);
  check_model_name(chat.generation.model, context.model);
  if (asked.may_truncate) truncate(chat, asked, context);
  chat.generation.default_max_tokens = asked.max_output_tokens;
  GenerationPlan plan = plan_chat(std::move(chat), request, context);

  const std::string id = "resp_" + random_hex();  // never the client's: two could name the same
  Json response = first_members(id, plan, context);
  response.update(asked.echo);
  const char* status = asked.is_background ? "queued" : "in_progress";
  const std::string running = dump_json(running_response(response, status));
  ResponseStore& store = context.responses;
  ResponsesFormatOptions format{.response = std::move(response),
                                .tokenizer = context.model.tokenizer,
                                .want_logprobs = plan.fields.sampling.logprobs.has_value(),
                                .seals_reasoning = asked.seals_reasoning,
                                .on_end = nullptr,
                                .on_dropped = nullptr};
  if (asked.is_stored) {
    format.on_end = [&store, id, before = asked.before,
                     input = dump_json(asked.input_items)](const Json& ended) {
      const bool is_whole = ended["status"] == "completed" || ended["status"] == "incomplete";
      store.finish(id, dump_json(ended),
                   is_whole ? std::make_shared<ConversationTurn>(
                                  before, input, dump_json(ended["output"]), store.turn_bytes())
                            : nullptr);
    };
    format.on_dropped = [&store, id] { store.forget(id); };
  }
  plan.format = make_responses_format(std::move(format));
  const std::shared_ptr<PendingReply> reply = start_generation(std::move(plan), context.reply);
  if (asked.is_stored) {
    store.begin({.id = id,
                 .caller = caller,
                 .body = running,
                 .turn = nullptr,
                 .stop = [weak = std::weak_ptr(reply)] {
                   if (const auto alive = weak.lock()) alive->end_early();
                 }});
  }
  if (!asked.is_background) return reply;
  context.background.add(reply);
  return HttpResponse{.body = running};
}

HttpReply stored_response(const HttpRequest& request, const std::string& rest,
                          const RouteContext& context) {
  const std::string id = rest.substr(0, rest.find('/'));
  const std::string_view action = std::string_view(rest).substr(id.size());
  const bool is_get = request.method == "GET" || request.method == "HEAD";
  if (action.empty() && request.method == "DELETE") {
    const ResponseStore::Record record = find_record(id, request, context);
    if (record.stop) record.stop();
    if (!context.responses.erase(id, caller_of(request))) {
      return error_response(404, fmt::format("there is no response '{}'", id.substr(0, 128)));
    }
    return HttpResponse{.body =
                            dump_json(Json{{"id", id}, {"object", "response"}, {"deleted", true}})};
  }
  if (action.empty() && is_get) {
    if (query_parameter(request.query, "stream") == "true") {
      throw Error(ErrorCode::kInvalidArgument,
                  "stream: a stored response is given whole; ask for it until it has completed", {},
                  "stream");
    }
    return HttpResponse{.body = find_record(id, request, context).body};
  }
  if (action == kInputItems && is_get) return input_items(find_record(id, request, context));
  if (action == kStop && request.method == "POST") {
    return cancel(find_record(id, request, context));
  }
  return error_response(
      404, fmt::format("no route {} /v1/responses/{}", request.method, rest.substr(0, 128)));
}

}  // namespace winnow::server
