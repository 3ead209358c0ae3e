// Sampling defaults: the checkpoint's, a folder's or neutral ones, with overrides laid over.
#pragma once

#include "checkpoint/model_config.h"
#include "cli/engine_flags.h"
#include "server/generation.h"

namespace winnow::cli {

/// Throws UsageError for a wrong type in the override, Error{kInvalidCheckpoint} for the file.
server::GenerationDefaults read_generation_defaults(const EngineFlags& flags,
                                                    const ModelConfig& config);

}  // namespace winnow::cli
