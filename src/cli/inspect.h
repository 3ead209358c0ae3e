// `winnow inspect MODEL`: what is in a checkpoint folder, and everything that is wrong with it.
#pragma once

namespace CLI {
class App;
}

namespace winnow {

/// Adds the verb and its flags to `app`. When it is chosen, its callback prints the report to
/// stdout and sets `exit_code`: 0 when the model can be served, else 1.
void add_inspect_command(CLI::App& app, int& exit_code);

}  // namespace winnow
