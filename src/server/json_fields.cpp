#include "server/json_fields.h"

#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "server/json_guard.h"

namespace winnow::server {

Json parse_body(std::string_view text) {
  if (text.empty()) throw Error(ErrorCode::kInvalidJson, "the request body is empty");
  check_json_text(text);
  Json body;
  try {
    body = Json::parse(text);
  } catch (const Json::exception& error) {
    std::string_view what = error.what();  // "[json.exception.parse_error.101] parse error at …"
    const std::size_t end = what.find("] ");
    if (end != std::string_view::npos) what.remove_prefix(end + 2);
    throw Error(ErrorCode::kInvalidJson, fmt::format("the request body is not JSON: {}", what));
  }
  if (!body.is_object()) {
    throw Error(ErrorCode::kInvalidJson,
                fmt::format("the request body is {}, expected a JSON object", describe(body)));
  }
  return body;
}

std::string describe(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::boolean:
      return value.get<bool>() ? "true" : "false";
    case Json::value_t::string:
      return "a string";
    case Json::value_t::array:
      return "an array";
    case Json::value_t::object:
      return "an object";
    default:
      return value.dump();
  }
}

Fields::Fields(const Json& object, std::string path) : object_(&object), path_(std::move(path)) {
  if (!object.is_object()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: {} is not an object", path_, describe(object)), {}, path_);
  }
}

std::string Fields::full_name(std::string_view name) const {
  return path_.empty() ? std::string(name) : fmt::format("{}.{}", path_, name);
}

void Fields::fail(std::string_view name, const std::string& what) const {
  const std::string full = full_name(name);
  throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: {}", full, what), {}, full);
}

const Json* Fields::find(std::string_view name) {
  known_.emplace(name);
  const auto it = object_->find(name);
  if (it == object_->end() || it->is_null()) return nullptr;
  return &*it;
}

std::optional<bool> Fields::boolean(std::string_view name) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) fail(name, describe(*value) + " is not true or false");
  return value->get<bool>();
}

std::optional<double> Fields::number(std::string_view name) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) fail(name, describe(*value) + " is not a number");
  const double number = value->get<double>();
  if (!std::isfinite(number)) fail(name, "the value is not a finite number");
  return number;
}

namespace {

/// 5 and 5.0 are integers; 5.5, true and "5" are not.
std::optional<std::int64_t> as_integer(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<std::uint64_t>();
    if (number > static_cast<std::uint64_t>(INT64_MAX)) return std::nullopt;
    return static_cast<std::int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (value.is_number_float()) {
    const double number = value.get<double>();
    constexpr double kExact = 9007199254740992.0;  // 2^53
    if (std::floor(number) == number && std::abs(number) <= kExact) {
      return static_cast<std::int64_t>(number);
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::int64_t> Fields::integer(std::string_view name) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  const std::optional<std::int64_t> number = as_integer(*value);
  if (!number) fail(name, describe(*value) + " is not an integer of 64 bits");
  return number;
}

std::optional<std::int64_t> Fields::integer_in(std::string_view name, std::int64_t low,
                                               std::int64_t high) {
  const std::optional<std::int64_t> value = integer(name);
  if (value && (*value < low || *value > high)) {
    fail(name, fmt::format("{} is not between {} and {}", *value, low, high));
  }
  return value;
}

std::optional<std::string> Fields::string(std::string_view name) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) fail(name, describe(*value) + " is not a string");
  return value->get<std::string>();
}

const Json* Fields::array(std::string_view name) {
  const Json* value = find(name);
  if (value != nullptr && !value->is_array()) fail(name, describe(*value) + " is not an array");
  return value;
}

const Json* Fields::object(std::string_view name) {
  const Json* value = find(name);
  if (value != nullptr && !value->is_object()) fail(name, describe(*value) + " is not an object");
  return value;
}

std::optional<std::vector<std::string>> Fields::strings(std::string_view name) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return std::vector<std::string>{value->get<std::string>()};
  if (!value->is_array()) fail(name, describe(*value) + " is not a string or an array of strings");
  std::vector<std::string> out;
  for (const Json& item : *value) {
    if (!item.is_string()) fail(name, describe(item) + " in the array is not a string");
    out.push_back(item.get<std::string>());
  }
  return out;
}

std::optional<std::vector<std::int64_t>> Fields::integers(std::string_view name) {
  const Json* value = array(name);
  if (value == nullptr) return std::nullopt;
  std::vector<std::int64_t> out;
  out.reserve(value->size());
  for (const Json& item : *value) {
    const std::optional<std::int64_t> number = as_integer(item);
    if (!number) fail(name, describe(item) + " in the array is not an integer");
    out.push_back(*number);
  }
  return out;
}

void Fields::ignore(std::string_view name) { known_.emplace(name); }

std::vector<std::string> Fields::unknown() const {
  std::vector<std::string> out;
  for (const auto& item : object_->items()) {
    if (!known_.contains(item.key())) out.push_back(full_name(item.key()));
  }
  return out;
}

}  // namespace winnow::server
