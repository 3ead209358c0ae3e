// `winnow check DIR`: is this build's forward pass the public implementation's?
#pragma once

namespace CLI {
class App;
}

namespace winnow {

/// Adds the verb and its flags to `app`. When it is chosen, its callback prints the report to
/// stdout and sets `exit_code`: 0 within the tolerance, 1 beyond. Throws Error as check_model does.
void add_check_command(CLI::App& app, int& exit_code);

}  // namespace winnow
