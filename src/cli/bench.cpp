// winnow bench latency | throughput: the engine in this process, with random prompts of fixed
// length, so that nothing but the engine is measured.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <mutex>

#include "base/log.h"
#include "base/machine.h"
#include "base/memory.h"
#include "base/random.h"
#include "cli/bench_report.h"
#include "cli/engine_setup.h"
#include "cli/usage_error.h"
#include "cli/value_grammar.h"
#include "cli/verbs.h"

namespace winnow::cli {
namespace {

constexpr std::uint32_t kPromptStream = 0x70726f6d;  // keeps these draws apart from others

struct BenchFlags {
  EngineFlags engine;
  std::optional<std::int64_t> input_len, output_len, batch_size, num_iters, num_iters_warmup,
      num_prompts, n;
  std::string batch_sizes = "1,4,16";  // with drafts
  std::string text;                    // file that prompts are cut from
  double temperature = 1.0;
  std::string output_json;
};

/// Collects what the engine says of a run; one per run.
class Recorder {
 public:
  explicit Recorder(std::size_t num_requests) : requests_(num_requests), left_(num_requests) {}

  void token(std::size_t request, Clock::time_point arrival, std::size_t count) {
    const double now = std::chrono::duration<double>(Clock::now() - arrival).count();
    const std::lock_guard lock(mutex_);
    auto& times = requests_[request].token_seconds;
    times.insert(times.end(), count, now);
  }
  void fail(const std::string& what) {
    const std::lock_guard lock(mutex_);
    failure_ = what;
  }
  void done(std::size_t request, const RequestStats& stats) {
    const std::lock_guard lock(mutex_);
    requests_[request].stats = stats;
    --left_;
    changed_.notify_all();
  }
  std::vector<BenchRequest> wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return left_ == 0; });
    if (!failure_.empty()) throw Error(ErrorCode::kInternal, failure_);
    return std::move(requests_);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<BenchRequest> requests_;
  std::size_t left_;
  std::string failure_;
};

/// Ordinary tokens only: special ones could mean something to the model's stop rules.
std::vector<TokenId> random_prompt(const Tokenizer& tokenizer, std::uint64_t seed,
                                   std::uint64_t number, std::int64_t length) {
  const auto vocab = static_cast<std::uint64_t>(tokenizer.vocab_size());
  std::vector<TokenId> out;
  for (std::uint32_t draw = 0; out.size() < static_cast<std::size_t>(length); ++draw) {
    const Philox4 words =
        philox4x32(seed, {draw, static_cast<std::uint32_t>(number),
                          static_cast<std::uint32_t>(number >> 32), kPromptStream});
    const auto token = static_cast<TokenId>(words[0] % vocab);
    const bool is_usable = tokenizer.id_to_token(token) && !tokenizer.is_added(token);
    out.push_back(is_usable ? token : 0);
  }
  return out;
}

/// Where prompts come from: random tokens, or a text's own, `length` in a row.
class Prompts {
 public:
  Prompts(const BenchFlags& flags, const Tokenizer& tokenizer)
      : tokenizer_(tokenizer),
        seed_(static_cast<std::uint64_t>(flags.engine.seed.value_or(0))),
        length_(flags.input_len.value()) {
    if (flags.text.empty()) return;
    std::ifstream file(flags.text, std::ios::binary);
    if (!file) throw Error(ErrorCode::kIo, fmt::format("--text {}: cannot be read", flags.text));
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    text_ = tokenizer.encode(text);
    if (std::ssize(text_) <= length_) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("--text {}: {} tokens, too few for prompts of {}", flags.text,
                              text_.size(), length_));
    }
  }

  std::vector<TokenId> prompt(std::uint64_t number) const {
    if (text_.empty()) return random_prompt(tokenizer_, seed_, number, length_);
    const auto room = static_cast<std::uint64_t>(std::ssize(text_) - length_);
    const auto begin = static_cast<std::ptrdiff_t>(
        philox4x32(seed_, {static_cast<std::uint32_t>(number),
                           static_cast<std::uint32_t>(number >> 32), 0, kPromptStream})[0] %
        room);
    return {text_.begin() + begin, text_.begin() + begin + static_cast<std::ptrdiff_t>(length_)};
  }

 private:
  const Tokenizer& tokenizer_;
  std::uint64_t seed_;
  std::int64_t length_;
  std::vector<TokenId> text_;  // empty: random tokens
};

std::vector<BenchRequest> run_batch(EngineSetup& setup, const BenchFlags& flags,
                                    const Prompts& prompts, std::uint64_t first_number,
                                    std::int64_t count) {
  const auto recorder = std::make_shared<Recorder>(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    GenerationRequest request;
    request.prompt = prompts.prompt(first_number + static_cast<std::uint64_t>(i));
    request.sampling.temperature = static_cast<float>(flags.temperature);
    request.sampling.n = static_cast<std::int32_t>(flags.n.value_or(1));
    request.sampling.max_tokens = static_cast<std::int32_t>(flags.output_len.value());
    request.sampling.ignore_eos = true;
    request.sampling.seed = i;
    const auto index = static_cast<std::size_t>(i);
    const Clock::time_point arrival = Clock::now();
    request.on_update = [recorder, index, arrival](OutputUpdate&& update) {
      if (!update.tokens.empty() && update.choice == 0) {
        recorder->token(index, arrival, update.tokens.size());
      }
      if (update.finish_reason == FinishReason::kError) recorder->fail(update.error);
    };
    request.on_done = [recorder, index](const RequestStats& stats) {
      recorder->done(index, stats);
    };
    const Engine::Submitted submitted = setup.engine().submit(std::move(request));
    if (submitted.refusal != SubmitRefusal::kNone) {
      throw Error(ErrorCode::kQueueFull,
                  fmt::format("the engine's queue is full after {} requests", i),
                  "raise --max-num-queued-reqs");
    }
  }
  return recorder->wait();
}

Json setting_json(const BenchFlags& flags, const EngineSetup& setup) {
  const EngineFacts& facts = setup.facts();
  const Machine machine = detect_machine();
  Json out;
  out["model"] = flags.engine.model_folder();
  out["machine"] = fmt::format("{}, {} threads", machine.cpu_name, facts.num_threads);
  out["kernels"] = facts.backend;
  out["cache"] =
      fmt::format("{} / index {} / {}", facts.kv_dtype, facts.index_dtype, facts.dequant);
  out["input_len"] = flags.input_len.value();
  out["output_len"] = flags.output_len.value();
  out["load_seconds"] = facts.load_seconds;
  return out;
}

void write_json(const Json& json, const BenchFlags& flags) {
  if (!flags.output_json.empty()) write_result_file("--output-json", flags.output_json, json);
}

void finish(const BenchReport& report, const BenchFlags& flags) {
  const Json json = report_json(report);
  fmt::print("{}", report_text(json));
  write_json(json, flags);
}

std::int64_t count_flag(const char* name, std::optional<std::int64_t>& value,
                        std::int64_t fallback) {
  if (!value) value = fallback;
  if (*value < 1) throw UsageError(fmt::format("--{}: {} is below 1", name, *value));
  return *value;
}

/// Tokens after the first ones, over the time from the first to the last of all.
class DecodeRate {
 public:
  void add(const std::vector<BenchRequest>& requests) {
    double begin = std::numeric_limits<double>::infinity();
    double end = 0;
    for (const BenchRequest& request : requests) {
      if (request.token_seconds.empty()) continue;
      begin = std::min(begin, request.token_seconds.front());
      end = std::max(end, request.token_seconds.back());
      num_tokens_ += request.token_seconds.size() - 1;
    }
    if (end > begin) seconds_ += end - begin;
  }
  double tokens_per_second() const {
    return seconds_ > 0 ? static_cast<double>(num_tokens_) / seconds_ : 0.0;
  }

 private:
  std::size_t num_tokens_ = 0;
  double seconds_ = 0;
};

/// Batches without drafts and with them in turn, so that what else the machine does hits both.
Json compare_drafting(EngineSetup& setup, const BenchFlags& flags, const Prompts& prompts,
                      std::int64_t batch) {
  DecodeRate plain, drafting;
  EngineStats before;
  const std::int64_t num_warmup = flags.num_iters_warmup.value_or(1);
  for (std::int64_t i = -num_warmup; i < flags.num_iters.value(); ++i) {
    if (i == 0) before = setup.engine().stats();
    for (const bool is_on : {false, true}) {
      if (!setup.engine().set_drafting(is_on)) {
        throw Error(ErrorCode::kInternal, "the engine is not idle between two batches");
      }
      const auto number = static_cast<std::uint64_t>((i + num_warmup) * batch);
      const std::vector<BenchRequest> requests = run_batch(setup, flags, prompts, number, batch);
      if (i >= 0) (is_on ? drafting : plain).add(requests);
    }
  }
  const EngineStats after = setup.engine().stats();
  const auto num_blocks = static_cast<double>(after.num_drafts - before.num_drafts);
  const auto per_block = [&](std::int64_t count) {
    return num_blocks > 0 ? static_cast<double>(count) / num_blocks : 0.0;
  };
  return {{"batch_size", batch},
          {"plain_tokens_per_second", plain.tokens_per_second()},
          {"drafting_tokens_per_second", drafting.tokens_per_second()},
          {"ratio", drafting.tokens_per_second() / std::max(plain.tokens_per_second(), 1e-9)},
          {"acceptance_length", 1.0 + per_block(after.accepted_tokens - before.accepted_tokens)},
          {"drafts_a_block", per_block(after.draft_tokens - before.draft_tokens)},
          {"blocks", after.num_drafts - before.num_drafts}};
}

int bench_drafting(const BenchFlags& flags, EngineSetup& setup) {
  const Prompts prompts(flags, setup.tokenizer());
  Json report{{"benchmark", "latency with drafts"}, {"setting", setting_json(flags, setup)}};
  report["setting"]["drafter"] = setup.facts().speculation;
  report["setting"]["temperature"] = flags.temperature;
  report["runs"] = Json::array();
  for (const auto& [key, value] : report["setting"].items()) {
    fmt::print("  {:<14} {}\n", key, value.is_string() ? value.get<std::string>() : value.dump());
  }
  fmt::print("\n{:>6} {:>14} {:>14} {:>7} {:>12} {:>12}\n", "batch", "plain tok/s", "drafts tok/s",
             "ratio", "tokens/step", "drafts/step");
  const std::vector<std::int64_t> sizes =
      flags.batch_size ? std::vector<std::int64_t>{*flags.batch_size}
                       : parse_integer_list("--batch-sizes", flags.batch_sizes);
  for (const std::int64_t batch : sizes) {
    const Json run = compare_drafting(setup, flags, prompts, batch);
    fmt::print("{:>6} {:>14.1f} {:>14.1f} {:>7.3f} {:>12.2f} {:>12.2f}\n", batch,
               run["plain_tokens_per_second"].get<double>(),
               run["drafting_tokens_per_second"].get<double>(), run["ratio"].get<double>(),
               run["acceptance_length"].get<double>(), run["drafts_a_block"].get<double>());
    std::fflush(stdout);
    report["runs"].push_back(run);
  }
  write_json(report, flags);
  return 0;
}

/// A batch of equal requests, again and again: how long one user waits.
int bench_latency(BenchFlags& flags) {
  count_flag("input-len", flags.input_len, 512);
  count_flag("output-len", flags.output_len, 128);
  const std::int64_t num_iters = count_flag("num-iters", flags.num_iters, 5);
  const std::int64_t num_warmup = flags.num_iters_warmup.value_or(1);
  if (num_warmup < 0) throw UsageError("--num-iters-warmup: below 0");
  if (flags.batch_size) count_flag("batch-size", flags.batch_size, 1);
  const std::unique_ptr<EngineSetup> setup = load_engine(flags.engine);
  if (!setup->facts().speculation.empty()) return bench_drafting(flags, *setup);
  const std::int64_t batch = count_flag("batch-size", flags.batch_size, 1);
  const Prompts prompts(flags, setup->tokenizer());
  BenchReport report;
  report.title = "latency";
  std::uint64_t number = 0;  // every prompt is new, so that the prefix cache does not help
  for (std::int64_t i = -num_warmup; i < num_iters; ++i) {
    const auto start = Clock::now();
    std::vector<BenchRequest> requests = run_batch(*setup, flags, prompts, number, batch);
    number += static_cast<std::uint64_t>(batch);
    if (i < 0) continue;
    report.seconds += std::chrono::duration<double>(Clock::now() - start).count();
    std::move(requests.begin(), requests.end(), std::back_inserter(report.requests));
  }
  report.setting = setting_json(flags, *setup);
  report.setting["batch_size"] = batch;
  report.setting["iterations"] = num_iters;
  report.peak_bytes = peak_resident_bytes();
  finish(report, flags);
  return 0;
}

/// All requests at once: how much the machine gets done.
int bench_throughput(BenchFlags& flags) {
  count_flag("input-len", flags.input_len, 512);
  count_flag("output-len", flags.output_len, 128);
  const std::int64_t num_prompts = count_flag("num-prompts", flags.num_prompts, 16);
  count_flag("n", flags.n, 1);
  if (!flags.engine.max_num_queued_reqs) flags.engine.max_num_queued_reqs = num_prompts;
  const std::unique_ptr<EngineSetup> setup = load_engine(flags.engine);
  const Prompts prompts(flags, setup->tokenizer());
  run_batch(*setup, flags, prompts, 1ULL << 32, 1);  // warm-up: pages, threads
  BenchReport report;
  report.title = "throughput";
  const auto start = Clock::now();
  report.requests = run_batch(*setup, flags, prompts, 0, num_prompts);
  report.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  report.setting = setting_json(flags, *setup);
  report.setting["num_prompts"] = num_prompts;
  report.setting["n"] = flags.n.value();
  report.peak_bytes = peak_resident_bytes();
  finish(report, flags);
  return 0;
}

}  // namespace

int run_bench(const Words& words) {
  const std::vector<std::string> kinds = {"latency", "throughput", "serve", "kernels"};
  const bool is_help = !words.empty() && (words[0] == "--help" || words[0] == "-h");
  if (words.empty() || is_help) {
    fmt::print(
        "usage: winnow bench latency|throughput MODEL [FLAGS]\n"
        "       winnow bench latency --synthetic-weights [FLAGS]\n"
        "       winnow bench serve [FLAGS]\n"
        "       winnow bench kernels [CASE…] [FLAGS]\n"
        "  latency      equal requests one batch after another: what one user waits\n"
        "  throughput   all requests at once: what the machine gets done\n"
        "  serve        load for a running server, any that speaks OpenAI's API\n"
        "  kernels      operations at M3's sizes beside this machine's limits\n");
    return is_help ? 0 : 2;
  }
  check_choice("bench", words[0], kinds);
  if (words[0] == "serve") return run_bench_serve(Words(words.begin() + 1, words.end()));
  if (words[0] == "kernels") return run_bench_kernels(Words(words.begin() + 1, words.end()));
  if (words[0] == "latency" && std::ranges::find(words, "--synthetic-weights") != words.end()) {
    return run_bench_synthetic(Words(words.begin() + 1, words.end()));
  }
  FlagSet set("bench " + words[0]);
  BenchFlags flags;
  flags.engine.log_level = "warning";
  set.group("Benchmark");
  set.add_human_integer("input-len", flags.input_len, "Prompt tokens (default 512)");
  set.add_human_integer("output-len", flags.output_len, "Answer tokens (default 128)");
  set.add_string("output-json", flags.output_json, "File for the results");
  set.add_string("text", flags.text, "File that prompts are cut from (default: random tokens)");
  set.add_real("temperature", flags.temperature, "Sampling temperature (default 1)");
  if (words[0] == "latency") {
    set.add_integer("batch-size", flags.batch_size,
                    "Requests at once (default 1; with --speculative-config those below)");
    set.add_string("batch-sizes", flags.batch_sizes,
                   "With --speculative-config: without drafts and with them, so many at once");
    set.add_integer("num-iters", flags.num_iters, "Measured batches (default 5)");
    set.add_integer("num-iters-warmup", flags.num_iters_warmup, "Batches before (default 1)");
  } else {
    set.add_integer("num-prompts", flags.num_prompts, "Requests (default 16)");
    set.add_integer("n", flags.n, "Answers per prompt (default 1)");
  }
  add_engine_flags(set, flags.engine);
  add_foreign_engine_flags(set);
  add_foreign_lora_flags(set);
  if (!set.parse(Words(words.begin() + 1, words.end()))) return 0;
  init_log(flags.engine.log_level);
  check_engine_flags(flags.engine);
  return words[0] == "latency" ? bench_latency(flags) : bench_throughput(flags);
}

}  // namespace winnow::cli
