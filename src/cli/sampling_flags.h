// Sampling on the command line, for chat and generate.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/flag_set.h"

namespace winnow::cli {

struct SamplingFlags {
  std::optional<std::int64_t> max_tokens, top_k;
  std::string temperature, top_p, min_p;  // numbers; empty: the checkpoint's default
  std::vector<std::string> stop;
  std::string system;
  std::string thinking;  // enabled, disabled, adaptive
};

void add_sampling_flags(FlagSet& set, SamplingFlags& flags);

/// Members of a request body. `seed` is the engine's flag: given, it is the request's as well.
void write_sampling(const SamplingFlags& flags, const std::optional<std::int64_t>& seed,
                    Json& body);

}  // namespace winnow::cli
