// Methods of lists and mappings that do not change them.
#include <fmt/format.h>

#include <algorithm>

#include "text/jinja/builtins.h"

namespace winnow::jinja {

namespace {

Value dict_get(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const Bound bound(interpreter, "get", arguments, {"key", "default"});
  const Value* value = self.dict()->find(bound.at(0));
  return value != nullptr ? *value : bound.value(1, None{});
}

Value dict_keys(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const Bound none(interpreter, "keys", arguments, {});
  std::vector<Value> keys;
  for (const auto& item : self.dict()->items) keys.push_back(item.first);
  return interpreter.make_items(std::move(keys), List::Flavor::kDictKeys);
}

Value dict_values(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const Bound none(interpreter, "values", arguments, {});
  std::vector<Value> values;
  for (const auto& item : self.dict()->items) values.push_back(item.second);
  return interpreter.make_items(std::move(values), List::Flavor::kDictValues);
}

Value dict_items(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const Bound none(interpreter, "items", arguments, {});
  std::vector<Value> pairs;
  for (const auto& [key, value] : self.dict()->items) {
    pairs.push_back(interpreter.make_items({key, value}, List::Flavor::kTuple));
  }
  return interpreter.make_items(std::move(pairs), List::Flavor::kDictItems);
}

Value copy(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const Bound none(interpreter, "copy", arguments, {});
  return self;  // nothing can change either of them
}

Value list_count(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const Bound bound(interpreter, "count", arguments, {"value"});
  const std::vector<Value>& items = self.list()->items;
  return std::int64_t{std::count_if(items.begin(), items.end(),
                                    [&](const Value& item) { return equals(item, bound.at(0)); })};
}

Value list_index(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const Bound bound(interpreter, "index", arguments, {"value"});
  const std::vector<Value>& items = self.list()->items;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (equals(items[i], bound.at(0))) return static_cast<std::int64_t>(i);
  }
  interpreter.fail("index: the value is not in the list");
}

}  // namespace

Method find_list_method(std::string_view name) {
  if (name == "count") return list_count;
  if (name == "index") return list_index;
  if (name == "copy") return copy;
  return nullptr;
}

Method find_dict_method(std::string_view name) {
  if (name == "get") return dict_get;
  if (name == "keys") return dict_keys;
  if (name == "values") return dict_values;
  if (name == "items") return dict_items;
  if (name == "copy") return copy;
  return nullptr;
}

}  // namespace winnow::jinja
