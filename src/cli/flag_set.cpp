#include "cli/flag_set.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cctype>
#include <utility>

#include "cli/foreign_habits.h"
#include "cli/usage_error.h"
#include "cli/value_grammar.h"

namespace winnow::cli {
namespace {

/// The name part of a word: `_` counts as `-`, in the first dotted component only.
std::string with_dashes(std::string name) {
  const std::size_t end = std::min(name.find('.'), name.size());
  std::replace(name.begin(), name.begin() + static_cast<std::ptrdiff_t>(end), '_', '-');
  return name;
}

bool is_number(const std::string& word) {
  return word.size() > 1 && word[0] == '-' &&
         (std::isdigit(static_cast<unsigned char>(word[1])) != 0 || word[1] == '.');
}

bool is_flag_word(const std::string& word) {
  return word.size() > 1 && word[0] == '-' && !is_number(word);
}

Json parse_object(const std::string& flag, const std::string& text) {
  Json value = Json::parse(text, nullptr, false);
  if (!value.is_object()) {
    throw UsageError(fmt::format("--{}: {} is not a JSON object", flag, text),
                     fmt::format("write --{} '{{\"key\": value}}' or --{}.key value", flag, flag));
  }
  return value;
}

void merge_objects(Json& into, const Json& from) {
  for (const auto& [key, value] : from.items()) {
    if (value.is_object() && into.contains(key) && into[key].is_object()) {
      merge_objects(into[key], value);
    } else {
      into[key] = value;
    }
  }
}

}  // namespace

FlagSet::FlagSet(const std::string& verb) : app_(std::make_unique<CLI::App>()) {
  app_->name("winnow " + verb);
  app_->get_formatter()->column_width(44);
  app_->set_help_flag("-h,--help", "Print this help and exit");
}
FlagSet::~FlagSet() = default;

void FlagSet::add(const std::string& names, Kind kind, const std::string& help,
                  const char* value_name,
                  std::function<void(const std::vector<std::string>&)> apply) {
  const std::size_t comma = names.find(',');
  const std::string name = names.substr(0, comma);
  std::string shown_help = help;
  if (comma != std::string::npos) {
    const std::string short_name = names.substr(comma + 1);
    short_names_[short_name] = name;
    shown_help += fmt::format(" (short: -{})", short_name);
  }
  auto* option =
      app_->add_option_function<std::vector<std::string>>("--" + name, apply, shown_help);
  option->type_name(kind == Kind::kSwitch ? "" : value_name)->group(group_);
  option->expected(1, -1)->delimiter('\0')->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  if (kind == Kind::kSwitch) option->type_name("[--no-…]");
  flags_.push_back({name, kind, std::move(apply)});
}

void FlagSet::add_switch(const std::string& name, bool& target, const std::string& help) {
  const std::string flag = "--" + name.substr(0, name.find(','));
  add(name, Kind::kSwitch, help, "",
      [&target, flag](const auto& values) { target = parse_boolean(flag, values.back()); });
}
void FlagSet::add_string(const std::string& name, std::string& target, const std::string& help,
                         std::vector<std::string> choices) {
  const std::string flag = "--" + name.substr(0, name.find(','));
  const std::string shown =
      choices.empty() ? help : fmt::format("{} ({})", help, fmt::join(choices, ", "));
  add(name, Kind::kValue, shown, "TEXT", [&target, flag, choices](const auto& values) {
    if (!choices.empty()) check_choice(flag, values.back(), choices);
    target = values.back();
  });
}
void FlagSet::add_integer(const std::string& name, std::optional<std::int64_t>& target,
                          const std::string& help) {
  const std::string flag = "--" + name.substr(0, name.find(','));
  add(name, Kind::kValue, help, "N",
      [&target, flag](const auto& values) { target = parse_integer(flag, values.back()); });
}
void FlagSet::add_human_integer(const std::string& name, std::optional<std::int64_t>& target,
                                const std::string& help) {
  const std::string flag = "--" + name.substr(0, name.find(','));
  add(name, Kind::kValue, help, "N[k|K|m|M|…]",
      [&target, flag](const auto& values) { target = parse_human_integer(flag, values.back()); });
}
void FlagSet::add_real(const std::string& name, double& target, const std::string& help) {
  const std::string flag = "--" + name.substr(0, name.find(','));
  add(name, Kind::kValue, help, "X",
      [&target, flag](const auto& values) { target = parse_real(flag, values.back()); });
}
void FlagSet::add_list(const std::string& name, std::vector<std::string>& target,
                       const std::string& help) {
  add(name, Kind::kList, help, "TEXT…", [&target](const auto& values) { target = values; });
}
void FlagSet::add_json(const std::string& name, Json& target, const std::string& help) {
  add(name, Kind::kJson, help, "JSON",
      [&target, name](const auto& values) { target = parse_object(name, values.back()); });
}
void FlagSet::add_positional(const std::string& name, std::vector<std::string>& target,
                             const std::string& help) {
  app_->add_option(name, target, help);
  has_positional_ = true;
}

void FlagSet::add_no_effect(const std::string& name, Kind kind, const std::string& why) {
  const std::string kept = std::exchange(group_, "Accepted without effect");
  const std::string flag = "--" + name.substr(0, name.find(','));
  add(name, kind, why, "…",
      [this, flag, why](const auto&) { notes_.push_back(fmt::format("{}: {}", flag, why)); });
  app_->get_option(flag)->group("");  // --help stays readable; docs/cli.md lists them
  group_ = kept;
}

void FlagSet::add_refused(const std::string& name, Kind kind, const std::string& why,
                          const std::string& harmless) {
  const std::string flag = "--" + name.substr(0, name.find(','));
  add(name, kind, why, "…", [flag, kind, why, harmless](const auto& values) {
    if (kind == Kind::kSwitch && !parse_boolean(flag, values.back())) return;
    if (!values.back().empty() &&
        ("|" + harmless + "|").find("|" + values.back() + "|") != std::string::npos) {
      return;
    }
    throw Error(ErrorCode::kUnsupported, fmt::format("{}: {}", flag, why));
  });
  app_->get_option(flag)->group("");
}

const FlagSet::Flag* FlagSet::find(const std::string& name) const {
  for (const Flag& flag : flags_) {
    if (flag.name == name) return &flag;
  }
  return nullptr;
}

void FlagSet::fail_unknown(const std::string& word) const {
  if (const std::string habit = foreign_habit(word); !habit.empty()) {
    throw UsageError(fmt::format("unknown flag {}; did you mean {}?", word, habit));
  }
  std::vector<std::string> names;
  for (const Flag& flag : flags_) names.push_back("--" + flag.name);
  const std::vector<std::string> near = suggestions(with_dashes(word), names);
  throw UsageError(near.empty() ? fmt::format("unknown flag {}", word)
                                : fmt::format("unknown flag {}; did you mean {}?", word,
                                              fmt::join(near, " or ")));
}

/// Walks the words and fills given_.
class FlagSet::Reader {
 public:
  Reader(FlagSet& set, const std::vector<std::string>& words) : set_(set), words_(words) {}

  std::vector<std::string> run() {
    while (at_ < words_.size()) {
      const std::string& word = words_[at_++];
      if (word == "--") {
        rest_.insert(rest_.end(), words_.begin() + static_cast<std::ptrdiff_t>(at_), words_.end());
        break;
      }
      const bool asks_help = word == "-h" || word == "--help";  // the parser below answers it
      if (word.starts_with("--") && !asks_help) {
        take_long(word, word.substr(2));
      } else if (is_flag_word(word) && !asks_help) {
        take_short(word);
      } else {
        rest_.push_back(word);
      }
    }
    return rest_;
  }

 private:
  void take_short(const std::string& word) {
    const std::size_t equals = word.find('=');
    const auto it = set_.short_names_.find(word.substr(1, equals - 1));
    if (it == set_.short_names_.end()) set_.fail_unknown(word.substr(0, equals));
    take_long(word, it->second + (equals == std::string::npos ? "" : word.substr(equals)));
  }

  void take_long(const std::string& word, const std::string& body) {
    const std::size_t equals = body.find('=');
    std::string name = with_dashes(body.substr(0, equals));
    std::optional<std::string> value;
    if (equals != std::string::npos) value = body.substr(equals + 1);
    if (const std::size_t dot = name.find('.'); dot != std::string::npos) {
      return take_member(name.substr(0, dot), name.substr(dot + 1), value, word);
    }
    bool is_negated = false;
    const Flag* flag = set_.find(name);
    if (flag == nullptr && name.starts_with("no-")) {
      flag = set_.find(name.substr(3));
      is_negated = flag != nullptr && flag->kind == Kind::kSwitch;
      if (!is_negated) flag = nullptr;
    }
    if (flag == nullptr) set_.fail_unknown(word.substr(0, word.find('=')));
    Given& given = set_.given_[flag->name];
    switch (flag->kind) {
      case Kind::kSwitch: {
        const bool is_on = !value || parse_boolean("--" + flag->name, *value);
        given.values = {is_on != is_negated ? "true" : "false"};
        break;
      }
      case Kind::kValue:
        given.values = {value ? *value : next_value(*flag)};
        break;
      case Kind::kJson:
        given.has_whole_object = true;
        whole_[flag->name] = parse_object(flag->name, value ? *value : next_value(*flag));
        merge_whole(given, flag->name);
        break;
      case Kind::kList:
        take_list(*flag, given, value);
        break;
    }
  }

  /// Dotted members win over the whole object, wherever it stands.
  void merge_whole(Given& given, const std::string& name) {
    Json merged = whole_[name];
    merge_objects(merged, members_[name].is_null() ? Json::object() : members_[name]);
    given.object = std::move(merged);
  }

  void take_member(const std::string& name, const std::string& path,
                   std::optional<std::string> value, const std::string& word) {
    const Flag* flag = set_.find(name);
    if (flag == nullptr) set_.fail_unknown("--" + name);
    if (flag->kind != Kind::kJson) {
      throw UsageError(fmt::format("{}: --{} takes no members", word, name));
    }
    if (!value) value = next_value(*flag);
    Json& members = members_[name];
    if (members.is_null()) members = Json::object();
    if (path.ends_with('+') && whole_.contains(name) && members.empty()) {
      members = whole_[name];  // so that the list it appends to is there
    }
    set_dotted_member(members, path, *value);
    if (!whole_.contains(name)) whole_[name] = Json::object();
    merge_whole(set_.given_[name], name);
  }

  void take_list(const Flag& flag, Given& given, const std::optional<std::string>& value) {
    if (fresh_lists_.insert({flag.name, true}).second) given.values.clear();
    if (value) {
      given.values.push_back(*value);
      return;
    }
    const std::size_t before = given.values.size();
    while (at_ < words_.size() && !is_flag_word(words_[at_])) {
      given.values.push_back(words_[at_++]);
    }
    if (given.values.size() == before) {
      throw UsageError(fmt::format("--{}: needs at least one value", flag.name));
    }
  }

  std::string next_value(const Flag& flag) {
    if (at_ >= words_.size() || words_[at_].starts_with("--")) {
      throw UsageError(fmt::format("--{}: needs a value", flag.name));
    }
    return words_[at_++];
  }

  FlagSet& set_;
  const std::vector<std::string>& words_;
  std::size_t at_ = 0;
  std::vector<std::string> rest_;
  std::map<std::string, Json> whole_, members_;
  std::map<std::string, bool> fresh_lists_;
};

void FlagSet::merge_file(const std::string& path) {
  for (auto& [key, values] : read_flag_file(path)) {
    const std::string name = with_dashes(key);
    if (name == "config") continue;
    const Flag* flag = find(name);
    if (flag == nullptr) {
      throw UsageError(fmt::format("{}: unknown key '{}'", path, key),
                       "keys are the long names of flags");
    }
    merge_lower(*flag, std::move(values));
  }
}

void FlagSet::merge_lower(const Flag& flag, std::vector<std::string> values) {
  if (flag.name == "model" && has_words_) return;  // the MODEL word is the same flag
  Given& given = given_[flag.name];
  if (flag.kind == Kind::kJson) {
    Json merged = parse_object(flag.name, values.back());
    if (given.object.is_object() && !given.has_whole_object) merge_objects(merged, given.object);
    if (!given.has_whole_object) given.object = std::move(merged);
  } else if (given.values.empty()) {
    given.values = std::move(values);
  }
}

std::vector<std::string> FlagSet::rewrite(const std::vector<std::string>& words) {
  given_.clear();
  notes_.clear();
  std::vector<std::string> out = Reader(*this, words).run();
  has_words_ = has_positional_ && !out.empty();
  if (const auto it = given_.find("config"); it != given_.end()) {
    const std::string path = it->second.values.back();
    merge_file(path);
  } else if (const auto path = environment_.find("WINNOW_CONFIG"); path != environment_.end()) {
    merge_file(path->second);
  }
  merge_environment(environment_);
  for (const auto& [name, given] : given_) {
    if (given.object.is_object()) {
      out.push_back(fmt::format("--{}={}", name, given.object.dump()));
      continue;
    }
    for (const std::string& value : given.values)
      out.push_back(fmt::format("--{}={}", name, value));
  }
  return out;
}

bool FlagSet::parse(const std::vector<std::string>& words) {
  std::vector<std::string> rewritten = rewrite(words);
  std::reverse(rewritten.begin(), rewritten.end());  // CLI11 takes them from the back
  try {
    app_->parse(std::move(rewritten));
  } catch (const CLI::Success& help) {
    app_->exit(help);
    return false;
  } catch (const CLI::ParseError& error) {
    throw UsageError(error.what());
  }
  return true;
}

bool FlagSet::is_given(const std::string& name) const { return given_.contains(name); }

void set_dotted_member(Json& object, const std::string& path, const std::string& value) {
  std::string rest = path;
  const bool is_append = rest.ends_with('+');
  if (is_append) rest.pop_back();
  Json* at = &object;
  for (std::size_t begin = 0;;) {
    const std::size_t dot = rest.find('.', begin);
    const std::string key = rest.substr(begin, dot - begin);
    if (key.empty()) throw UsageError(fmt::format("'{}': a member's name is empty", path));
    if (!at->is_object()) *at = Json::object();
    at = &(*at)[key];
    if (dot == std::string::npos) break;
    begin = dot + 1;
  }
  Json parsed = Json::parse(value, nullptr, false);
  if (parsed.is_discarded()) parsed = value;
  if (!is_append) {
    *at = std::move(parsed);
    return;
  }
  if (!at->is_array()) *at = at->is_null() ? Json::array() : Json::array({*at});
  at->push_back(std::move(parsed));
}

}  // namespace winnow::cli
