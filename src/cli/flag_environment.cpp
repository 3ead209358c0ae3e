// Flags from the environment: WINNOW_MAX_MODEL_LEN=32K is --max-model-len 32K. The lowest of the
// sources: the file named by --config and the command line come first.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <string_view>

#include "cli/flag_set.h"
#include "cli/value_grammar.h"

namespace winnow::cli {
namespace {

constexpr std::string_view kPrefix = "WINNOW_";
/// Of others: the list of keys (see server_flags.cpp), ./dev and the tests.
constexpr std::string_view kNotFlags[] = {"WINNOW_API_KEY", "WINNOW_BIN", "WINNOW_JOBS",
                                          "WINNOW_TEST_BACKEND"};

std::string flag_name(std::string_view variable) {
  std::string name(variable.substr(kPrefix.size()));
  std::ranges::transform(name, name.begin(), [](unsigned char c) {
    return c == '_' ? '-' : static_cast<char>(std::tolower(c));
  });
  return name;
}

/// One value, or the members of a JSON list.
std::vector<std::string> values_of(const std::string& text, bool is_list) {
  const Json list = is_list ? Json::parse(text, nullptr, false) : Json();
  if (!list.is_array()) return {text};
  std::vector<std::string> out;
  for (const Json& item : list) {
    out.push_back(item.is_string() ? item.get<std::string>() : item.dump());
  }
  return out;
}

}  // namespace

std::map<std::string, std::string> flag_variables() {
  std::map<std::string, std::string> out;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::size_t equals = text.find('=');
    const std::string_view name = text.substr(0, equals);
    if (equals == std::string_view::npos || !name.starts_with(kPrefix)) continue;
    if (std::ranges::find(kNotFlags, name) != std::end(kNotFlags)) continue;
    if (text.size() > equals + 1) out.emplace(name, text.substr(equals + 1));
  }
  return out;
}

void FlagSet::merge_environment(const std::map<std::string, std::string>& variables) {
  std::vector<std::string> names;
  for (const Flag& flag : flags_) names.push_back(flag.name);
  for (const auto& [variable, text] : variables) {
    const std::string name = flag_name(variable);
    const Flag* flag = find(name);
    if (flag == nullptr) {
      const std::vector<std::string> near = suggestions(name, names, 1);
      notes_.push_back(fmt::format(
          "{} names no flag{}", variable,
          near.empty() ? "" : fmt::format("; did you mean the variable of --{}?", near[0])));
      continue;
    }
    merge_lower(*flag, values_of(text, flag->kind == Kind::kList));
  }
}

}  // namespace winnow::cli
