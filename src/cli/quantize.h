// `winnow quantize IN OUT`: writes a checkpoint in M3.1's layout (NVFP4 experts, MXFP8 linears).
#pragma once

namespace CLI {
class App;
}

namespace winnow {

/// Adds the verb and its flags to `app`. When it is chosen, its callback quantises, shows progress
/// on stderr when that is a terminal, prints one line of sizes to stdout and sets `exit_code` to 0.
/// Throws Error as quantize_checkpoint does.
void add_quantize_command(CLI::App& app, int& exit_code);

}  // namespace winnow
