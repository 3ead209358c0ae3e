// Typed access to the keys of a JSON object, collecting problems. Used by the
// configs of the model and of its drafter.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/problem_list.h"

namespace winnow {

/// An empty object for null and for any other kind of value.
inline const nlohmann::json& object_or_empty(const nlohmann::json* value) {
  static const nlohmann::json kEmpty = nlohmann::json::object();
  return value != nullptr && value->is_object() ? *value : kEmpty;
}

/// Each getter takes the spellings of one key, newest last; the first that is present and not null
/// counts, and another present spelling must agree.
class ConfigReader {
 public:
  using Keys = std::initializer_list<const char*>;

  /// `where` is put before keys in messages, e.g. "text_config."; `file` before all of it.
  ConfigReader(const nlohmann::json& object, std::string where, ProblemList& problems,
               std::string file = "config.json")
      : object_(&object), where_(std::move(where)), file_(std::move(file)), problems_(&problems) {}

  bool has(const char* key) const { return find({key}).value != nullptr; }

  /// An integer in [min, max], which the result always is or 0; a missing key is a problem without
  /// `fallback`.
  std::int64_t integer(Keys keys, std::int64_t min, std::int64_t max,
                       std::optional<std::int64_t> fallback = std::nullopt) const {
    const Found found = find(keys);
    if (found.value == nullptr) return fallback ? *fallback : missing<std::int64_t>(keys);
    if (!found.value->is_number_integer() ||
        (found.value->is_number_unsigned() &&
         found.value->get<std::uint64_t>() > std::uint64_t{INT64_MAX})) {
      refuse(found.key, *found.value, "an integer");
      return min;
    }
    const auto value = found.value->get<std::int64_t>();
    if (value < min || value > max) {
      refuse(found.key, *found.value, fmt::format("{} to {}", min, max));
    }
    return std::clamp(value, min, max);
  }

  std::int32_t count(Keys keys, std::int32_t max) const {
    return static_cast<std::int32_t>(integer(keys, 1, max));
  }

  /// A finite number above 0.
  double positive(Keys keys) const {
    const Found found = find(keys);
    if (found.value == nullptr) return missing<double>(keys);
    const double value = found.value->is_number() ? found.value->get<double>() : 0.;
    if (!(value > 0.) || value > 1e30) refuse(found.key, *found.value, "a number above 0");
    return value;
  }

  std::optional<double> number(const char* key) const {
    const Found found = find({key});
    if (found.value == nullptr) return std::nullopt;
    if (!found.value->is_number()) {
      refuse(found.key, *found.value, "a number");
      return std::nullopt;
    }
    return found.value->get<double>();
  }

  bool boolean(const char* key, bool fallback) const {
    const Found found = find({key});
    if (found.value == nullptr) return fallback;
    if (!found.value->is_boolean()) {
      refuse(found.key, *found.value, "true or false");
      return fallback;
    }
    return found.value->get<bool>();
  }

  /// A key that this program has one answer to: absent, or `expected`.
  void must_be(const char* key, const nlohmann::json& expected) const {
    const Found found = find({key});
    if (found.value != nullptr && *found.value != expected) {
      refuse(found.key, *found.value, expected.dump());
    }
  }

  std::string text(Keys keys) const {
    const Found found = find(keys);
    if (found.value == nullptr) return {};
    if (!found.value->is_string()) {
      refuse(found.key, *found.value, "a string");
      return {};
    }
    return found.value->get<std::string>();
  }

  /// One entry per layer, each mapped by `map` (nullopt refuses it); empty when the key is absent.
  template <typename Map>
  std::vector<bool> per_layer(const char* key, std::size_t num_layers, std::string_view accepted,
                              Map map) const {
    const Found found = find({key});
    std::vector<bool> flags;
    if (found.value == nullptr) return flags;
    if (!found.value->is_array() || found.value->size() != num_layers) {
      problems_->add(fmt::format("{}: {}{} is {}, expected a list of {} entries", file_, where_,
                                 key, describe(*found.value), num_layers));
      return flags;
    }
    for (const nlohmann::json& entry : *found.value) {
      const std::optional<bool> flag = map(entry);
      if (!flag) {
        refuse(fmt::format("{}[{}]", key, flags.size()), entry, accepted);
      }
      flags.push_back(flag.value_or(false));
    }
    return flags;
  }

  const nlohmann::json* value(const char* key) const { return find({key}).value; }

  void problem(std::string_view text) const { problems_->add(fmt::format("{}: {}", file_, text)); }

  void refuse(std::string_view key, const nlohmann::json& value, std::string_view accepted) const {
    problems_->add(
        fmt::format("{}: {}{} is {}, expected {}", file_, where_, key, describe(value), accepted));
  }

 private:
  struct Found {
    const char* key = nullptr;
    const nlohmann::json* value = nullptr;
  };

  Found find(Keys keys) const {
    Found first;
    for (const char* key : keys) {
      const auto at = object_->find(key);
      if (at == object_->end() || at->is_null()) continue;
      if (first.value == nullptr) {
        first = {.key = key, .value = &*at};
      } else if (*first.value != *at) {
        problems_->add(fmt::format("{5}: {0}{1} is {2} but {0}{3} is {4}, expected one value",
                                   where_, first.key, describe(*first.value), key, describe(*at),
                                   file_));
      }
    }
    return first;
  }

  template <typename T>
  T missing(Keys keys) const {
    std::string names;
    for (const char* key : keys) names += fmt::format("{}{}", names.empty() ? "" : " or ", key);
    problems_->add(fmt::format("{}: {}{} is missing", file_, where_, names));
    return T{};
  }

  static std::string describe(const nlohmann::json& value) {
    if (value.is_array()) return fmt::format("a list of {} entries", value.size());
    if (value.is_object()) return "an object";
    return printable(value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }

  const nlohmann::json* object_;
  std::string where_;
  std::string file_;
  ProblemList* problems_;
};

}  // namespace winnow
