// Typed reading of a JSON object's members: every wrong type is an error that names the field.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace winnow::server {

using Json = nlohmann::ordered_json;

/// Parses a request body: an object within the depth limit, without non-finite numbers. Throws
/// Error{kInvalidJson}, or {kInvalidArgument} naming the field.
Json parse_body(std::string_view text);

/// "a string", "true", "an array": for messages about wrong types.
std::string describe(const Json& value);

/// A null member counts as absent. Remembers which names were asked for, so that what is left can
/// be reported.
class Fields {
 public:
  /// `path` prefixes the names in errors ("messages[3]"); empty for the body.
  explicit Fields(const Json& object, std::string path = {});

  const Json* find(std::string_view name);
  std::optional<bool> boolean(std::string_view name);
  std::optional<double> number(std::string_view name);  // finite
  std::optional<std::int64_t> integer(std::string_view name);
  std::optional<std::string> string(std::string_view name);
  const Json* array(std::string_view name);
  const Json* object(std::string_view name);
  /// A string or a list of strings.
  std::optional<std::vector<std::string>> strings(std::string_view name);
  std::optional<std::vector<std::int64_t>> integers(std::string_view name);

  /// integer() within [low, high]; the error names the bounds.
  std::optional<std::int64_t> integer_in(std::string_view name, std::int64_t low,
                                         std::int64_t high);

  /// Marks a member as known and unused.
  void ignore(std::string_view name);
  /// Members nobody asked for.
  std::vector<std::string> unknown() const;

  std::string full_name(std::string_view name) const;
  [[noreturn]] void fail(std::string_view name, const std::string& what) const;

 private:
  const Json* object_;
  std::string path_;
  std::set<std::string, std::less<>> known_;
};

}  // namespace winnow::server
