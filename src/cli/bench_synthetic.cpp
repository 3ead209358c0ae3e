// winnow bench latency --synthetic-weights: steps of a model with M3.1's real shapes and as many
// layers as fit, beside the time that their bytes need at this device's copy speed.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>

#include "base/log.h"
#include "cli/engine_flags.h"
#include "cli/progress_bar.h"
#include "cli/usage_error.h"
#include "cli/value_grammar.h"
#include "cli/verbs.h"
#include "engine/engine.h"
#include "load/statistics.h"
#include "model/synthetic_model.h"

namespace winnow::cli {
namespace {

constexpr std::int32_t kPublishedLayers = 60;
constexpr CacheDType kDrafterCache = CacheDType::kFp8;  // of the drafter's cache

struct SyntheticFlags {
  EngineFlags engine;
  std::optional<std::int64_t> num_layers, num_iters, max_num_batched_tokens, num_drafts;
  double acceptance_length = 3.2;
  std::string batch_sizes = "1,2,4,8,16,32";
  std::string contexts = "4K,32K,128K,512K";
  std::string prefills = "512,2K,8K,32K";
  std::string output_json;
};

double seconds_of(const std::function<void()>& work) {
  const auto start = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Bytes a second of a large copy inside the backend's memory, read and written.
double copy_speed(ops::Memory& memory) {
  constexpr std::int64_t kBytes = std::int64_t{1} << 31;
  const ops::Array<std::byte> from(std::shared_ptr<ops::Memory>(&memory, [](auto*) {}), kBytes,
                                   "measuring");
  const ops::Array<std::byte> to(std::shared_ptr<ops::Memory>(&memory, [](auto*) {}), kBytes,
                                 "measuring");
  std::vector<double> times;
  std::byte last{};
  for (int i = 0; i < 8; ++i) {
    constexpr int kCopies = 8;
    times.push_back(seconds_of([&] {
                      for (int copy = 0; copy < kCopies; ++copy)
                        memory.copy(to.data(), from.data(), kBytes);
                      memory.download(&last, to.data(), 1);
                    }) /
                    kCopies);
  }
  return 2.0 * kBytes / load::median(times);
}

/// Any values but NaN in every cache dtype, so that steps compute with ordinary numbers.
void fill_pool(Decoder& decoder) {
  const std::int64_t num_bytes = decoder.cache_layout().row_bytes() * decoder.num_blocks();
  std::vector<std::uint8_t> pattern(
      static_cast<std::size_t>(std::min<std::int64_t>(num_bytes, std::int64_t{32} << 20)));
  std::uint32_t state = 7;
  for (std::uint8_t& byte : pattern) {
    state = state * 1664525U + 1013904223U;
    byte = static_cast<std::uint8_t>(state >> 24U & 0xBFU);
  }
  ops::Memory& memory = *decoder.memory();
  std::byte* const pool = decoder.cache_view().pool;
  memory.upload(pool, pattern.data(), std::ssize(pattern));
  for (std::int64_t done = std::ssize(pattern); done < num_bytes;) {
    const std::int64_t count = std::min(done, num_bytes - done);
    memory.copy(pool + done, pool, count);
    done += count;
  }
}

class SyntheticBench {
 public:
  SyntheticBench(const SyntheticFlags& flags, std::vector<std::int64_t> batch_sizes,
                 std::vector<std::int64_t> contexts, std::vector<std::int64_t> prefills)
      : flags_(flags),
        batch_sizes_(std::move(batch_sizes)),
        contexts_(std::move(contexts)),
        prefills_(std::move(prefills)),
        chunk_(flags.max_num_batched_tokens.value_or(8192)),
        num_iters_(flags.num_iters.value_or(30)),
        num_drafts_(flags.num_drafts.value_or(0)) {}

  Json run() {
    load();
    Json report{{"setting", setting()}, {"decode", Json::array()}, {"prefill", Json::array()}};
    fmt::print("{}\n\n", report["setting"].dump());
    fmt::print("{:>6} {:>8} {:>11} {:>11} {:>10} {:>9} {:>10} {:>13}\n", "tokens", "context",
               "step us", "layer us", "GB", "floor us", "of floor", "60 layers ms");
    for (const std::int64_t context : contexts_) {
      for (const std::int64_t batch : batch_sizes_) {
        if (!fits(batch, context)) continue;
        report["decode"].push_back(decode(batch, context));
      }
    }
    if (num_drafts_ > 0) report["speculation"] = speculate_all();
    fmt::print("\n{:>8} {:>11} {:>11} {:>10} {:>13} {:>16}\n", "prefill", "ms", "layer us",
               "TFLOP/s", "60 layers ms", "60 layers tok/s");
    for (const std::int64_t tokens : prefills_) {
      if (fits(1, tokens)) report["prefill"].push_back(prefill(tokens));
    }
    return report;
  }

 private:
  std::int64_t blocks_of(std::int64_t batch, std::int64_t context) const {
    return batch * ((context + 127) / 128 + 1);
  }
  bool fits(std::int64_t batch, std::int64_t context) const {
    return blocks_of(batch, context) <= decoder_->num_blocks() && batch <= chunk_;
  }

  void load() {
    ops::Backend backend = ops::make_backend(backend_name(flags_.engine), detect_machine());
    copy_speed_ = copy_speed(*backend.memory);
    std::int64_t num_blocks = 1;
    for (const std::int64_t context : contexts_) {
      for (const std::int64_t batch : batch_sizes_) {
        num_blocks = std::max(num_blocks, blocks_of(batch, context + num_drafts_));
      }
    }
    for (const std::int64_t tokens : prefills_) {
      num_blocks = std::max(num_blocks, blocks_of(1, tokens));
    }
    DecoderOptions options;
    options.max_num_batched_tokens = static_cast<std::int32_t>(chunk_);
    options.kv_dtype = dtype_of(flags_.engine.kv_cache_dtype);
    options.index_dtype = options.kv_dtype;
    if (num_drafts_ > 0)
      options.drafter_cache = drafter_cache_shape(m31_drafter_config(1), kDrafterCache);
    const CacheRowLayout one_layer = layout_of(options);
    const std::int64_t per_layer = m31_layer_bytes() + one_layer.row_bytes() * num_blocks;
    // What a step takes besides: activations and scratch of the largest chunk, graphs.
    std::int64_t besides = m31_head_bytes() + chunk_ * 800'000 + (std::int64_t{3} << 30);
    if (num_drafts_ > 0) besides += std::int64_t{3} << 30;  // the drafter
    const std::int64_t fitting = std::clamp<std::int64_t>(
        (backend.memory->available_bytes() - besides) / per_layer, 1, kPublishedLayers);
    const std::int64_t num_layers = flags_.num_layers.value_or(fitting);
    const DrafterConfig drafter = m31_drafter_config(static_cast<std::int32_t>(num_layers));
    if (num_drafts_ > 0) options.captured_layers = drafter.target_layers;
    ProgressBar bar("making weights");
    decoder_ = make_synthetic_decoder(
        m31_config(static_cast<std::int32_t>(num_layers)), backend, options,
        [&bar](std::int64_t done, std::int64_t total) { bar.update(done, total); });
    decoder_->allocate_pool(static_cast<std::int32_t>(num_blocks));
    fill_pool(*decoder_);
    if (num_drafts_ == 0) return;
    const std::int64_t longest = std::max(*std::ranges::max_element(contexts_), std::int64_t{1});
    drafter_ = make_synthetic_drafter(drafter, *decoder_, longest + 2 * drafter.block_size);
    decoder_->set_drafter(drafter_.get());
  }

  static std::optional<CacheDType> dtype_of(const std::string& name) {
    if (name.empty() || name == "auto") return std::nullopt;
    return parse_cache_dtype(name);
  }

  static CacheRowLayout layout_of(const DecoderOptions& options) {
    const ModelConfig config = m31_config(1);
    return CacheRowLayout({.num_layers = 1,
                           .index_layers = {0},
                           .num_kv_heads = config.num_kv_heads,
                           .head_dim = config.head_dim,
                           .index_head_dim = config.index_head_dim,
                           .block_tokens = config.block_tokens,
                           .kv_dtype = options.kv_dtype.value_or(CacheDType::kNvfp4),
                           .index_dtype = options.index_dtype.value_or(CacheDType::kNvfp4),
                           .drafter = options.drafter_cache});
  }

  Json setting() const {
    const CacheRowShape& cache = decoder_->cache_layout().shape();
    return {
        {"machine", decoder_->backend().machine},
        {"kernels", decoder_->backend().name},
        {"layers", decoder_->config().num_layers},
        {"weight_gb", static_cast<double>(decoder_->weight_bytes()) / 1e9},
        {"pool_gb",
         static_cast<double>(decoder_->cache_layout().row_bytes() * decoder_->num_blocks()) / 1e9},
        {"kv_cache", cache_dtype_name(cache.kv_dtype)},
        {"dequant", dequant_mode_name(decoder_->dequant_mode())},
        {"copy_tb_s", copy_speed_ / 1e12},
        {"iterations", num_iters_}};
  }

  TokenId token_of(std::uint64_t draw, std::int64_t number) const {
    return static_cast<TokenId>((draw * 7919U + static_cast<std::uint64_t>(number) * 104729U) %
                                static_cast<std::uint64_t>(decoder_->vocab_size()));
  }

  /// `batch` sequences with `count` new tokens each, the last at the end of `context` tokens.
  Batch decode_batch(std::int64_t batch, std::int64_t context, std::uint32_t draw,
                     std::int64_t count = 1) {
    const std::int64_t blocks = (context + 127) / 128;
    tables_.assign(static_cast<std::size_t>(batch), {});
    Batch step;
    for (std::int64_t s = 0; s < batch; ++s) {
      auto& table = tables_[static_cast<std::size_t>(s)];
      // Rows of one sequence lie scattered over the pool, as after some hours of serving.
      for (std::int64_t b = 0; b < blocks; ++b) {
        table.push_back({static_cast<std::int32_t>((b * batch + s) % decoder_->num_blocks())});
      }
      step.sequences.push_back({.first_token = static_cast<std::int32_t>(s * count),
                                .num_tokens = static_cast<std::int32_t>(count),
                                .first_position = static_cast<std::int32_t>(context - count),
                                .block_table = table});
      for (std::int64_t i = s * count; i < (s + 1) * count; ++i) {
        step.tokens.push_back(token_of(draw, i));
        step.logit_rows.push_back(static_cast<std::int32_t>(i));
      }
    }
    return step;
  }

  /// A step of the target that draws a token from each of its rows, and brings back nothing else.
  double timed_step(const Batch& step) {
    const std::size_t rows = step.logit_rows.size();
    std::vector<ops::Draw> draws(rows);
    for (std::size_t i = 0; i < rows; ++i) draws[i].row = static_cast<std::int32_t>(i);
    std::vector<ops::Drawn> drawn(rows);
    const std::vector<std::uint8_t> wants_row(rows, 0);
    step_logits_.resize(rows * static_cast<std::size_t>(decoder_->vocab_size()));
    return seconds_of([&] {
      decoder_->run_and_draw(
          step, {.draws = draws, .drawn = drawn, .wants_row = wants_row, .logits = step_logits_});
    });
  }

  Json speculate_all() {
    fmt::print(
        "\nspeculation, {} drafts; drafting is of 60 layers' verifying step\n"
        "{:>6} {:>8} {:>11} {:>11} {:>11} {:>11} {:>9} {:>11} {:>11}\n",
        num_drafts_, "tokens", "context", "draft us", "context us", "verify us", "plain us",
        "drafting", "tok/s plain", "tok/s");
    Json rows = Json::array();
    for (const std::int64_t context : contexts_) {
      for (const std::int64_t batch : batch_sizes_) {
        if (fits(batch, context + num_drafts_)) rows.push_back(speculate(batch, context));
      }
    }
    return rows;
  }

  /// What a step with drafts is made of: the block, its verification, the context of what is kept.
  Json speculate(std::int64_t batch, std::int64_t context) {
    const double length = flags_.acceptance_length;
    const std::int64_t kept = std::clamp<std::int64_t>(std::llround(length), 1, num_drafts_ + 1);
    std::vector<double> draft, verify, commit, plain;
    constexpr std::int64_t kWarmup = 3;
    const auto keep = [&](std::int64_t i, std::vector<double>& times, double seconds) {
      if (i >= 0) times.push_back(seconds);
    };
    for (std::int64_t i = -kWarmup; i < num_iters_; ++i) {
      const auto turn = static_cast<std::uint32_t>(i + kWarmup);
      keep(i, plain, timed_step(decode_batch(batch, context, turn)));
      const Batch step = decode_batch(batch, context + num_drafts_, turn, num_drafts_ + 1);
      keep(i, draft, timed_draft(step));
      keep(i, verify, timed_step(step));
      std::vector<ContextSlice> slices;
      for (const BatchSequence& sequence : step.sequences) {
        slices.push_back({.first_row = sequence.first_token,
                          .num_tokens = static_cast<std::int32_t>(kept),
                          .first_position = sequence.first_position,
                          .block_table = sequence.block_table});
      }
      keep(i, commit, seconds_of([&] {
             decoder_->commit_context(slices);
             decoder_->memory()->finish();
           }));
    }
    const double drafting = load::median(draft) + load::median(commit);
    const double published = published_seconds(load::median(verify));
    const double plain_rate = static_cast<double>(batch) / published_seconds(load::median(plain));
    const double rate = static_cast<double>(batch) * length / (published + drafting);
    fmt::print(
        "{:>6} {:>8} {:>11.1f} {:>11.1f} {:>11.1f} {:>11.1f} {:>8.1f}% {:>11.1f} {:>11.1f}\n",
        batch, context, load::median(draft) * 1e6, load::median(commit) * 1e6,
        load::median(verify) * 1e6, load::median(plain) * 1e6, drafting / published * 100,
        plain_rate, rate);
    std::fflush(stdout);
    return {{"tokens", batch},
            {"context", context},
            {"drafts", num_drafts_},
            {"acceptance_length", length},
            {"draft_us", load::median(draft) * 1e6},
            {"context_us", load::median(commit) * 1e6},
            {"verify_us", load::median(verify) * 1e6},
            {"plain_us", load::median(plain) * 1e6},
            {"drafting_of_verify_60", drafting / published},
            {"plain_tok_s_60", plain_rate},
            {"tok_s_60", rate}};
  }

  /// Drafts behind the tokens before the step's.
  double timed_draft(const Batch& step) {
    std::vector<DraftRequest> requests;
    std::vector<ops::Draw> draws;
    for (const BatchSequence& sequence : step.sequences) {
      requests.push_back({.anchor = step.tokens[static_cast<std::size_t>(sequence.first_token)],
                          .position = sequence.first_position,
                          .block_table = sequence.block_table});
    }
    draws.resize(requests.size() * static_cast<std::size_t>(num_drafts_));
    std::vector<ops::Drawn> drawn(draws.size());
    return seconds_of([&] {
      decoder_->draft_and_draw(requests, static_cast<std::int32_t>(num_drafts_),
                               {.draws = draws, .drawn = drawn});
    });
  }

  /// A step of these layers as one of the published model's.
  double published_seconds(double seconds) const {
    const double head = static_cast<double>(m31_head_bytes()) / 2 / copy_speed_;
    return (seconds - head) / decoder_->config().num_layers * kPublishedLayers + head;
  }

  Json decode(std::int64_t batch, std::int64_t context) {
    const auto num_logits = static_cast<std::size_t>(batch * decoder_->vocab_size());
    std::vector<float> own_logits;
    float* room = decoder_->logits_room(batch);  // where the engine has them copied
    if (room == nullptr) {
      own_logits.resize(num_logits);
      room = own_logits.data();
    }
    const std::span<float> logits(room, num_logits);
    CountExperts experts;
    decoder_->set_trace(&experts);
    decoder_->run(decode_batch(batch, context, 0), logits);
    decoder_->set_trace(nullptr);
    std::vector<double> times;
    constexpr std::int64_t kWarmup = 3;  // as it is, recorded, replayed
    for (std::int64_t i = -kWarmup; i < num_iters_; ++i) {
      const Batch step = decode_batch(batch, context, static_cast<std::uint32_t>(i + kWarmup));
      const double seconds = seconds_of([&] { decoder_->run(step, logits); });
      if (i >= 0) times.push_back(seconds);
    }
    const double seconds = load::median(times);
    const double num_layers = decoder_->config().num_layers;
    const double num_experts = static_cast<double>(experts.num_distinct()) / num_layers;
    const double layer_bytes = decode_layer_bytes(batch, context, num_experts);
    const double head_bytes = static_cast<double>(m31_head_bytes()) / 2;
    const double bytes = layer_bytes * num_layers + head_bytes;
    const double floor = bytes / copy_speed_;
    const double layer = (seconds - head_bytes / copy_speed_) / num_layers;
    const double published = published_seconds(seconds);
    fmt::print("{:>6} {:>8} {:>11.1f} {:>11.1f} {:>10.2f} {:>9.1f} {:>10.2f} {:>13.2f}\n", batch,
               context, seconds * 1e6, layer * 1e6, bytes / 1e9, floor * 1e6, floor / seconds,
               published * 1e3);
    std::fflush(stdout);
    return {{"tokens", batch},
            {"context", context},
            {"step_us", seconds * 1e6},
            {"layer_us", layer * 1e6},
            {"experts_a_layer", num_experts},
            {"bytes", bytes},
            {"floor_us", floor * 1e6},
            {"of_floor", floor / seconds}};
  }

  /// Weights of what a layer's tokens use, the cache they read and the part of it they write.
  double decode_layer_bytes(std::int64_t batch, std::int64_t context, double num_experts) const {
    const ModelConfig& config = decoder_->config();
    const auto expert =
        static_cast<double>(std::int64_t{3} * config.hidden_size * config.moe_intermediate) *
        0.5625;
    const double all_experts = expert * config.num_experts;
    const CacheRowShape& cache = decoder_->cache_layout().shape();
    const auto vector_bytes = [&](CacheDType dtype) {
      return static_cast<double>(cache_data_bytes(dtype, config.head_dim) +
                                 cache_scale_bytes(dtype, config.head_dim));
    };
    const double attended = static_cast<double>(
        std::min<std::int64_t>(context, std::int64_t{config.top_k_blocks} * config.block_tokens));
    const double kv = attended * 2 * config.num_kv_heads * vector_bytes(cache.kv_dtype);
    const double index = static_cast<double>(context) * vector_bytes(cache.index_dtype);
    return static_cast<double>(m31_layer_bytes()) - all_experts + expert * num_experts +
           static_cast<double>(batch) * (kv + index);
  }

  Json prefill(std::int64_t tokens) {
    std::vector<BlockId> table;
    for (std::int64_t b = 0; b < (tokens + 127) / 128; ++b) {
      table.push_back({static_cast<std::int32_t>(b)});
    }
    std::vector<float> logits(static_cast<std::size_t>(decoder_->vocab_size()));
    const auto once = [&](std::uint32_t draw) {
      for (std::int64_t first = 0; first < tokens; first += chunk_) {
        const std::int64_t count = std::min(chunk_, tokens - first);
        Batch step;
        for (std::int64_t t = 0; t < count; ++t) {
          step.tokens.push_back(static_cast<TokenId>(
              (draw * 7919U + static_cast<std::uint64_t>(first + t) * 104729U) %
              static_cast<std::uint64_t>(decoder_->vocab_size())));
        }
        step.sequences.push_back({.first_token = 0,
                                  .num_tokens = static_cast<std::int32_t>(count),
                                  .first_position = static_cast<std::int32_t>(first),
                                  .block_table = table});
        // The last token's logits, of every chunk: so that all layers are run.
        step.logit_rows.push_back(static_cast<std::int32_t>(count - 1));
        decoder_->run(step, logits);
      }
    };
    once(0);
    std::vector<double> times;
    for (std::uint32_t i = 1; i <= 5; ++i) times.push_back(seconds_of([&] { once(i); }));
    const double seconds = load::median(times);
    const double num_layers = decoder_->config().num_layers;
    // The last layer works on one token of each chunk after its keys are in: not counted.
    const double layer = seconds / std::max(1.0, num_layers - 1);
    const double flops = prefill_layer_flops(static_cast<double>(tokens));
    const double published = layer * kPublishedLayers;
    fmt::print("{:>8} {:>11.2f} {:>11.1f} {:>10.1f} {:>13.1f} {:>16.0f}\n", tokens, seconds * 1e3,
               layer * 1e6, flops / layer / 1e12, published * 1e3,
               static_cast<double>(tokens) / published);
    std::fflush(stdout);
    return {{"tokens", tokens},
            {"seconds", seconds},
            {"layer_us", layer * 1e6},
            {"tflops", flops / layer / 1e12}};
  }

  static double prefill_layer_flops(double tokens) {
    const ModelConfig config = m31_config(1);
    const double hidden = config.hidden_size;
    const double heads = config.num_heads * config.head_dim;
    const double qkv = (config.num_heads + 2 * config.num_kv_heads + config.index_num_heads + 1) *
                       config.head_dim * hidden;
    const double experts = (config.top_k_experts + 1) * 3 * hidden * config.moe_intermediate;
    const double selected = config.top_k_blocks * config.block_tokens;
    // Keys a token attends to: all before it, up to what selection keeps.
    const double full = std::min(tokens, selected);
    const double keys = full * full / 2 + (tokens - full) * selected;
    const double scored = tokens * tokens / 2;
    return 2 * tokens * (qkv + heads * hidden + experts + config.num_experts * hidden) +
           4 * heads * keys + 2 * config.index_num_heads * config.index_head_dim * scored;
  }

  const SyntheticFlags& flags_;
  std::vector<std::int64_t> batch_sizes_, contexts_, prefills_;
  std::int64_t chunk_;
  std::int64_t num_iters_;
  double copy_speed_ = 0;
  std::int64_t num_drafts_;
  std::unique_ptr<Decoder> decoder_;
  std::unique_ptr<DsparkDrafter> drafter_;    // with drafts only
  std::vector<std::vector<BlockId>> tables_;  // of the running batch
  std::vector<float> step_logits_;
};

}  // namespace

int run_bench_synthetic(const Words& words) {
  SyntheticFlags flags;
  bool is_synthetic = false;
  flags.engine.device = "cuda";
  FlagSet set("bench latency --synthetic-weights");
  set.group("Benchmark");
  set.add_switch("synthetic-weights", is_synthetic, "Random weights of M3.1's shapes, no MODEL");
  set.add_integer("num-layers", flags.num_layers, "Layers (default: as many as fit)");
  set.add_string("batch-sizes", flags.batch_sizes, "Decode steps of so many sequences");
  set.add_string("contexts", flags.contexts, "… at the end of so many tokens");
  set.add_string("prefills", flags.prefills, "Prompts of so many tokens");
  set.add_human_integer("max-num-batched-tokens", flags.max_num_batched_tokens,
                        "Tokens of a prefill step (default 8192)");
  set.add_integer("num-drafts", flags.num_drafts,
                  "Also drafts of so many tokens, and steps that verify them");
  set.add_real("acceptance-length", flags.acceptance_length,
               "Tokens that such a step is taken to give (default 3.2)");
  set.add_integer("num-iters", flags.num_iters, "Measured steps each (default 30)");
  set.add_string("kv-cache-dtype", flags.engine.kv_cache_dtype, "As for serve");
  set.add_string("backend", flags.engine.backend, "Kernels: cuda, cuda-exact");
  set.add_string("output-json", flags.output_json, "File for the results");
  if (!set.parse(words)) return 0;
  init_log("warning");
  SyntheticBench bench(flags, parse_integer_list("--batch-sizes", flags.batch_sizes),
                       parse_integer_list("--contexts", flags.contexts),
                       parse_integer_list("--prefills", flags.prefills));
  const Json report = bench.run();
  if (flags.output_json.empty()) return 0;
  std::ofstream file(flags.output_json);
  file << report.dump(2) << '\n';
  if (!file) {
    throw Error(ErrorCode::kIo,
                fmt::format("--output-json {}: cannot be written", flags.output_json));
  }
  return 0;
}

}  // namespace winnow::cli
