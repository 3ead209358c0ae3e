#include "cli/inspect.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "checkpoint/inspect.h"

namespace winnow {

void add_inspect_command(CLI::App& app, int& exit_code) {
  struct Flags {
    std::string folder;
    bool as_json = false;
    bool headers_only = false;
  };
  CLI::App* const verb = app.add_subcommand(
      "inspect", "Show a checkpoint's config, tensors and formats, and all its problems");
  const auto flags = std::make_shared<Flags>();
  verb->add_option("model", flags->folder, "Folder with config.json and *.safetensors")->required();
  verb->add_flag("--json", flags->as_json, "Print one JSON object");
  verb->add_flag("--headers-only", flags->headers_only,
                 "Do not read the scales: quick on a slow disk, but finds no bad scale");
  verb->callback([flags, &exit_code] {
    const Inspection inspection = inspect_checkpoint(flags->folder, !flags->headers_only);
    fmt::print("{}", flags->as_json ? inspection_to_json(inspection).dump(2) + "\n"
                                    : render_inspection(inspection));
    std::fflush(stdout);
    exit_code = inspection.is_usable() ? 0 : 1;
  });
}

}  // namespace winnow
