// Flags of `winnow serve` beyond the engine's: sockets, keys, what requests may do.
#pragma once

#include "cli/engine_flags.h"
#include "server/app.h"
#include "server/http_server.h"

namespace winnow::cli {

struct ServerFlags {
  std::string host;
  std::optional<std::int64_t> port;
  std::string uds;
  std::vector<std::string> api_keys;
  std::string api_key_file;
  std::vector<std::string> served_model_names;
  std::string root_path;
  std::string allowed_origins = "[]", allowed_methods = "[\"*\"]", allowed_headers = "[\"*\"]";
  bool allow_credentials = false;
  bool page = true;

  std::optional<std::int64_t> max_body_bytes, max_header_bytes, max_connections, io_threads;
  std::optional<std::int64_t> max_stored_responses, max_stored_response_bytes;
  std::optional<std::int64_t> token_cache_bytes, tokenizer_threads;
  double header_timeout = 10, body_timeout = 30, write_timeout = 60;
  double idle_timeout = 75, keep_alive_interval = 15;
  double shutdown_timeout = 30;
  bool access_log = true;
  bool disable_access_log = false;
  bool enable_request_id_headers = true;
  std::string log_format = "text";

  std::optional<std::int64_t> stream_interval;
  std::string logprobs_mode = "raw_logprobs";
  std::string response_role = "assistant";
  Json default_chat_template_kwargs = Json::object();
  bool trust_request_chat_template = false;
  bool return_tokens_as_token_ids = false;
  bool enable_prompt_tokens_details = true;
  bool enable_force_include_usage = false;
  bool enable_per_request_metrics = false;
  std::string per_request_spec_decode_metrics = "none";
  bool markers_in_messages = false;
  std::string fingerprint_mode = "full";
  std::string system_fingerprint;  // with mode custom
  std::string reasoning_parser, tool_call_parser;
  bool enable_auto_tool_choice = false;
  std::string uvicorn_log_level = "info";
};

void add_server_flags(FlagSet& set, ServerFlags& flags);

/// Checks and notes, as check_engine_flags().
std::vector<std::string> check_server_flags(const ServerFlags& flags);

server::HttpOptions http_options(const ServerFlags& flags, bool has_keys);
/// Nobody but this machine can connect: a loopback address, or a Unix socket.
bool is_local_only(const ServerFlags& flags);
/// Keys of flags, file and environment together.
std::vector<std::string> collect_api_keys(const ServerFlags& flags);
server::RequestPolicy request_policy(const ServerFlags& flags, const EngineFlags& engine);
server::CorsOptions cors_options(const ServerFlags& flags);
server::ResponseStoreLimits response_store_limits(const ServerFlags& flags);
std::int64_t token_cache_bytes(const ServerFlags& flags);
int tokenizer_threads(const ServerFlags& flags);
/// --uvicorn-log-level in our own names.
std::string log_level(const ServerFlags& flags);
std::string fingerprint(const ServerFlags& flags, const std::string& identity);

}  // namespace winnow::cli
