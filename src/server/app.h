// The application behind the sockets: who may ask what, in which state the server is, and which
// handler answers. Every Error of a request ends here as a JSON body.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "server/adapters/adapter_loads.h"
#include "server/api_keys.h"
#include "server/cors.h"
#include "server/generation.h"
#include "server/http_message.h"
#include "server/metrics.h"
#include "server/openai/generation_fields.h"
#include "server/responses/background_replies.h"
#include "server/responses/response_store.h"

namespace winnow::server {

enum class ServerState { kLoading, kReady, kDraining, kBroken };

struct AppOptions {
  ApiKeys keys;
  CorsOptions cors;
  RequestPolicy policy;
  std::string root_path;  // prefix a proxy leaves on the path
  bool echo_request_id = true;
  bool log_access = true;
  bool serve_page = true;
  bool has_adapters = false;         // the routes that load and unload them exist
  bool may_change_adapters = false;  // and do it
  ResponseStoreLimits response_store;
  Json version;  // body of /version until the model is there
};

class App final : public HttpHandler {
 public:
  explicit App(AppOptions options);
  ~App() override;

  /// Any thread. `progress` is a percentage while loading.
  void set_loading_progress(int percent) { loading_percent_ = percent; }
  /// The model and metrics outlive the app; requests are served from here on.
  void set_ready(const ServingModel* model, ServerMetrics* metrics);
  /// New requests are refused with 503; those in progress go on.
  void start_draining();
  /// From here on an aborted generation tells its client that the server shuts down.
  void start_stopping() { is_stopping_ = true; }
  /// Ends responses that run in the background, and loads; before the engine goes.
  void stop_background() {
    background_.stop();
    adapter_loads_.stop();
  }
  void set_broken();
  ServerState state() const;
  std::int64_t num_in_flight() const { return num_in_flight_; }
  /// Requests other than probes whose last byte was written.
  std::int64_t num_finished() const { return num_finished_; }

  std::optional<HttpResponse> check_head(const HttpRequest& head) override;
  bool is_quick(const HttpRequest& request) override;
  HttpReply handle(HttpRequest request) override;
  std::string request_id(const HttpRequest& head) override;
  HeaderList response_headers(const HttpRequest& request) override;
  HttpResponse transport_error(const HttpRequest& head, int status,
                               std::string_view message) override;
  void on_response(const HttpRequest& head, int status) override;
  void on_finished(const HttpRequest& head, const RequestOutcome& outcome) override;
  bool keep_connections() override;

 private:
  struct Route;
  static const std::vector<Route>& routes();
  const Route* find_route(std::string_view path) const;
  std::string local_path(const std::string& path) const;
  std::optional<HttpResponse> answer_to_head(const HttpRequest& head,
                                             const std::string& path) const;
  HttpResponse health() const;
  HttpResponse version() const;
  HttpResponse state_refusal(const Route& route) const;

  AppOptions options_;
  Cors cors_;
  ResponseStore responses_;
  BackgroundReplies background_;
  AdapterLoads adapter_loads_;
  std::atomic<ServerState> state_{ServerState::kLoading};
  std::atomic<int> loading_percent_{0};
  std::atomic<std::int64_t> num_in_flight_{0};
  std::atomic<std::int64_t> num_finished_{0};
  std::atomic<bool> is_stopping_{false};
  std::atomic<const ServingModel*> model_{nullptr};
  std::atomic<ServerMetrics*> metrics_{nullptr};
};

}  // namespace winnow::server
