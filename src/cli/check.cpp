#include "cli/check.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "base/error.h"
#include "model/check.h"
#include "ops/backend.h"

namespace winnow {
namespace {

/// Flags as given; names are parsed when the verb runs, so that their errors are ours.
struct Flags {
  std::string folder;
  std::string kv_dtype = "fp32";
  std::string index_dtype;  // empty: as kv_dtype
  std::string dequant;      // empty: what the checkpoint asks for
  CheckOptions options;
};

CheckOptions options_of(const Flags& flags) {
  CheckOptions options = flags.options;
  options.kv_dtype = parse_cache_dtype(flags.kv_dtype, "--kv-cache-dtype");
  options.index_dtype = flags.index_dtype.empty()
                            ? options.kv_dtype
                            : parse_cache_dtype(flags.index_dtype, "--indexer-kv-dtype");
  if (!flags.dequant.empty()) options.dequant = parse_dequant_mode(flags.dequant);
  if (options.chunk_tokens < 0 || options.num_threads < 0 || !(options.tolerance >= 0.0)) {
    throw Error(ErrorCode::kInvalidArgument,
                "--chunk-tokens, --threads and --tolerance may not be negative");
  }
  return options;
}

}  // namespace

void add_check_command(CLI::App& app, int& exit_code) {
  CLI::App* const verb =
      app.add_subcommand("check", "Compare the forward pass with a checkpoint's golden outputs");
  const auto flags = std::make_shared<Flags>();
  verb->add_option("model", flags->folder, "Checkpoint folder")->required();
  verb->add_option("--golden", flags->options.golden,
                   "File of outputs to compare with; default: golden.safetensors in the folder");
  verb->add_option("--lora", flags->options.adapter,
                   "Folder of an adapter to run with; the golden outputs are then to be its own");
  verb->add_option("--backend", flags->options.backend,
                   fmt::format("{}", fmt::join(ops::kBackendNames, ", ")))
      ->capture_default_str();
  verb->add_option("--kv-cache-dtype", flags->kv_dtype,
                   "fp32, bf16, fp8 or nvfp4; golden outputs were made without quantised caches")
      ->capture_default_str();
  verb->add_option("--indexer-kv-dtype", flags->index_dtype, "The same for index keys");
  verb->add_option("--dequant", flags->dequant, "How NVFP4 is read: e4m3 or exact");
  verb->add_option("--chunk-tokens", flags->options.chunk_tokens,
                   "Tokens of one step; 0: the whole prompt at once")
      ->capture_default_str();
  verb->add_option("--threads", flags->options.num_threads, "0: one per physical core")
      ->capture_default_str();
  verb->add_option("--tolerance", flags->options.tolerance,
                   "Largest error, relative to the largest reference magnitude")
      ->capture_default_str();
  verb->callback([flags, &exit_code] {
    const CheckReport report = check_model(flags->folder, options_of(*flags));
    fmt::print("{}", report.text());
    exit_code = report.passed ? 0 : 1;
  });
}

}  // namespace winnow
