// winnow bench serve: load for any server with OpenAI's completions or chat API. Flags are spelled
// as `vllm bench serve` spells them.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <limits>
#include <optional>

#include "base/log.h"
#include "cli/bench_report.h"
#include "cli/usage_error.h"
#include "cli/value_grammar.h"
#include "cli/verbs.h"
#include "load/report.h"
#include "text/tokenizer.h"

namespace winnow::cli {
namespace {

constexpr std::int64_t kMaxPrompts = 10'000'000;
constexpr std::int64_t kMaxTokens = 100'000'000;  // of a made prompt

struct ServeBenchFlags {
  std::string base_url, host = "127.0.0.1", endpoint, backend = "openai", model, tokenizer;
  std::optional<std::int64_t> port;
  std::string dataset_name = "random", dataset_path;
  std::optional<std::int64_t> num_prompts, max_concurrency, seed, num_warmups, ready_timeout,
      request_timeout;
  std::optional<std::int64_t> random_input_len, random_output_len, random_prefix_len;
  std::optional<std::int64_t> prefix_len, suffix_len, num_prefixes, prefix_output_len;
  std::optional<std::int64_t> sharegpt_output_len, custom_output_len;
  double range_ratio = 0, burstiness = 1;
  std::string request_rate = "inf", percentile_metrics = "ttft,tpot,itl,e2el",
              metric_percentiles = "50,90,99";
  std::vector<std::string> goodput, headers;
  std::string api_key, result_dir, result_filename, output_json;
  bool ignore_eos = false, save_result = false, save_detailed = false;
  Json extra_body = Json::object();
};

void add_flags(FlagSet& set, ServeBenchFlags& flags) {
  set.group("Server");
  set.add_string("base-url", flags.base_url, "http://HOST:PORT/PATH, instead of --host and --port");
  set.add_string("host", flags.host, "Host (default 127.0.0.1)");
  set.add_integer("port", flags.port, "Port (default 8000)");
  set.add_string("backend", flags.backend, "API: openai (completions, default) or openai-chat",
                 {"openai", "openai-chat", "vllm"});
  set.add_string("endpoint", flags.endpoint,
                 "Path (default /v1/completions or /v1/chat/completions); one that ends in "
                 "/chat/completions means --backend openai-chat");
  set.add_string("model", flags.model, "Model name (default: the server's first)");
  set.add_string("api-key", flags.api_key,
                 "Key (default: variable WINNOW_API_KEY or OPENAI_API_KEY)");
  set.add_list("header", flags.headers, "Further request headers, NAME=VALUE");
  set.add_json("extra-body", flags.extra_body, "Members added to every request's body");
  set.add_integer("ready-check-timeout-sec", flags.ready_timeout,
                  "How long a first request is tried again; 0: none is sent (default 600)");
  set.add_integer("request-timeout", flags.request_timeout,
                  "Seconds after which a request has failed (default 21600)");
  set.group("Load");
  set.add_integer("num-prompts", flags.num_prompts, "Requests (default 1000)");
  set.add_string("request-rate", flags.request_rate,
                 "Requests a second, arriving at random; inf (default): all at once");
  set.add_real("burstiness", flags.burstiness,
               "Of arrivals: 1 (default) a Poisson process, below in bursts, above evenly");
  set.add_integer("max-concurrency", flags.max_concurrency, "Requests at once, at most");
  set.add_integer("num-warmups", flags.num_warmups, "Requests before, not measured (default 0)");
  set.add_integer("seed", flags.seed, "Of prompts and arrivals (default 0)");
  set.add_switch("ignore-eos", flags.ignore_eos, "Ask for answers of full length");
  set.group("Prompts");
  set.add_string("dataset-name", flags.dataset_name, "Where prompts come from (default random)",
                 {"random", "prefix_repetition", "sharegpt", "custom"});
  set.add_string("dataset-path", flags.dataset_path, "File of sharegpt and custom");
  set.add_string("tokenizer", flags.tokenizer,
                 "Folder or tokenizer.json: lengths are counted, not estimated");
  set.add_human_integer("random-input-len", flags.random_input_len, "Tokens (default 1024)");
  set.add_human_integer("random-output-len", flags.random_output_len, "Tokens (default 128)");
  set.add_human_integer("random-prefix-len", flags.random_prefix_len,
                        "Tokens before that all prompts share (default 0)");
  set.add_real("random-range-ratio", flags.range_ratio,
               "Lengths vary by this share, from 0 (default) to below 1");
  set.add_human_integer("prefix-repetition-prefix-len", flags.prefix_len,
                        "Shared tokens (default 256)");
  set.add_human_integer("prefix-repetition-suffix-len", flags.suffix_len,
                        "Tokens of a prompt's own (default 256)");
  set.add_integer("prefix-repetition-num-prefixes", flags.num_prefixes,
                  "Different beginnings (default 10)");
  set.add_human_integer("prefix-repetition-output-len", flags.prefix_output_len,
                        "Tokens of an answer (default 128)");
  set.add_human_integer("sharegpt-output-len", flags.sharegpt_output_len,
                        "Tokens of each answer (default: the file's)");
  set.add_human_integer("custom-output-len", flags.custom_output_len,
                        "Tokens of each answer (default: the file's, else 256)");
  set.group("Results");
  set.add_string("percentile-metrics", flags.percentile_metrics,
                 "Of ttft, tpot, itl, e2el (default: all)");
  set.add_string("metric-percentiles", flags.metric_percentiles, "Default 50,90,99");
  set.add_list("goodput", flags.goodput, "Limits of a good request, ttft:MS tpot:MS e2el:MS");
  set.add_switch("save-result", flags.save_result, "Write the result as JSON into --result-dir");
  set.add_switch("save-detailed", flags.save_detailed, "With each request's times and text");
  set.add_string("result-dir", flags.result_dir, "Default: the current folder");
  set.add_string("result-filename", flags.result_filename, "Default: from rate, model and time");
  set.add_string("output-json", flags.output_json, "File for the result, as --save-result");
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> out;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    if (end > begin) out.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

load::ReportOptions report_options(const ServeBenchFlags& flags, const Tokenizer* tokenizer) {
  load::ReportOptions out;
  out.metrics = split(flags.percentile_metrics);
  for (const std::string& metric : out.metrics) {
    check_choice("--percentile-metrics", metric, {"ttft", "tpot", "itl", "e2el"});
  }
  out.percents.clear();
  for (const std::string& percent : split(flags.metric_percentiles)) {
    out.percents.push_back(parse_real("--metric-percentiles", percent));
    if (!(out.percents.back() >= 0 && out.percents.back() <= 100)) {
      throw UsageError(fmt::format("--metric-percentiles: {} is not in 0 to 100", percent));
    }
  }
  for (const std::string& limit : flags.goodput) {
    const std::size_t colon = limit.find(':');
    if (colon == std::string::npos) {
      throw UsageError(fmt::format("--goodput: {} is not of the form ttft:MS", limit));
    }
    const std::string metric = limit.substr(0, colon);
    check_choice("--goodput", metric, {"ttft", "tpot", "e2el"});
    const double most = parse_real("--goodput", limit.substr(colon + 1));
    if (!(most >= 0)) throw UsageError(fmt::format("--goodput: {} is below 0", limit));
    out.goodput_ms[metric] = most;
  }
  out.tokenizer = tokenizer;
  out.is_detailed = flags.save_detailed;
  return out;
}

/// A header from outside may not bring a second one along.
void check_header(const std::string& flag, const std::string& text) {
  if (text.find_first_of(std::string_view("\r\n\0", 3)) != std::string::npos) {
    throw UsageError(fmt::format("{}: holds a line break", flag));
  }
}

load::ClientOptions client_options(const ServeBenchFlags& flags) {
  load::ClientOptions out;
  const std::int64_t port = bounded("--port", flags.port, 8000, 1, 65535);
  const bool is_ipv6 = flags.host.find(':') != std::string::npos;
  out.base = load::parse_url(!flags.base_url.empty() ? flags.base_url
                             : is_ipv6 ? fmt::format("http://[{}]:{}", flags.host, port)
                                       : fmt::format("http://{}:{}", flags.host, port));
  out.is_chat = flags.backend == "openai-chat" || flags.endpoint.ends_with("/chat/completions");
  out.endpoint = !flags.endpoint.empty() ? flags.endpoint
                 : out.is_chat           ? "/v1/chat/completions"
                                         : "/v1/completions";
  if (!out.endpoint.starts_with('/') || out.endpoint.find_first_of("\r\n ") != std::string::npos) {
    throw UsageError(fmt::format("--endpoint: {} is not a path", out.endpoint));
  }
  out.model = flags.model;
  out.ignore_eos = flags.ignore_eos;
  if (!flags.extra_body.is_object()) throw UsageError("--extra-body: not a JSON object");
  out.extra_body = flags.extra_body;
  std::string key = flags.api_key;
  for (const char* name : {"WINNOW_API_KEY", "OPENAI_API_KEY"}) {
    const char* value = std::getenv(name);
    if (key.empty() && value != nullptr) key = value;
  }
  check_header("--api-key", key);
  if (!key.empty()) out.headers.emplace_back("Authorization", "Bearer " + key);
  for (const std::string& header : flags.headers) {
    const std::size_t equal = header.find('=');
    if (equal == 0 || equal == std::string::npos) {
      throw UsageError(fmt::format("--header: {} is not of the form NAME=VALUE", header));
    }
    check_header("--header", header);
    out.headers.emplace_back(header.substr(0, equal), header.substr(equal + 1));
  }
  out.timeout = std::chrono::seconds(
      bounded("--request-timeout", flags.request_timeout, 21600, 1, 1'000'000));
  return out;
}

std::vector<load::Prompt> prompts_of(const ServeBenchFlags& flags, const Tokenizer* tokenizer) {
  load::DatasetOptions options;
  options.num_prompts =
      static_cast<std::size_t>(bounded("--num-prompts", flags.num_prompts, 1000, 1, kMaxPrompts));
  options.seed = static_cast<std::uint64_t>(flags.seed.value_or(0));
  options.tokenizer = tokenizer;
  if (!(flags.range_ratio >= 0 && flags.range_ratio < 1)) {
    throw UsageError(
        fmt::format("--random-range-ratio: {} is not in 0 to below 1", flags.range_ratio));
  }
  if (flags.dataset_name == "random") {
    return load::make_prompts(
        options,
        {.input_len = bounded("--random-input-len", flags.random_input_len, 1024, 1, kMaxTokens),
         .output_len = bounded("--random-output-len", flags.random_output_len, 128, 1, kMaxTokens),
         .range_ratio = flags.range_ratio,
         .prefix_len = bounded("--random-prefix-len", flags.random_prefix_len, 0, 0, kMaxTokens)});
  }
  if (flags.dataset_name == "prefix_repetition") {
    return load::make_prompts(
        options,
        {.input_len =
             bounded("--prefix-repetition-suffix-len", flags.suffix_len, 256, 1, kMaxTokens),
         .output_len =
             bounded("--prefix-repetition-output-len", flags.prefix_output_len, 128, 1, kMaxTokens),
         .range_ratio = 0,
         .prefix_len =
             bounded("--prefix-repetition-prefix-len", flags.prefix_len, 256, 0, kMaxTokens),
         .num_prefixes =
             bounded("--prefix-repetition-num-prefixes", flags.num_prefixes, 10, 1, 1'000'000)});
  }
  if (flags.dataset_path.empty()) {
    throw UsageError(fmt::format("--dataset-name {} needs --dataset-path", flags.dataset_name));
  }
  const bool is_sharegpt = flags.dataset_name == "sharegpt";
  load::FileOptions file{
      .path = flags.dataset_path,
      .output_len = is_sharegpt ? flags.sharegpt_output_len : flags.custom_output_len};
  if (file.output_len) {
    (void)bounded(is_sharegpt ? "--sharegpt-output-len" : "--custom-output-len", file.output_len, 1,
                  1, kMaxTokens);
  }
  return is_sharegpt ? load::read_sharegpt(options, file) : load::read_custom(options, file);
}

double rate_of(const ServeBenchFlags& flags) {
  const double rate = flags.request_rate == "inf"
                          ? std::numeric_limits<double>::infinity()
                          : parse_real("--request-rate", flags.request_rate);
  if (!(rate > 0)) throw UsageError(fmt::format("--request-rate: {} is not above 0", rate));
  return rate;
}

std::optional<Tokenizer> tokenizer_of(const std::string& path) {
  if (path.empty()) return std::nullopt;
  const std::filesystem::path file(path);
  return Tokenizer::from_file(std::filesystem::is_directory(file) ? file / "tokenizer.json" : file);
}

/// The result's name as `vllm bench serve` makes it, without what a file's name cannot hold.
std::string result_name(const Json& result) {
  const Json& rate = result["request_rate"];
  std::string model = result["model_id"].get<std::string>();
  model = model.substr(model.find_last_of('/') + 1);
  return fmt::format("{}-{}qps-{}-{}.json", result["endpoint_type"].get<std::string>(),
                     rate.is_string() ? rate.get<std::string>() : rate.dump(), model,
                     result["date"].get<std::string>());
}

}  // namespace

int run_bench_serve(const Words& words) {
  FlagSet set("bench serve");
  ServeBenchFlags flags;
  add_flags(set, flags);
  if (!set.parse(words)) return 0;
  init_log("warning");
  const std::optional<Tokenizer> tokenizer = tokenizer_of(flags.tokenizer);
  const Tokenizer* counter = tokenizer ? &*tokenizer : nullptr;
  const load::ReportOptions report = report_options(flags, counter);
  if (!(flags.burstiness > 0)) throw UsageError("--burstiness: not above 0");
  load::RunOptions options{
      .client = client_options(flags),
      .arrivals = {.request_rate = rate_of(flags),
                   .burstiness = flags.burstiness,
                   .seed = static_cast<std::uint64_t>(flags.seed.value_or(0))},
      .max_concurrency = static_cast<std::size_t>(
          bounded("--max-concurrency", flags.max_concurrency, 0, 0, kMaxPrompts)),
      .num_warmups =
          static_cast<std::size_t>(bounded("--num-warmups", flags.num_warmups, 0, 0, kMaxPrompts)),
      .ready_timeout = std::chrono::seconds(
          bounded("--ready-check-timeout-sec", flags.ready_timeout, 600, 0, 1'000'000))};
  const std::vector<load::Prompt> prompts = prompts_of(flags, counter);
  const load::RunResult result = load::run(options, prompts);
  const Json json = load::result_json(options, result, prompts, report);
  fmt::print("{}", load::result_text(json, report));
  if (flags.save_result || !flags.result_filename.empty()) {
    const std::filesystem::path folder(flags.result_dir);
    if (!folder.empty()) std::filesystem::create_directories(folder);
    const std::string name =
        flags.result_filename.empty() ? result_name(json) : flags.result_filename;
    write_result_file("--result-dir", folder / name, json);
  }
  if (!flags.output_json.empty()) write_result_file("--output-json", flags.output_json, json);
  return json["completed"].get<std::int64_t>() > 0 ? 0 : 1;
}

}  // namespace winnow::cli
