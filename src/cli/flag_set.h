// The flags of a verb, in the grammar of `vllm serve`: `-` and `_` are equal, --flag=value and
// --flag value, --no- forms, JSON flags with dotted members, a YAML file, multi-letter short forms.
// Rewrites all of that into plain --flag=value words that CLI11 parses. Source:
// spec/serving.md 1.1, serving-fields.md 1.3.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace winnow::cli {

using Json = nlohmann::ordered_json;

class FlagSet {
 public:
  enum class Kind { kSwitch, kValue, kList, kJson };

  explicit FlagSet(const std::string& verb);
  ~FlagSet();
  FlagSet(const FlagSet&) = delete;
  FlagSet& operator=(const FlagSet&) = delete;

  /// Following flags are listed under this heading in --help.
  void group(std::string title) { group_ = std::move(title); }

  // `name` without dashes; a second name after a comma is a short form ("tensor-parallel-size,tp").
  void add_switch(const std::string& name, bool& target, const std::string& help);
  void add_string(const std::string& name, std::string& target, const std::string& help,
                  std::vector<std::string> choices = {});
  void add_integer(const std::string& name, std::optional<std::int64_t>& target,
                   const std::string& help);
  /// With k, K, m, M, … suffixes.
  void add_human_integer(const std::string& name, std::optional<std::int64_t>& target,
                         const std::string& help);
  void add_real(const std::string& name, double& target, const std::string& help);
  void add_list(const std::string& name, std::vector<std::string>& target, const std::string& help);
  void add_json(const std::string& name, Json& target, const std::string& help);
  /// Positional words.
  void add_positional(const std::string& name, std::vector<std::string>& target,
                      const std::string& help);

  /// Understood and without effect here: used once, a note says why.
  void add_no_effect(const std::string& name, Kind kind, const std::string& why);
  /// Understood and refused (exit code 1) when used; an --no- form or `false` of a switch, and a
  /// value among `harmless` ("a|b"), are accepted.
  void add_refused(const std::string& name, Kind kind, const std::string& why,
                   const std::string& harmless = {});

  /// Variables that parse() takes for flags that neither the words nor the file give.
  void set_environment(std::map<std::string, std::string> variables) {
    environment_ = std::move(variables);
  }

  /// Sets the targets. `words` come after the verb. False when --help was printed. Throws
  /// UsageError; Error{kUnsupported} for a refused flag.
  [[nodiscard]] bool parse(const std::vector<std::string>& words);

  /// Whether the flag was given on the command line, in the file or in the environment.
  bool is_given(const std::string& name) const;
  /// One line per flag without effect that was given, and per variable that names no flag.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  struct Flag {
    std::string name;
    Kind kind;
    std::function<void(const std::vector<std::string>&)> apply;
  };
  struct Given {
    std::vector<std::string> values;
    bool has_whole_object = false;
    Json object;  // of a JSON flag: the whole, then dotted members
  };
  class Reader;

  void add(const std::string& names, Kind kind, const std::string& help, const char* value_name,
           std::function<void(const std::vector<std::string>&)> apply);
  const Flag* find(const std::string& name) const;
  [[noreturn]] void fail_unknown(const std::string& word) const;
  std::vector<std::string> rewrite(const std::vector<std::string>& words);
  void merge_file(const std::string& path);
  void merge_environment(const std::map<std::string, std::string>& variables);
  /// Takes values for what no source above has given.
  void merge_lower(const Flag& flag, std::vector<std::string> values);

  std::unique_ptr<CLI::App> app_;
  std::string group_ = "Options";
  std::vector<Flag> flags_;
  std::map<std::string, std::string> short_names_;  // "tp" → "tensor-parallel-size"
  std::map<std::string, Given> given_;
  std::map<std::string, std::string> environment_;
  std::vector<std::string> notes_;
  bool has_positional_ = false;
  bool has_words_ = false;  // positional ones, on the command line
};

/// {"a": {"b": 1}} from "a.b" and "1"; a trailing '+' on the path appends to a list. The value is
/// JSON when it parses, else a string.
void set_dotted_member(Json& object, const std::string& path, const std::string& value);

/// The process's variables WINNOW_… that may be flags, by name.
std::map<std::string, std::string> flag_variables();

/// The members of a YAML mapping as flag values: scalars as written, lists as several values,
/// mappings as JSON. Throws Error{kIo, kInvalidArgument} naming file and line.
std::vector<std::pair<std::string, std::vector<std::string>>> read_flag_file(
    const std::string& path);

}  // namespace winnow::cli
