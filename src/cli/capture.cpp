// winnow capture: texts that a model writes, and the residual streams it computes over them: the
// training data of its drafter.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <fstream>
#include <memory>
#include <mutex>

#include "base/log.h"
#include "cli/engine_setup.h"
#include "cli/local_generation.h"
#include "cli/usage_error.h"
#include "cli/value_grammar.h"
#include "cli/verbs.h"
#include "model/captured_text.h"
#include "model/load_decoder.h"

namespace winnow::cli {
namespace {

struct CaptureFlags {
  EngineFlags engine;
  std::string prompts, texts, output;
  std::vector<std::string> layers;
};

struct PromptLine {
  std::int64_t number = 0;
  Json body;
};

std::vector<PromptLine> read_prompts(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(ErrorCode::kIo, fmt::format("--prompts {}: cannot be read", path));
  std::vector<PromptLine> lines;
  std::string line;
  for (std::int64_t number = 1; std::getline(file, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    Json body = Json::parse(line, nullptr, false);
    if (!body.is_object()) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{}:{}: not a JSON object", path, number),
                  "each line is a body as for /v1/completions or /v1/chat/completions");
    }
    lines.push_back({.number = number, .body = std::move(body)});
  }
  if (lines.empty()) throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: no prompts", path));
  return lines;
}

/// What the engine thread says of the texts in progress.
class Texts {
 public:
  explicit Texts(std::size_t count) : texts_(count) {}

  void start(std::size_t index, const std::vector<TokenId>& prompt) {
    texts_[index] = {.tokens = prompt, .num_prompt = static_cast<std::int32_t>(prompt.size())};
    const std::lock_guard lock(mutex_);
    ++num_open_;
  }
  /// Of the text at `index`, which no other thread looks at meanwhile.
  void add(std::size_t index, const OutputUpdate& update) {
    for (const SampledToken& token : update.tokens) texts_[index].tokens.push_back(token.token);
    if (update.finish_reason != FinishReason::kError) return;
    const std::lock_guard lock(mutex_);
    failure_ = update.error;
  }
  void end() {
    const std::lock_guard lock(mutex_);
    --num_open_;
    changed_.notify_one();
  }
  void wait_until_open(std::int64_t at_most) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return num_open_ <= at_most; });
    if (!failure_.empty()) throw Error(ErrorCode::kInternal, failure_);
  }
  std::vector<CapturedText> take() { return std::move(texts_); }

 private:
  std::vector<CapturedText> texts_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::int64_t num_open_ = 0;
  std::string failure_;
};

void submit(EngineSetup& setup, const server::ServingModel& model, const PromptLine& line,
            const std::shared_ptr<Texts>& texts, std::size_t index) {
  GenerationRequest request;
  try {
    request = prepare_locally(model, line.body);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("line {}: {}", line.number, error.text()));
  }
  texts->start(index, request.prompt);
  request.on_update = [texts, index](OutputUpdate&& update) { texts->add(index, update); };
  request.on_done = [texts](const RequestStats&) { texts->end(); };
  const Engine::Submitted submitted = setup.engine().submit(std::move(request));
  if (submitted.refusal != SubmitRefusal::kNone) {
    throw Error(ErrorCode::kUnavailable, "the engine does not take requests");
  }
}

void print_generation(const EngineStats& stats, std::size_t num_texts, double seconds) {
  fmt::print("{} texts, {} prompt tokens, {} generated in {:.1f} s, {:.0f} a second\n", num_texts,
             stats.prompt_tokens, stats.generation_tokens, seconds,
             static_cast<double>(stats.generation_tokens) / seconds);
  if (stats.num_drafts == 0) return;
  const auto accepted = static_cast<double>(stats.accepted_tokens);
  fmt::print("mean acceptance length {:.3f}: {} of {} drafted tokens in {} blocks\n",
             1 + accepted / static_cast<double>(stats.num_drafts), stats.accepted_tokens,
             stats.draft_tokens, stats.num_drafts);
}

std::vector<CapturedText> generate(const CaptureFlags& flags) {
  const std::vector<PromptLine> lines = read_prompts(flags.prompts);
  const std::unique_ptr<EngineSetup> setup = load_engine(flags.engine);
  const server::ServingModel model = setup->serving_model({flags.engine.model_folder()});
  const std::int64_t room = std::int64_t{setup->facts().max_num_seqs} * 2;
  const auto texts = std::make_shared<Texts>(lines.size());
  const auto start = Clock::now();
  for (std::size_t i = 0; i < lines.size(); ++i) {
    texts->wait_until_open(room - 1);
    submit(*setup, model, lines[i], texts, i);
  }
  texts->wait_until_open(0);
  print_generation(setup->engine().stats(), lines.size(),
                   std::chrono::duration<double>(Clock::now() - start).count());
  return texts->take();
}

void write_streams_of(const CaptureFlags& flags, const std::vector<std::int32_t>& layers,
                      const ModelConfig& config, const std::vector<CapturedText>& texts) {
  DecoderOptions options = decoder_options(flags.engine);
  options.captured_layers = layers;
  std::int64_t num_tokens = 0;
  for (const CapturedText& text : texts) num_tokens += std::ssize(text.tokens);
  options.max_positions = config.max_position_embeddings;
  for (const CapturedText& text : texts) {
    options.max_positions = std::max(options.max_positions, std::ssize(text.tokens));
  }
  const LoadedModel model = load_decoder(resolve_model_folder(flags.engine.model_folder()),
                                         backend_name(flags.engine), options);
  const auto start = Clock::now();
  write_streams(*model.decoder, layers, texts, options.max_num_batched_tokens, flags.output);
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  fmt::print("streams of {} layers over {} tokens in {:.1f} s, {:.0f} tokens a second\n",
             layers.size(), num_tokens, seconds, static_cast<double>(num_tokens) / seconds);
}

std::vector<std::int32_t> parse_layers(const CaptureFlags& flags) {
  std::vector<std::int32_t> layers;
  for (const std::string& word : flags.layers) {
    layers.push_back(static_cast<std::int32_t>(parse_human_integer("--layers", word)));
  }
  return layers;
}

}  // namespace

int run_capture(const Words& words) {
  FlagSet set("capture");
  CaptureFlags flags;
  flags.engine.log_level = "warning";
  set.group("Capture");
  set.add_string("prompts", flags.prompts,
                 "File of request bodies, one a line: the model answers them all");
  set.add_string("texts", flags.texts, "File that an earlier run wrote: texts that are there");
  set.add_string("output", flags.output, "The *.safetensors to write");
  set.add_list("layers", flags.layers,
               "Layers after which the residual stream is kept; none: the texts alone");
  add_engine_flags(set, flags.engine);
  add_foreign_engine_flags(set);
  add_foreign_lora_flags(set);
  if (!set.parse(words)) return 0;
  init_log(flags.engine.log_level);
  check_engine_flags(flags.engine);
  if (flags.prompts.empty() == flags.texts.empty()) {
    throw UsageError("capture needs --prompts or --texts, one of them");
  }
  const std::vector<std::int32_t> layers = parse_layers(flags);
  const ModelConfig config = read_model_config(resolve_model_folder(flags.engine.model_folder()));
  const std::vector<CapturedText> texts =
      flags.texts.empty() ? generate(flags) : read_texts(flags.texts, config.vocab_size);
  if (flags.output.empty()) return 0;
  if (layers.empty()) {
    write_texts(texts, flags.output);
  } else {
    write_streams_of(flags, layers, config, texts);
  }
  return 0;
}

}  // namespace winnow::cli
