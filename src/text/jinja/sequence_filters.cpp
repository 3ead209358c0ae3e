#include "text/jinja/sequence_filters.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "text/jinja/builtins.h"
#include "text/jinja/characters.h"
#include "text/jinja/operators.h"

namespace winnow::jinja {

namespace {

using Key = std::function<Value(const Value&)>;

// Value of the part of a dotted path: "a.0.b".
Value item_at_path(Interpreter& interpreter, Value item, const Value& path) {
  if (!path.is<TextPtr>()) return get_item(interpreter, item, path);
  const std::string& bytes = path.text()->bytes();
  std::size_t begin = 0;
  while (begin <= bytes.size()) {
    const std::size_t dot = std::min(bytes.find('.', begin), bytes.size());
    const std::string part = bytes.substr(begin, dot - begin);
    const bool is_index = !part.empty() && part.size() < 10 &&
                          part.find_first_not_of("0123456789") == std::string::npos;
    item =
        get_item(interpreter, item,
                 is_index ? Value(std::int64_t{std::stol(part)}) : Value(part, Origin::kTemplate));
    begin = dot + 1;
  }
  return item;
}

Value fold_case(const Value& value) {
  const Text* text = value.text();
  return text == nullptr ? value : Value(to_lower(text->bytes()), text->origin());
}

Key make_key(Interpreter& interpreter, Value attribute, bool is_case_sensitive) {
  return [&interpreter, attribute = std::move(attribute), is_case_sensitive](const Value& item) {
    const bool has_path = !attribute.is_none() && !attribute.is_undefined();
    Value value = has_path ? item_at_path(interpreter, item, attribute) : item;
    return is_case_sensitive ? value : fold_case(value);
  };
}

// Several paths, "a,b", order by the first that differs.
Key make_sort_key(Interpreter& interpreter, const Value& attribute, bool is_case_sensitive) {
  const Text* text = attribute.text();
  if (text == nullptr || text->bytes().find(',') == std::string::npos) {
    return make_key(interpreter, attribute, is_case_sensitive);
  }
  std::vector<Key> keys;
  std::size_t begin = 0;
  while (begin <= text->size()) {
    const std::size_t comma = std::min(text->bytes().find(',', begin), text->size());
    keys.push_back(make_key(interpreter, Value(text->part(begin, comma)), is_case_sensitive));
    begin = comma + 1;
  }
  return [keys](const Value& item) {
    std::vector<Value> values;
    values.reserve(keys.size());
    for (const Key& key : keys) values.push_back(key(item));
    return Value(make_list(std::move(values)));
  };
}

struct Keyed {
  Value key;
  Value item;
};

std::vector<Keyed> with_keys(const Key& key, std::vector<Value> values) {
  std::vector<Keyed> keyed;
  keyed.reserve(values.size());
  for (Value& value : values) {
    Value made = key(value);
    keyed.push_back({std::move(made), std::move(value)});
  }
  return keyed;
}

// A merge sort of our own: an order that fails or is inconsistent (NaN) must not upset it.
void sort_by_key(Interpreter& interpreter, std::vector<Keyed>& keyed, bool is_reversed) {
  std::vector<Keyed> buffer(keyed.size());
  for (std::size_t width = 1; width < keyed.size(); width *= 2) {
    for (std::size_t begin = 0; begin < keyed.size(); begin += 2 * width) {
      const std::size_t middle = std::min(begin + width, keyed.size());
      const std::size_t end = std::min(begin + 2 * width, keyed.size());
      std::size_t left = begin;
      std::size_t right = middle;
      for (std::size_t out = begin; out < end; ++out) {
        interpreter.charge_steps();
        bool takes_right = left == middle;
        if (left < middle && right < end) {
          takes_right = is_reversed ? order(interpreter, keyed[left].key, keyed[right].key) < 0
                                    : order(interpreter, keyed[right].key, keyed[left].key) < 0;
        }
        buffer[out] = std::move(takes_right ? keyed[right++] : keyed[left++]);
      }
    }
    keyed.swap(buffer);
  }
}

std::vector<Value> items_of(std::vector<Keyed> keyed) {
  std::vector<Value> values;
  values.reserve(keyed.size());
  for (Keyed& entry : keyed) values.push_back(std::move(entry.item));
  return values;
}

Value pair(Interpreter& interpreter, Value a, Value b) {
  return interpreter.make_items({std::move(a), std::move(b)}, List::Flavor::kTuple);
}

Value extreme(Interpreter& interpreter, const Value& input, Arguments& arguments, bool is_max) {
  const Bound bound(interpreter, is_max ? "max" : "min", arguments,
                    {"case_sensitive", "attribute"});
  const Key key = make_key(interpreter, bound.value(1, None{}), bound.truth(0, false));
  std::vector<Keyed> keyed = with_keys(key, interpreter.iterate(input));
  if (keyed.empty()) return Value::undefined("no aggregated item, sequence was empty");
  std::size_t best = 0;
  for (std::size_t i = 1; i < keyed.size(); ++i) {
    const bool is_better = is_max ? order(interpreter, keyed[i].key, keyed[best].key) > 0
                                  : order(interpreter, keyed[i].key, keyed[best].key) < 0;
    if (is_better) best = i;
  }
  return keyed[best].item;
}

Value filter_items(Interpreter& interpreter, const Value& input, Arguments& arguments,
                   bool by_attribute, bool keeps_matches) {
  std::size_t next = 0;
  Value attribute = None{};
  if (by_attribute) {
    if (arguments.positional.empty()) interpreter.fail("selectattr: the attribute is missing");
    attribute = arguments.positional[next++];
  }
  Test test = nullptr;
  Arguments rest;
  if (next < arguments.positional.size()) {
    const Text name = to_text(arguments.positional[next++]);
    test = find_test(name.bytes());
    if (test == nullptr) interpreter.fail(fmt::format("no test named '{}'", name.bytes()));
    rest.positional.assign(arguments.positional.begin() + static_cast<std::ptrdiff_t>(next),
                           arguments.positional.end());
    rest.named = arguments.named;
  }
  std::vector<Value> kept;
  for (Value& item : interpreter.iterate(input)) {
    const Value tested = by_attribute ? item_at_path(interpreter, item, attribute) : item;
    bool matches = false;
    if (test == nullptr) {
      matches = is_true(tested);
    } else {
      Arguments copy = rest;
      matches = test(interpreter, tested, copy);
    }
    if (matches == keeps_matches) kept.push_back(std::move(item));
  }
  return interpreter.make_generator(std::move(kept));
}

}  // namespace

std::vector<Text> split_lines(const Text& text, bool keeps_ends) {
  const std::string& bytes = text.bytes();
  const std::vector<std::size_t> positions = character_positions(bytes);
  std::vector<Text> lines;
  std::size_t begin = 0;
  for (std::size_t i = 0; i + 1 < positions.size(); ++i) {
    const std::string_view one =
        std::string_view(bytes).substr(positions[i], positions[i + 1] - positions[i]);
    const bool is_break = one == "\n" || one == "\r" || one == "\v" || one == "\f" ||
                          one == "\x1c" || one == "\x1d" || one == "\x1e" || one == "\xC2\x85" ||
                          one == "\u2028" || one == "\u2029";
    if (!is_break) continue;
    const std::size_t content_end = positions[i];
    std::size_t end = positions[i + 1];
    if (one == "\r" && end < bytes.size() && bytes[end] == '\n') {
      ++end;
      ++i;
    }
    lines.push_back(text.part(begin, keeps_ends ? end : content_end));
    begin = end;
  }
  if (begin < bytes.size()) lines.push_back(text.part(begin, bytes.size()));
  return lines;
}

Value length(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const Bound none(interpreter, "length", arguments, {});
  return length_of(interpreter, input);
}

Value first(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const Bound none(interpreter, "first", arguments, {});
  if (const auto* generator = input.get_if<GeneratorPtr>()) {
    Generator& state = **generator;
    if (state.next < state.items.size()) return state.items[state.next++];
  } else {
    std::vector<Value> values = interpreter.iterate(input);
    if (!values.empty()) return values.front();
  }
  return Value::undefined("no first item, sequence was empty");
}

Value last(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const Bound none(interpreter, "last", arguments, {});
  if (input.is<GeneratorPtr>()) interpreter.fail("a generator has no last item; use list first");
  std::vector<Value> values = interpreter.iterate(input);
  if (values.empty()) return Value::undefined("no last item, sequence was empty");
  return values.back();
}

Value list(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const Bound none(interpreter, "list", arguments, {});
  return interpreter.make_items(interpreter.iterate(input));
}

Value join(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const Bound bound(interpreter, "join", arguments, {"d", "attribute"});
  const Text separator = to_text(bound.value(0, Value("")));
  const Value attribute = bound.value(1, None{});
  Text out;
  bool is_first = true;
  for (const Value& item : interpreter.iterate(input)) {
    if (!is_first) out.append(separator);
    is_first = false;
    const Text text =
        to_text(attribute.is_none() ? item : item_at_path(interpreter, item, attribute));
    interpreter.charge_bytes(text.size() + separator.size());
    out.append(text);
  }
  return Value(std::move(out));
}

Value map(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  std::vector<Value> mapped;
  if (arguments.positional.empty()) {
    const Bound bound(interpreter, "map", arguments, {"attribute", "default"});
    const Value& attribute = bound.at(0);
    for (const Value& item : interpreter.iterate(input)) {
      Value value = item_at_path(interpreter, item, attribute);
      const bool takes_default = value.is_undefined() && bound.has(1) && !bound.at(1).is_none();
      mapped.push_back(takes_default ? bound.at(1) : value);
    }
    return interpreter.make_generator(std::move(mapped));
  }
  const Text name = to_text(arguments.positional.front());
  const Filter filter = find_filter(name.bytes());
  if (filter == nullptr) interpreter.fail(fmt::format("no filter named '{}'", name.bytes()));
  arguments.positional.erase(arguments.positional.begin());
  for (const Value& item : interpreter.iterate(input)) {
    Arguments copy = arguments;
    mapped.push_back(filter(interpreter, item, copy));
  }
  return interpreter.make_generator(std::move(mapped));
}

Value select(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  return filter_items(interpreter, input, arguments, false, true);
}
Value reject(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  return filter_items(interpreter, input, arguments, false, false);
}
Value selectattr(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  return filter_items(interpreter, input, arguments, true, true);
}
Value rejectattr(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  return filter_items(interpreter, input, arguments, true, false);
}

Value items(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const Bound none(interpreter, "items", arguments, {});
  std::vector<Value> pairs;
  if (const Dict* dict = input.dict()) {
    for (const auto& [key, value] : dict->items) pairs.push_back(pair(interpreter, key, value));
  } else if (!input.is_undefined()) {
    interpreter.fail(fmt::format("items of a {}, expected a mapping", type_name(input)));
  }
  return interpreter.make_generator(std::move(pairs));
}

Value dictsort(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const Bound bound(interpreter, "dictsort", arguments, {"case_sensitive", "by", "reverse"});
  const Dict* dict = input.dict();
  if (dict == nullptr) interpreter.fail(fmt::format("dictsort of a {}", type_name(input)));
  const std::string by = bound.text(1, "key").bytes();
  if (by != "key" && by != "value") interpreter.fail("dictsort: by must be 'key' or 'value'");
  const bool is_case_sensitive = bound.truth(0, false);
  std::vector<Keyed> keyed;
  for (const auto& [key, value] : dict->items) {
    const Value& sorted_by = by == "key" ? key : value;
    keyed.push_back(
        {is_case_sensitive ? sorted_by : fold_case(sorted_by), pair(interpreter, key, value)});
  }
  sort_by_key(interpreter, keyed, bound.truth(2, false));
  return interpreter.make_items(items_of(std::move(keyed)));
}

Value sort(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const Bound bound(interpreter, "sort", arguments, {"reverse", "case_sensitive", "attribute"});
  const Key key = make_sort_key(interpreter, bound.value(2, None{}), bound.truth(1, false));
  std::vector<Keyed> keyed = with_keys(key, interpreter.iterate(input));
  sort_by_key(interpreter, keyed, bound.truth(0, false));
  return interpreter.make_items(items_of(std::move(keyed)));
}

Value groupby(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const Bound bound(interpreter, "groupby", arguments, {"attribute", "default", "case_sensitive"});
  const Key key = make_key(interpreter, bound.at(0), bound.truth(2, false));
  const Value if_undefined = bound.value(1, None{});
  std::vector<Keyed> keyed = with_keys(key, interpreter.iterate(input));
  for (Keyed& entry : keyed) {
    if (entry.key.is_undefined() && !if_undefined.is_none()) entry.key = if_undefined;
  }
  sort_by_key(interpreter, keyed, false);
  std::vector<Value> groups;
  for (std::size_t begin = 0; begin < keyed.size();) {
    std::size_t end = begin;
    std::vector<Value> members;
    while (end < keyed.size() && equals(keyed[end].key, keyed[begin].key)) {
      members.push_back(keyed[end++].item);
    }
    // Without case the group shows the spelling of its first member.
    Value shown = item_at_path(interpreter, members.front(), bound.at(0));
    if (shown.is_undefined()) shown = if_undefined;
    groups.push_back(
        pair(interpreter, std::move(shown), interpreter.make_items(std::move(members))));
    begin = end;
  }
  return interpreter.make_items(std::move(groups));
}

Value unique(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const Bound bound(interpreter, "unique", arguments, {"case_sensitive", "attribute"});
  const Key key = make_key(interpreter, bound.value(1, None{}), bound.truth(0, false));
  Dict seen;
  std::vector<Value> kept;
  for (Value& item : interpreter.iterate(input)) {
    Value item_key = key(item);
    if (seen.find(item_key) != nullptr) continue;
    seen.set(std::move(item_key), None{});
    kept.push_back(std::move(item));
  }
  return interpreter.make_generator(std::move(kept));
}

Value maximum(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  return extreme(interpreter, input, arguments, true);
}
Value minimum(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  return extreme(interpreter, input, arguments, false);
}

Value sum(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const Bound bound(interpreter, "sum", arguments, {"attribute", "start"});
  const Value attribute = bound.value(0, None{});
  Value total = bound.value(1, Value(0));
  if (total.text() != nullptr) interpreter.fail("sum cannot add strings; use join");
  for (const Value& item : interpreter.iterate(input)) {
    total = apply_binary(interpreter, Binary::Kind::kAdd, total,
                         attribute.is_none() ? item : item_at_path(interpreter, item, attribute));
  }
  return total;
}

Value reverse(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const Bound none(interpreter, "reverse", arguments, {});
  std::vector<Value> values = interpreter.iterate(input);
  std::reverse(values.begin(), values.end());
  if (input.text() != nullptr) {
    Text out;
    for (const Value& value : values) out.append(*value.text());
    return interpreter.make_text(std::move(out));
  }
  if (input.is<GeneratorPtr>()) return interpreter.make_items(std::move(values));
  return interpreter.make_generator(std::move(values));
}

Value batch(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const Bound bound(interpreter, "batch", arguments, {"linecount", "fill_with"});
  const std::int64_t size = bound.integer(0, 0);
  if (size < 1) interpreter.fail("batch: the size must be at least 1");
  std::vector<Value> batches;
  std::vector<Value> current;
  for (Value& item : interpreter.iterate(input)) {
    if (static_cast<std::int64_t>(current.size()) == size) {
      batches.push_back(interpreter.make_items(std::exchange(current, {})));
    }
    current.push_back(std::move(item));
  }
  if (!current.empty()) {
    const Value fill = bound.value(1, None{});
    while (!fill.is_none() && static_cast<std::int64_t>(current.size()) < size) {
      interpreter.charge_bytes(sizeof(Value));
      current.push_back(fill);
    }
    batches.push_back(interpreter.make_items(std::move(current)));
  }
  return interpreter.make_generator(std::move(batches));
}

Value slice(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const Bound bound(interpreter, "slice", arguments, {"slices", "fill_with"});
  const std::int64_t count = bound.integer(0, 0);
  if (count < 1) interpreter.fail("slice: the number must be at least 1");
  interpreter.charge_bytes(static_cast<std::size_t>(std::min<std::int64_t>(count, INT64_MAX / 64)) *
                           sizeof(Value));
  const std::vector<Value> values = interpreter.iterate(input);
  const auto size = static_cast<std::int64_t>(values.size());
  const std::int64_t each = size / count;
  const std::int64_t with_extra = size % count;
  const Value fill = bound.value(1, None{});
  std::vector<Value> slices;
  auto next = values.begin();
  for (std::int64_t i = 0; i < count; ++i) {
    const auto end = next + static_cast<std::ptrdiff_t>(each + (i < with_extra ? 1 : 0));
    std::vector<Value> part(next, end);
    next = end;
    if (!fill.is_none() && i >= with_extra) part.push_back(fill);
    slices.push_back(interpreter.make_items(std::move(part)));
  }
  return interpreter.make_generator(std::move(slices));
}

}  // namespace winnow::jinja
