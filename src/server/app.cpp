#include "server/app.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "server/adapters/routes.h"
#include "server/anthropic/error_form.h"
#include "server/anthropic/routes.h"
#include "server/error_body.h"
#include "server/openai/prepare.h"
#include "server/openai/routes.h"
#include "server/page/page.h"
#include "server/responses/routes.h"

namespace winnow::server {
namespace {

constexpr std::string_view kModelPrefix = "/v1/models/";
constexpr std::string_view kMetricsType = "text/plain; version=0.0.4; charset=utf-8";

/// Why a route that clients of other servers know is not here; empty: an unknown path.
std::string_view absent_route(std::string_view path) {
  constexpr std::string_view kTextOnly = "not served; this model generates text only";
  for (const std::string_view known :
       {"/v1/embeddings", "/v2/embed", "/v1/rerank", "/v2/rerank", "/rerank", "/score", "/v1/score",
        "/pooling", "/classify", "/v1/classify", "/v1/moderations", "/v1/videos"}) {
    if (path == known) return kTextOnly;
  }
  for (const std::string_view group : {"/v1/audio/", "/v1/images/", "/v1/realtime"}) {
    if (path.starts_with(group)) return kTextOnly;
  }
  for (const std::string_view group :
       {"/v1/files", "/v1/batches", "/v1/assistants", "/v1/threads", "/v1/fine_tuning",
        "/v1/vector_stores", "/v1/conversations", "/v1/uploads"}) {
    if (path.starts_with(group)) return "not served; use /v1/chat/completions or /v1/responses";
  }
  if (path == "/completion" || path == "/completions") return "use POST /v1/completions";
  if (path == "/chat/completions" || path == "/api/chat" || path == "/api/generate") {
    return "use POST /v1/chat/completions";
  }
  if (path == "/responses" || path == "/messages") return "the route is below /v1";
  if (path.starts_with("/v1/messages/batches")) return "batches are not served";
  if (path == "/v1/load_lora_adapter" || path == "/v1/unload_lora_adapter") {
    return "adapters are off; start the server with --enable-lora";
  }
  return {};
}

/// An error as the clients of that route read it.
HttpResponse in_form_of(std::string_view path, HttpResponse error) {
  return is_anthropic_route(path) ? anthropic_error(error) : error;
}

/// For log lines: what a client sends may hold line breaks and terminal codes.
std::string printable(std::string_view text, std::size_t max_size) {
  std::string out(text.substr(0, max_size));
  for (char& c : out) {
    if (c < ' ' || c > '~') c = '?';
  }
  return out;
}

bool is_json_type(std::string_view type) {
  const std::string_view essence = type.substr(0, type.find(';'));
  std::string lower;
  for (const char c : essence) {
    if (c != ' ') lower.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
  }
  return lower == "application/json" ||
         (lower.starts_with("application/") && lower.ends_with("+json"));
}

}  // namespace

struct App::Route {
  std::string_view method;  // what it takes; HEAD goes with GET
  std::string_view path;
  enum Kind {
    kPage,
    kPing,
    kLive,
    kVersion,
    kLoad,
    kMetrics,
    kModels,
    kModel,
    kTokenize,
    kDetokenize,
    kChat,
    kCompletions,
    kMessages,
    kCountTokens,
    kResponses,
    kResponse,
    kLoadAdapter,
    kUnloadAdapter
  } kind;
  bool needs_model = false;
  bool is_inference = false;  // refused while draining
  bool is_prefix = false;     // an id or a name follows

  bool changes_adapters() const { return kind == kLoadAdapter || kind == kUnloadAdapter; }

  bool takes(std::string_view asked) const {
    const std::string_view wanted = asked == "HEAD" ? "GET" : asked;
    return !wanted.empty() && wanted.find('|') == std::string_view::npos &&
           fmt::format("|{}|", method).find(fmt::format("|{}|", wanted)) != std::string::npos;
  }
  /// For the header Allow.
  std::string allowed() const {
    std::string out;
    for (const char* one : {"GET", "HEAD", "POST", "DELETE"}) {
      if (takes(one)) out += out.empty() ? one : fmt::format(", {}", one);
    }
    return out;
  }
};

const std::vector<App::Route>& App::routes() {
  static const std::vector<Route> table = {
      {"GET", "/", Route::kPage},
      {"GET", "/health", Route::kPing},
      {"GET", "/health/live", Route::kLive},
      {"GET|POST", "/ping", Route::kPing},
      {"GET", "/version", Route::kVersion},
      {"GET", "/load", Route::kLoad},
      {"GET", "/metrics", Route::kMetrics},
      {"GET", "/v1/models", Route::kModels, true},
      {"GET", "/v1/models/", Route::kModel, true, false, true},
      {"POST", "/tokenize", Route::kTokenize, true},
      {"POST", "/v1/tokenize", Route::kTokenize, true},
      {"POST", "/detokenize", Route::kDetokenize, true},
      {"POST", "/v1/detokenize", Route::kDetokenize, true},
      {"POST", "/v1/chat/completions", Route::kChat, true, true},
      {"POST", "/v1/completions", Route::kCompletions, true, true},
      {"POST", "/v1/messages", Route::kMessages, true, true},
      {"POST", "/v1/messages/count_tokens", Route::kCountTokens, true},
      {"POST", "/v1/responses", Route::kResponses, true, true},
      {"GET|POST|DELETE", "/v1/responses/", Route::kResponse, true, false, true},
      {"POST", "/v1/load_lora_adapter", Route::kLoadAdapter, true, true},
      {"POST", "/v1/unload_lora_adapter", Route::kUnloadAdapter, true, true},
  };
  return table;
}

App::App(AppOptions options)
    : options_(std::move(options)), cors_(options_.cors), responses_(options_.response_store) {}
App::~App() = default;

void App::set_ready(const ServingModel* model, ServerMetrics* metrics) {
  model_ = model;
  metrics_ = metrics;
  state_ = ServerState::kReady;
}
void App::start_draining() { state_ = ServerState::kDraining; }
void App::set_broken() { state_ = ServerState::kBroken; }

ServerState App::state() const {
  const ServerState state = state_;
  const ServingModel* model = model_;
  if (state == ServerState::kReady && model != nullptr && model->engine->stats().is_broken) {
    return ServerState::kBroken;
  }
  return state;
}

std::string App::local_path(const std::string& path) const {
  const std::string& prefix = options_.root_path;
  if (!prefix.empty() && path.starts_with(prefix) &&
      (path.size() == prefix.size() || path[prefix.size()] == '/')) {
    return path.size() == prefix.size() ? "/" : path.substr(prefix.size());
  }
  return path;
}

const App::Route* App::find_route(std::string_view path) const {
  for (const Route& route : routes()) {
    if (route.kind == Route::kPage && !options_.serve_page) continue;
    if (route.changes_adapters() && !options_.has_adapters) continue;
    if (route.is_prefix ? path.starts_with(route.path) && path.size() > route.path.size()
                        : path == route.path) {
      return &route;
    }
  }
  return nullptr;
}

std::optional<HttpResponse> App::check_head(const HttpRequest& head) {
  const std::string path = local_path(head.path);
  std::optional<HttpResponse> answer = answer_to_head(head, path);
  if (answer && answer->status >= 400) answer = in_form_of(path, std::move(*answer));
  return answer;
}

std::optional<HttpResponse> App::answer_to_head(const HttpRequest& head,
                                                const std::string& path) const {
  if (cors_.is_preflight(head) && !options_.cors.allowed_origins.empty()) {
    return cors_.preflight(head);
  }
  const Route* route = find_route(path);
  if (head.method == "OPTIONS" && route != nullptr) {
    HttpResponse response{.status = 204, .content_type = "", .body = ""};
    response.headers.emplace_back("Allow", fmt::format("{}, OPTIONS", route->method));
    return response;
  }
  HttpRequest local;
  local.path = path;
  local.headers = head.headers;
  if (ApiKeys::guards(path) && !options_.keys.accepts(local)) {
    HttpResponse response = error_response(401, "the API key is missing or wrong");
    response.headers.emplace_back("WWW-Authenticate", "Bearer");
    return response;
  }
  if (route == nullptr) {
    const std::string_view why = absent_route(path);
    return error_response(404, why.empty()
                                   ? fmt::format("no route {} {}", head.method, path.substr(0, 128))
                                   : fmt::format("{}: {}", path.substr(0, 128), why));
  }
  if (route->changes_adapters() && !options_.may_change_adapters) {
    return error_response(403,
                          "adapters are loaded and unloaded only with an API key set, or on a "
                          "loopback address or a Unix socket");
  }
  if (!route->takes(head.method)) {
    HttpResponse response = error_response(
        405, fmt::format("{} does not take {}; use {}", path, head.method, route->method));
    response.headers.emplace_back("Allow", route->allowed());
    return response;
  }
  // A cancellation has no body and so no type; the id in its path is not to be guessed.
  if (head.method == "POST" && !route->takes("GET") && !is_json_type(head.header("content-type"))) {
    return error_response(415, fmt::format("Content-Type is '{}'; send application/json",
                                           head.header("content-type").substr(0, 64)));
  }
  const ServerState now = state();
  const bool must_wait = route->needs_model && now == ServerState::kLoading;
  const bool is_refused = route->is_inference && now != ServerState::kReady;
  if (must_wait || is_refused) return state_refusal(*route);
  return std::nullopt;
}

HttpResponse App::state_refusal(const Route&) const {
  switch (state()) {
    case ServerState::kLoading:
      return error_response(503,
                            fmt::format("the model is loading ({} %)", loading_percent_.load()));
    case ServerState::kDraining:
      return error_response(503, "the server is shutting down");
    case ServerState::kBroken:
    case ServerState::kReady:
      break;
  }
  return error_response(503, "the engine has failed; the server must be restarted");
}

bool App::is_quick(const HttpRequest& request) { return request.method != "POST"; }

HttpResponse App::health() const {
  Json body;
  int status = 503;
  switch (state()) {
    case ServerState::kReady:
      status = 200;
      body["status"] = "ready";
      break;
    case ServerState::kLoading:
      body["status"] = "loading";
      body["percent"] = loading_percent_.load();
      break;
    case ServerState::kDraining:
      body["status"] = "draining";
      break;
    case ServerState::kBroken:
      body["status"] = "broken";
      break;
  }
  return {.status = status, .body = body.dump()};
}

HttpResponse App::version() const {
  const ServingModel* model = model_;
  const bool is_known = model != nullptr && !model->version_body.empty();
  return {.body = is_known ? model->version_body : options_.version.dump()};
}

HttpReply App::handle(HttpRequest request) {
  const std::string path = local_path(request.path);
  try {
    const Route* route = find_route(path);
    if (route == nullptr) return error_response(404, "no such route");
    switch (route->kind) {
      case Route::kPage:
        return page_response();
      case Route::kPing:
        return health();
      case Route::kLive:
        return HttpResponse{.body = R"({"status":"live"})"};
      case Route::kVersion:
        return version();
      case Route::kLoad:
        return HttpResponse{.body = Json{{"server_load", num_in_flight_.load()}}.dump()};
      default:
        break;
    }
    const ServingModel* model = model_;
    ServerMetrics* metrics = metrics_;
    if (route->kind == Route::kMetrics) {
      HttpResponse response{.content_type = std::string(kMetricsType)};
      if (model != nullptr) {
        const TokenCache* tokens = model->token_cache;
        const AdapterRegistry* adapters = model->adapters;
        response.body = metrics->text(model->engine->stats(),
                                      tokens != nullptr ? tokens->stats() : TokenCacheStats{},
                                      adapters != nullptr ? adapters->totals() : AdapterTotals{});
      }
      return response;
    }
    if (model == nullptr) return state_refusal(*route);
    const ReplyContext reply{.model = model,
                             .metrics = metrics,
                             .num_in_flight = &num_in_flight_,
                             .is_stopping = &is_stopping_};
    const RouteContext context{*model,     options_.policy, reply,
                               responses_, background_,     adapter_loads_};
    switch (route->kind) {
      case Route::kModels:
        return list_models(context);
      case Route::kModel:
        return get_model(path.substr(kModelPrefix.size()), context);
      case Route::kTokenize:
        return tokenize(request, context);
      case Route::kDetokenize:
        return detokenize(request, context);
      case Route::kChat:
        return chat_completions(request, context);
      case Route::kCompletions:
        return completions(request, context);
      case Route::kMessages:
        return create_message(request, context);
      case Route::kCountTokens:
        return count_message_tokens(request, context);
      case Route::kResponses:
        return create_response(request, context);
      case Route::kResponse:
        return stored_response(request, path.substr(route->path.size()), context);
      case Route::kLoadAdapter:
        return load_adapter(request, context);
      case Route::kUnloadAdapter:
        return unload_adapter(request, context);
      default:
        break;
    }
    return error_response(404, "no such route");
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInternal) spdlog::error("request failed: {}", error.text());
    return in_form_of(path, error_response(error));
  } catch (const std::exception& error) {
    spdlog::error("request failed: {}", error.what());
    return in_form_of(path, error_response(500, "the server failed to handle the request"));
  }
}

std::string App::request_id(const HttpRequest& head) {
  std::string id = clean_request_id(head.header("x-request-id"));
  return id.empty() ? random_hex() : id;
}

HeaderList App::response_headers(const HttpRequest& request) {
  HeaderList headers = cors_.headers(request);
  if (options_.echo_request_id) headers.emplace_back("X-Request-Id", request.id);
  if (is_anthropic_route(local_path(request.path))) {
    headers.emplace_back("request-id", anthropic_request_id(request));
  }
  return headers;
}

HttpResponse App::transport_error(const HttpRequest& head, int status, std::string_view message) {
  return in_form_of(local_path(head.path), error_response(status, message));
}

void App::on_response(const HttpRequest& head, int status) {
  ServerMetrics* metrics = metrics_;
  if (metrics == nullptr) return;
  const Route* route = find_route(local_path(head.path));
  const bool is_known_method = head.method == "GET" || head.method == "POST" ||
                               head.method == "HEAD" || head.method == "OPTIONS";
  metrics->on_http_response(is_known_method ? head.method : "other",
                            route != nullptr ? route->path : "none", status);
}

/// One line a request; of probes none, they come every few seconds.
void App::on_finished(const HttpRequest& head, const RequestOutcome& outcome) {
  const std::string path = local_path(head.path);
  const Route* route = find_route(path);
  const bool is_probe = route != nullptr && !route->needs_model && route->kind != Route::kPage;
  if (!is_probe) ++num_finished_;
  if (!options_.log_access || (is_probe && outcome.status < 400)) return;
  std::vector<LogField> fields = {{"request_id", head.id},
                                  {"method", printable(head.method, 16)},
                                  {"path", printable(path, 128)},
                                  {"status", std::int64_t{outcome.status}},
                                  {"duration_ms", outcome.seconds * 1e3},
                                  {"bytes", outcome.num_bytes}};
  fields.insert(fields.end(), outcome.fields.begin(), outcome.fields.end());
  log_event(spdlog::level::info, "request", fields);
}

bool App::keep_connections() { return state_ != ServerState::kDraining; }

}  // namespace winnow::server
