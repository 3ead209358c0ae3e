#include "cli/quantize.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "base/error.h"
#include "checkpoint/inspect.h"
#include "checkpoint/quantize.h"
#include "cli/progress_bar.h"

namespace winnow {

namespace {

struct Flags {
  std::string input;
  std::string output;
  std::uint64_t max_shard_bytes = 5'000'000'000;
  bool force = false;
};

void run(const Flags& flags) {
  if (flags.max_shard_bytes == 0 || flags.max_shard_bytes > std::uint64_t{1} << 50) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("--max-shard-size {} is not between 1 byte and 1 PB", flags.max_shard_bytes));
  }
  QuantizeResult result;
  {
    ProgressBar bar("quantising");
    QuantizeOptions options;
    options.max_shard_bytes = static_cast<std::int64_t>(flags.max_shard_bytes);
    options.force = flags.force;
    options.progress = [&](std::int64_t done, std::int64_t total, std::string_view) {
      bar.update(done, total);
    };
    result = quantize_checkpoint(flags.input, flags.output, options);
  }
  fmt::print("{}: {} in {} file{}, from {} ({:.1f} %)\n", flags.output,
             bytes_text(result.bytes_out), result.num_shards, result.num_shards == 1 ? "" : "s",
             bytes_text(result.bytes_in),
             100. * static_cast<double>(result.bytes_out) / static_cast<double>(result.bytes_in));
  std::fflush(stdout);
}

}  // namespace

void add_quantize_command(CLI::App& app, int& exit_code) {
  CLI::App* const verb = app.add_subcommand(
      "quantize", "Write a checkpoint in M3.1's layout: NVFP4 experts, MXFP8 linears");
  const auto flags = std::make_shared<Flags>();
  verb->add_option("input", flags->input, "Checkpoint folder to read (BF16, F32 or quantised)")
      ->required();
  verb->add_option("output", flags->output, "Folder to write; it appears when it is complete")
      ->required();
  verb->add_option("--max-shard-size", flags->max_shard_bytes,
                   "Largest safetensors file: bytes, or with a unit such as 5GB, 500MB, 4GiB")
      ->transform(CLI::AsSizeValue(true))
      ->default_str("5GB");
  verb->add_flag("--force", flags->force, "Replace an output folder that holds a checkpoint");
  verb->callback([flags, &exit_code] {
    run(*flags);
    exit_code = 0;
  });
}

}  // namespace winnow
