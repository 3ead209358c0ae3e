#include "cli/server_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "cli/usage_error.h"
#include "cli/value_grammar.h"
#include "cli/version.h"
#include "server/api_keys.h"

namespace winnow::cli {
namespace {

const std::vector<std::string> kParsers = {"minimax_m3", "auto", "none"};

/// A JSON list of strings, or one plain word.
std::vector<std::string> string_list(const char* flag, const std::string& text) {
  const Json value = Json::parse(text, nullptr, false);
  if (value.is_discarded()) return {text};
  std::vector<std::string> out;
  const bool is_list = value.is_array();
  for (const Json& item : is_list ? value : Json::array({value})) {
    if (!item.is_string()) {
      throw UsageError(fmt::format("{}: {} is not a JSON list of strings", flag, text));
    }
    out.push_back(item.get<std::string>());
  }
  return out;
}

std::chrono::milliseconds seconds(const char* flag, double value) {
  if (!(value >= 0 && value <= 1e6)) {
    throw UsageError(fmt::format("{}: {} is not between 0 and 1000000 seconds", flag, value));
  }
  return std::chrono::milliseconds(static_cast<std::int64_t>(value * 1000));
}

}  // namespace

void add_server_flags(FlagSet& set, ServerFlags& flags) {
  set.group("Server");
  set.add_string("host", flags.host,
                 "Address to listen on (default 127.0.0.1; 0.0.0.0 once an API key is set)");
  set.add_integer("port", flags.port, "Port (default 8000; 0: any free one)");
  set.add_string("uds", flags.uds, "Unix socket to listen on instead");
  set.add_list("served-model-name", flags.served_model_names,
               "Names requests may use; the first is reported (default: the folder's name)");
  set.add_list("api-key", flags.api_keys, "Accepted keys; also env WINNOW_API_KEY, VLLM_API_KEY");
  set.add_string("api-key-file", flags.api_key_file, "File with one key a line");
  set.add_string("root-path", flags.root_path, "Path prefix that a proxy leaves on");
  set.add_string("allowed-origins", flags.allowed_origins,
                 "CORS: JSON list of origins (default: none, CORS is off)");
  set.add_string("allowed-methods", flags.allowed_methods, "CORS: JSON list of methods");
  set.add_string("allowed-headers", flags.allowed_headers, "CORS: JSON list of headers");
  set.add_switch("allow-credentials", flags.allow_credentials, "CORS: allow credentials");
  set.add_switch("page", flags.page, "Serve the web page at /");
  set.add_real("shutdown-timeout", flags.shutdown_timeout,
               "Seconds that running requests get after SIGTERM (default 30)");
  set.add_switch("access-log", flags.access_log, "One log line per request");
  set.add_switch("disable-uvicorn-access-log", flags.disable_access_log, "As --no-access-log");
  set.add_switch("disable-access-log", flags.disable_access_log, "As --no-access-log");
  set.add_string("uvicorn-log-level", flags.uvicorn_log_level, "As --log-level",
                 {"trace", "debug", "info", "warning", "error", "critical"});
  set.add_switch("enable-request-id-headers", flags.enable_request_id_headers,
                 "X-Request-Id on every response: the request's own, or a new one");
  set.add_string("log-format", flags.log_format, "Log lines for people or for collectors",
                 {"text", "json"});

  set.group("Server limits");
  set.add_human_integer("max-body-bytes", flags.max_body_bytes, "Largest request (default 64M)");
  set.add_human_integer("max-header-bytes", flags.max_header_bytes, "Largest header (default 32K)");
  set.add_integer("max-connections", flags.max_connections, "Open connections (default 4096)");
  set.add_human_integer("max-stored-responses", flags.max_stored_responses,
                        "Responses kept for previous_response_id (default 1000; 0: none)");
  set.add_human_integer("max-stored-response-bytes", flags.max_stored_response_bytes,
                        "Memory for them (default 256M)");
  set.add_human_integer("token-cache-bytes", flags.token_cache_bytes,
                        "Memory for the token ids of text seen before (default 256M; 0: none)");
  set.add_integer("tokenizer-threads", flags.tokenizer_threads,
                  "Threads that encode a long prompt together (default: the cores, at most 4)");
  set.add_integer("io-threads", flags.io_threads, "Socket threads (default 2)");
  set.add_real("header-timeout", flags.header_timeout, "Seconds for a request's header");
  set.add_real("body-timeout", flags.body_timeout,
               "Seconds between two reads of a body, and a twentieth of its whole time");
  set.add_real("write-timeout", flags.write_timeout,
               "Seconds until a client that does not read has lost its request");
  set.add_real("idle-timeout", flags.idle_timeout, "Seconds between requests of a connection");
  set.add_real("keep-alive-interval", flags.keep_alive_interval,
               "Seconds between comments on a silent stream; 0: none");

  set.group("Requests");
  set.add_human_integer("stream-interval", flags.stream_interval,
                        "Tokens per streamed chunk (default 1)");
  set.add_string("logprobs-mode", flags.logprobs_mode, "Which distribution logprobs are of",
                 {"raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"});
  set.add_string("response-role", flags.response_role, "Role of answers");
  set.add_json("default-chat-template-kwargs", flags.default_chat_template_kwargs,
               "Template variables, e.g. '{\"thinking_mode\":\"enabled\"}'; requests win");
  set.add_switch("trust-request-chat-template", flags.trust_request_chat_template,
                 "Accepted for compatibility; requests may not bring templates");
  set.add_switch("markers-in-messages", flags.markers_in_messages,
                 "Let marker strings such as [e~[ inside messages become control tokens");
  set.add_switch("return-tokens-as-token-ids", flags.return_tokens_as_token_ids,
                 "Write tokens in logprobs as token_id:N");
  set.add_switch("enable-prompt-tokens-details", flags.enable_prompt_tokens_details,
                 "Report cached tokens in usage");
  set.add_switch("enable-force-include-usage", flags.enable_force_include_usage,
                 "Usage in every stream");
  set.add_switch("enable-per-request-metrics", flags.enable_per_request_metrics,
                 "Times in every answer");
  set.add_string("per-request-spec-decode-metrics", flags.per_request_spec_decode_metrics,
                 "Drafts in every answer", {"none", "summary", "detailed"});
  set.add_string("fingerprint-mode", flags.fingerprint_mode, "system_fingerprint",
                 {"full", "hash", "custom", "none"});
  set.add_string("system-fingerprint", flags.system_fingerprint,
                 "The text for --fingerprint-mode custom");
  set.add_string("reasoning-parser", flags.reasoning_parser,
                 "Splits thinking from the answer: minimax_m3 (default), none");
  set.add_string("tool-call-parser", flags.tool_call_parser,
                 "Takes tool calls out of the answer: minimax_m3 (default), none");
  set.add_switch(
      "enable-auto-tool-choice", flags.enable_auto_tool_choice,
      "Accepted for compatibility; tools always may be called unless tool_choice is none");
}

std::vector<std::string> check_server_flags(const ServerFlags& flags) {
  std::vector<std::string> notes;
  if (!flags.reasoning_parser.empty()) {
    check_choice("--reasoning-parser", flags.reasoning_parser, kParsers);
  }
  if (!flags.tool_call_parser.empty()) {
    check_choice("--tool-call-parser", flags.tool_call_parser, kParsers);
  }
  if (flags.logprobs_mode.ends_with("logits")) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("--logprobs-mode {}: logits are not reported", flags.logprobs_mode),
                "use raw_logprobs or processed_logprobs");
  }
  if (!flags.api_keys.empty()) {
    notes.emplace_back(
        "--api-key: other users of this machine can see the key in the process list; "
        "--api-key-file and WINNOW_API_KEY are not visible");
  }
  if (flags.port && (*flags.port < 0 || *flags.port > 65535)) {
    throw UsageError(fmt::format("--port: {} is not between 0 and 65535", *flags.port));
  }
  return notes;
}

std::vector<std::string> collect_api_keys(const ServerFlags& flags) {
  std::vector<std::string> keys = flags.api_keys;
  if (!flags.api_key_file.empty()) {
    for (std::string& key : server::read_key_file(flags.api_key_file)) keys.push_back(key);
  }
  for (const char* name : {"WINNOW_API_KEY", "VLLM_API_KEY"}) {
    const char* value = std::getenv(name);
    if (value != nullptr && *value != '\0') keys.emplace_back(value);
  }
  return keys;
}

bool is_local_only(const ServerFlags& flags) {
  return !flags.uds.empty() || flags.host.empty() || flags.host == "localhost" ||
         flags.host == "::1" || flags.host.starts_with("127.");
}

server::HttpOptions http_options(const ServerFlags& flags, bool has_keys) {
  server::HttpOptions options;
  options.host = !flags.host.empty() ? flags.host : has_keys ? "0.0.0.0" : "127.0.0.1";
  options.port = static_cast<std::uint16_t>(flags.port.value_or(8000));
  options.uds = flags.uds;
  options.num_io_threads = static_cast<int>(bounded("--io-threads", flags.io_threads, 2, 1, 256));
  options.max_body_bytes =
      bounded("--max-body-bytes", flags.max_body_bytes, options.max_body_bytes, 1, 1LL << 40);
  options.max_buffered_bytes = std::max(options.max_buffered_bytes, 4 * options.max_body_bytes);
  options.max_header_bytes = static_cast<std::uint32_t>(
      bounded("--max-header-bytes", flags.max_header_bytes, options.max_header_bytes, 1, 1 << 20));
  options.max_connections = static_cast<int>(
      bounded("--max-connections", flags.max_connections, options.max_connections, 1, 1 << 20));
  options.header_timeout = seconds("--header-timeout", flags.header_timeout);
  options.body_timeout = seconds("--body-timeout", flags.body_timeout);
  options.write_timeout = seconds("--write-timeout", flags.write_timeout);
  options.idle_timeout = seconds("--idle-timeout", flags.idle_timeout);
  options.keep_alive_interval = seconds("--keep-alive-interval", flags.keep_alive_interval);
  return options;
}

server::ResponseStoreLimits response_store_limits(const ServerFlags& flags) {
  server::ResponseStoreLimits limits;
  limits.max_responses = flags.max_stored_responses.value_or(limits.max_responses);
  limits.max_bytes = flags.max_stored_response_bytes.value_or(limits.max_bytes);
  if (limits.max_responses < 0) throw UsageError("--max-stored-responses: below 0");
  if (limits.max_bytes < 0) throw UsageError("--max-stored-response-bytes: below 0");
  return limits;
}

std::int64_t token_cache_bytes(const ServerFlags& flags) {
  constexpr std::int64_t kDefault = std::int64_t{256} << 20;
  const std::int64_t bytes = flags.token_cache_bytes.value_or(kDefault);
  if (bytes < 0) throw UsageError("--token-cache-bytes: below 0");
  return bytes;
}

int tokenizer_threads(const ServerFlags& flags) {
  constexpr std::int64_t kMost = 256;
  if (!flags.tokenizer_threads) {
    return static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1U, 4U));
  }
  const std::int64_t threads = *flags.tokenizer_threads;
  if (threads < 1 || threads > kMost) {
    throw UsageError(
        fmt::format("--tokenizer-threads: {} is not between 1 and {}", threads, kMost));
  }
  return static_cast<int>(threads);
}

server::RequestPolicy request_policy(const ServerFlags& flags, const EngineFlags& engine) {
  server::RequestPolicy policy;
  policy.max_logprobs = static_cast<std::int32_t>(engine.max_logprobs.value_or(20));
  policy.logprobs_mode = flags.logprobs_mode;
  if (flags.stream_interval && *flags.stream_interval < 1) {
    throw UsageError("--stream-interval: below 1");
  }
  policy.stream_interval = static_cast<std::int32_t>(flags.stream_interval.value_or(1));
  policy.is_priority_scheduling = engine.scheduling_policy == "priority";
  policy.trust_request_chat_template = flags.trust_request_chat_template;
  policy.return_tokens_as_token_ids = flags.return_tokens_as_token_ids;
  policy.force_include_usage = flags.enable_force_include_usage;
  policy.prompt_tokens_details = flags.enable_prompt_tokens_details;
  policy.per_request_metrics = flags.enable_per_request_metrics;
  if (flags.per_request_spec_decode_metrics == "summary") {
    policy.draft_report = server::DraftReport::kSummary;
  } else if (flags.per_request_spec_decode_metrics == "detailed") {
    policy.draft_report = server::DraftReport::kDetailed;
  }
  policy.response_role = flags.response_role;
  policy.split_reasoning = flags.reasoning_parser != "none";
  policy.parse_tool_calls = flags.tool_call_parser != "none";
  policy.default_chat_template_kwargs = flags.default_chat_template_kwargs;
  policy.encode_request_text_as_plain = !flags.markers_in_messages;
  return policy;
}

server::CorsOptions cors_options(const ServerFlags& flags) {
  server::CorsOptions options;
  options.allowed_origins = string_list("--allowed-origins", flags.allowed_origins);
  options.allowed_methods = string_list("--allowed-methods", flags.allowed_methods);
  options.allowed_headers = string_list("--allowed-headers", flags.allowed_headers);
  options.allow_credentials = flags.allow_credentials;
  return options;
}

std::string log_level(const ServerFlags& flags) {
  if (flags.uvicorn_log_level == "trace") return "debug";
  if (flags.uvicorn_log_level == "critical") return "error";
  return flags.uvicorn_log_level;
}

std::string fingerprint(const ServerFlags& flags, const std::string& identity) {
  if (flags.fingerprint_mode == "none") return {};
  if (flags.fingerprint_mode == "custom") return flags.system_fingerprint;
  std::uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a: only has to differ between set-ups
  for (const char c : identity) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  std::string digest = fmt::format("{:08x}", static_cast<std::uint32_t>(hash >> 32));
  if (flags.fingerprint_mode == "hash") return digest;
  return fmt::format("winnow-{}-{}", kVersion, digest);
}

}  // namespace winnow::cli
