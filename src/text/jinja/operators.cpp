#include "text/jinja/operators.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "text/jinja/builtins.h"
#include "text/jinja/characters.h"

namespace winnow::jinja {

namespace {

using Kind = Binary::Kind;

constexpr std::string_view kSymbols[] = {"and", "or", "+", "-", "*", "/", "//", "%", "**"};

[[noreturn]] void fail_types(Interpreter& interpreter, Kind kind, const Value& left,
                             const Value& right) {
  for (const Value* value : {&left, &right}) {
    const Undefined* undefined = value->get_if<Undefined>();
    if (undefined != nullptr && undefined->reason != nullptr) interpreter.fail(*undefined->reason);
  }
  interpreter.fail(fmt::format("{} {} {}: these types do not go together", type_name(left),
                               kSymbols[static_cast<std::size_t>(kind)], type_name(right)));
}

[[noreturn]] void fail_overflow(Interpreter& interpreter) {
  interpreter.fail("integer arithmetic beyond 64 bits");
}

std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  const std::int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

Value integer_power(Interpreter& interpreter, std::int64_t base, std::int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) interpreter.fail("0 cannot be raised to a negative power");
    return std::pow(static_cast<double>(base), static_cast<double>(exponent));
  }
  std::int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) {
      fail_overflow(interpreter);
    }
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) fail_overflow(interpreter);
  }
  return result;
}

Value on_integers(Interpreter& interpreter, Kind kind, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  switch (kind) {
    case Kind::kAdd:
      if (__builtin_add_overflow(a, b, &result)) fail_overflow(interpreter);
      return result;
    case Kind::kSubtract:
      if (__builtin_sub_overflow(a, b, &result)) fail_overflow(interpreter);
      return result;
    case Kind::kMultiply:
      if (__builtin_mul_overflow(a, b, &result)) fail_overflow(interpreter);
      return result;
    case Kind::kPower:
      return integer_power(interpreter, a, b);
    default:
      break;
  }
  if (b == 0) interpreter.fail("division by zero");
  if (kind == Kind::kDivide) return static_cast<double>(a) / static_cast<double>(b);
  if (b == -1) return kind == Kind::kModulo ? Value(0) : negate(interpreter, Value(a));
  const std::int64_t quotient = floor_divide(a, b);
  return kind == Kind::kFloorDivide ? quotient : a - quotient * b;
}

Value on_floats(Interpreter& interpreter, Kind kind, double a, double b) {
  switch (kind) {
    case Kind::kAdd:
      return a + b;
    case Kind::kSubtract:
      return a - b;
    case Kind::kMultiply:
      return a * b;
    case Kind::kPower: {
      if (a == 0 && b < 0) interpreter.fail("0 cannot be raised to a negative power");
      if (a < 0 && b != std::floor(b)) interpreter.fail("a power that is not a real number");
      const double result = std::pow(a, b);
      if (std::isinf(result) && std::isfinite(a) && std::isfinite(b)) {
        interpreter.fail("a power beyond the range of a float");
      }
      return result;
    }
    default:
      break;
  }
  if (b == 0) interpreter.fail("division by zero");
  if (kind == Kind::kDivide) return a / b;
  double remainder = std::fmod(a, b);
  if (remainder != 0 && (remainder < 0) != (b < 0)) {
    remainder += b;
  } else if (remainder == 0) {
    remainder = std::copysign(0.0, b);
  }
  if (kind == Kind::kModulo) return remainder;
  const double quotient = (a - remainder) / b;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double floored = std::floor(quotient);
  return quotient - floored > 0.5 ? floored + 1 : floored;
}

Value repeat(Interpreter& interpreter, const Value& value, std::int64_t count) {
  count = std::max<std::int64_t>(count, 0);
  if (const Text* text = value.text()) {
    const auto size = static_cast<std::int64_t>(text->size());
    std::int64_t total = 0;
    if (__builtin_mul_overflow(size, count, &total)) total = INT64_MAX;
    interpreter.charge_bytes(static_cast<std::size_t>(total));
    Text out;
    for (std::int64_t i = 0; size > 0 && i < count; ++i) out.append(*text);
    return Value(std::move(out));
  }
  const List& list = *value.list();
  std::int64_t total = 0;
  const auto item_bytes = static_cast<std::int64_t>(list.items.size() * sizeof(Value));
  if (__builtin_mul_overflow(item_bytes, count, &total)) total = INT64_MAX;
  interpreter.charge_bytes(static_cast<std::size_t>(total));
  std::vector<Value> items;
  for (std::int64_t i = 0; !list.items.empty() && i < count; ++i) {
    items.insert(items.end(), list.items.begin(), list.items.end());
  }
  return Value(make_list(std::move(items), list.flavor));
}

bool is_plain_list(const List* list) {
  return list != nullptr &&
         (list->flavor == List::Flavor::kList || list->flavor == List::Flavor::kTuple);
}

std::optional<Value> on_sequences(Interpreter& interpreter, Kind kind, const Value& left,
                                  const Value& right) {
  if (kind == Kind::kAdd) {
    if (left.text() != nullptr && right.text() != nullptr) {
      interpreter.charge_bytes(left.text()->size() + right.text()->size());
      Text out = *left.text();
      out.append(*right.text());
      return Value(std::move(out));
    }
    const List* a = left.list();
    const List* b = right.list();
    if (is_plain_list(a) && is_plain_list(b) && a->flavor == b->flavor) {
      std::vector<Value> items = a->items;
      items.insert(items.end(), b->items.begin(), b->items.end());
      return interpreter.make_items(std::move(items), a->flavor);
    }
  } else if (kind == Kind::kMultiply) {
    const bool is_left = left.text() != nullptr || is_plain_list(left.list());
    const bool is_right = right.text() != nullptr || is_plain_list(right.list());
    const std::optional<std::int64_t> count = as_integer(is_left ? right : left);
    if ((is_left || is_right) && count) {
      return repeat(interpreter, is_left ? left : right, *count);
    }
  } else if (kind == Kind::kModulo && left.text() != nullptr) {
    return interpreter.make_text(format_percent(interpreter, *left.text(), right));
  }
  return std::nullopt;
}

Value loop_attribute(Interpreter& interpreter, const LoopPtr& loop, std::string_view name);

Value bind_method(const Value& object, std::string_view name, Method method) {
  return Value(std::make_shared<const Callable>(
      Callable{std::string(name), [object, method](Interpreter& interpreter, Arguments& arguments) {
                 return method(interpreter, object, arguments);
               }}));
}

// What Python's getattr finds: methods, and the attributes of namespaces and loops.
std::optional<Value> find_attribute(Interpreter& interpreter, const Value& object,
                                    std::string_view name) {
  Method method = nullptr;
  if (object.text() != nullptr) {
    method = find_text_method(name);
  } else if (object.list() != nullptr) {
    method = find_list_method(name);
  } else if (object.dict() != nullptr) {
    method = find_dict_method(name);
  } else if (const auto* names = object.get_if<NamespacePtr>()) {
    const Value* value = (*names)->attributes.find(name);
    if (value != nullptr) return *value;
  } else if (const auto* loop = object.get_if<LoopPtr>()) {
    Value value = loop_attribute(interpreter, *loop, name);
    if (!value.is_undefined()) return value;
  } else if (const auto* callable = object.get_if<CallablePtr>()) {
    if (name == "name") return Value((*callable)->name, Origin::kTemplate);
  }
  if (method != nullptr) return bind_method(object, name, method);
  if (is_changing_method(object, name)) {
    return Value::undefined(
        fmt::format("{}.{} changes its object, which templates may not do; use a namespace",
                    type_name(object), name));
  }
  if (name.starts_with("__")) {
    return Value::undefined(fmt::format("access to attribute '{}' is unsafe", name));
  }
  return std::nullopt;
}

std::optional<Value> find_item(const Value& object, const Value& key) {
  if (const Dict* dict = object.dict()) {
    if (const List* list = key.list(); list != nullptr && list->flavor != List::Flavor::kTuple) {
      return std::nullopt;
    }
    if (key.dict() != nullptr) return std::nullopt;
    const Value* value = dict->find(key);
    if (value != nullptr) return *value;
    return std::nullopt;
  }
  std::optional<std::int64_t> index = as_integer(key);
  if (!index) return std::nullopt;
  if (const List* list = object.list()) {
    if (list->flavor != List::Flavor::kList && list->flavor != List::Flavor::kTuple &&
        list->flavor != List::Flavor::kRange) {
      return std::nullopt;
    }
    const auto size = static_cast<std::int64_t>(list->items.size());
    if (*index < 0) *index += size;
    if (*index < 0 || *index >= size) return std::nullopt;
    return list->items[static_cast<std::size_t>(*index)];
  }
  if (const Text* text = object.text()) {
    const std::vector<std::size_t> positions = character_positions(text->bytes());
    const auto size = static_cast<std::int64_t>(positions.size()) - 1;
    if (*index < 0) *index += size;
    if (*index < 0 || *index >= size) return std::nullopt;
    const auto at = static_cast<std::size_t>(*index);
    return Value(text->part(positions[at], positions[at + 1]));
  }
  return std::nullopt;
}

[[noreturn]] void fail_undefined(Interpreter& interpreter, const Undefined& undefined) {
  interpreter.fail(undefined.reason == nullptr ? "an undefined value is used" : *undefined.reason);
}

Value changed(Interpreter&, const LoopPtr& loop, const Arguments& arguments) {
  const auto& values = arguments.positional;
  const bool is_same = loop->has_changed && values.size() == loop->last_changed.size() &&
                       std::equal(values.begin(), values.end(), loop->last_changed.begin(), equals);
  loop->has_changed = true;
  loop->last_changed = values;
  return !is_same;
}

Value loop_attribute(Interpreter& interpreter, const LoopPtr& loop, std::string_view name) {
  const std::int64_t index0 = loop->index0;
  const auto size = loop->items == nullptr ? 0 : static_cast<std::int64_t>(loop->items->size());
  const auto neighbour = [&](std::int64_t index) {
    if (index < 0 || index >= size) {
      return Value::undefined(index < 0 ? "there is no previous item" : "there is no next item");
    }
    return (*loop->items)[static_cast<std::size_t>(index)];
  };
  if (name == "index") return index0 + 1;
  if (name == "index0") return index0;
  if (name == "revindex") return size - index0;
  if (name == "revindex0") return size - index0 - 1;
  if (name == "first") return index0 == 0;
  if (name == "last") return index0 + 1 == size;
  if (name == "length") return size;
  if (name == "depth") return loop->depth0 + 1;
  if (name == "depth0") return loop->depth0;
  if (name == "previtem") return neighbour(index0 - 1);
  if (name == "nextitem") return neighbour(index0 + 1);
  if (name == "cycle") {
    return Value(std::make_shared<const Callable>(
        Callable{"cycle", [index0](Interpreter& in, Arguments& arguments) {
                   if (arguments.positional.empty()) in.fail("loop.cycle: nothing to cycle over");
                   const auto count = static_cast<std::int64_t>(arguments.positional.size());
                   return arguments.positional[static_cast<std::size_t>(index0 % count)];
                 }}));
  }
  if (name == "changed") {
    const std::weak_ptr<Loop> weak = loop;
    return Value(std::make_shared<const Callable>(
        Callable{"changed", [weak](Interpreter& in, Arguments& arguments) {
                   const LoopPtr kept = weak.lock();
                   return kept == nullptr ? Value(true) : changed(in, kept, arguments);
                 }}));
  }
  (void)interpreter;
  return {};
}

std::int64_t slice_bound(Interpreter& interpreter, const Value& value, std::int64_t if_none) {
  if (value.is_none()) return if_none;
  const std::optional<std::int64_t> bound = as_integer(value);
  if (!bound) interpreter.fail(fmt::format("a {} in a slice", type_name(value)));
  return *bound;
}

// Positions a slice visits, as Python's slice.indices does.
std::vector<std::size_t> slice_positions(Interpreter& interpreter, std::int64_t size,
                                         const Value& start, const Value& stop,
                                         const Value& step_value) {
  const std::int64_t step = slice_bound(interpreter, step_value, 1);
  if (step == 0) interpreter.fail("a slice with step 0");
  const auto clamp = [&](std::int64_t bound) {
    if (bound < 0) bound = bound < -size ? -1 : bound + size;
    if (step > 0) return std::clamp<std::int64_t>(bound, 0, size);
    return std::clamp<std::int64_t>(bound, -1, size - 1);
  };
  const std::int64_t low = step > 0 ? 0 : -1;
  const std::int64_t high = step > 0 ? size : size - 1;
  const std::int64_t from =
      start.is_none() ? (step > 0 ? low : high) : clamp(slice_bound(interpreter, start, 0));
  const std::int64_t to =
      stop.is_none() ? (step > 0 ? high : low) : clamp(slice_bound(interpreter, stop, 0));
  std::vector<std::size_t> positions;
  // Steps larger than the text would overflow the sum; one step then leaves it anyway.
  const std::int64_t stride = std::clamp<std::int64_t>(step, -size - 1, size + 1);
  for (std::int64_t i = from; step > 0 ? i < to : i > to; i += stride) {
    positions.push_back(static_cast<std::size_t>(i));
  }
  interpreter.charge_bytes(positions.size() * sizeof(std::size_t));
  return positions;
}

}  // namespace

std::optional<std::int64_t> as_integer(const Value& value) {
  if (const auto* i = value.get_if<std::int64_t>()) return *i;
  if (const bool* b = value.get_if<bool>()) return *b ? 1 : 0;
  return std::nullopt;
}

std::optional<double> as_float(const Value& value) {
  if (const double* d = value.get_if<double>()) return *d;
  if (const BigInt* big = value.get_if<BigInt>()) return std::strtod(big->digits->c_str(), nullptr);
  if (const std::optional<std::int64_t> i = as_integer(value)) return static_cast<double>(*i);
  return std::nullopt;
}

Value apply_binary(Interpreter& interpreter, Kind kind, const Value& left, const Value& right) {
  const std::optional<std::int64_t> a = as_integer(left);
  const std::optional<std::int64_t> b = as_integer(right);
  if (a && b) return on_integers(interpreter, kind, *a, *b);
  if (is_number(left) && is_number(right)) {
    if (!left.is<double>() && !right.is<double>()) fail_overflow(interpreter);
    return on_floats(interpreter, kind, *as_float(left), *as_float(right));
  }
  if (std::optional<Value> result = on_sequences(interpreter, kind, left, right)) {
    return *std::move(result);
  }
  fail_types(interpreter, kind, left, right);
}

Value negate(Interpreter& interpreter, const Value& value) {
  if (const double* d = value.get_if<double>()) return -*d;
  if (const std::optional<std::int64_t> i = as_integer(value)) {
    if (*i == INT64_MIN) fail_overflow(interpreter);
    return -*i;
  }
  if (const BigInt* big = value.get_if<BigInt>()) {
    const std::string& digits = *big->digits;
    return BigInt{
        std::make_shared<const std::string>(digits[0] == '-' ? digits.substr(1) : "-" + digits)};
  }
  if (const Undefined* undefined = value.get_if<Undefined>()) {
    fail_undefined(interpreter, *undefined);
  }
  interpreter.fail(fmt::format("a {} has no negative", type_name(value)));
}

std::partial_ordering order(Interpreter& interpreter, const Value& left, const Value& right) {
  const Interpreter::Nesting nesting(interpreter);
  const std::optional<std::int64_t> a = as_integer(left);
  const std::optional<std::int64_t> b = as_integer(right);
  if (a && b) return *a <=> *b;
  if (is_number(left) && is_number(right)) {
    const auto wide = [](const Value& value) {
      const std::optional<std::int64_t> i = as_integer(value);
      return i ? static_cast<long double>(*i) : static_cast<long double>(*as_float(value));
    };
    if (equals(left, right)) return std::partial_ordering::equivalent;
    return wide(left) <=> wide(right);
  }
  if (left.text() != nullptr && right.text() != nullptr) {
    return left.text()->bytes().compare(right.text()->bytes()) <=> 0;
  }
  const List* x = left.list();
  const List* y = right.list();
  if (is_plain_list(x) && is_plain_list(y) && x->flavor == y->flavor) {
    for (std::size_t i = 0; i < std::min(x->items.size(), y->items.size()); ++i) {
      interpreter.charge_steps();
      if (!equals(x->items[i], y->items[i])) return order(interpreter, x->items[i], y->items[i]);
    }
    return x->items.size() <=> y->items.size();
  }
  for (const Value* value : {&left, &right}) {
    if (const Undefined* undefined = value->get_if<Undefined>()) {
      fail_undefined(interpreter, *undefined);
    }
  }
  interpreter.fail(fmt::format("a {} and a {} have no order", type_name(left), type_name(right)));
}

bool contains(Interpreter& interpreter, const Value& container, const Value& item) {
  if (const Text* text = container.text()) {
    const Text* part = item.text();
    if (part == nullptr) {
      interpreter.fail(fmt::format("a {} cannot be in a str", type_name(item)));
    }
    // memmem is linear; std::string::find is not for hostile pairs of strings.
    return part->empty() || memmem(text->bytes().data(), text->size(), part->bytes().data(),
                                   part->size()) != nullptr;
  }
  if (const Dict* dict = container.dict()) return dict->find(item) != nullptr;
  const std::vector<Value> items = interpreter.iterate(container);
  return std::any_of(items.begin(), items.end(),
                     [&](const Value& candidate) { return equals(candidate, item); });
}

Value get_attribute(Interpreter& interpreter, const Value& object, std::string_view name) {
  if (const Undefined* undefined = object.get_if<Undefined>()) {
    fail_undefined(interpreter, *undefined);
  }
  if (std::optional<Value> value = find_attribute(interpreter, object, name)) {
    return *std::move(value);
  }
  if (const Dict* dict = object.dict()) {
    const Value* value = dict->find(name);
    if (value != nullptr) return *value;
  }
  return Value::undefined(fmt::format("'{}' has no attribute '{}'", type_name(object), name));
}

Value get_item(Interpreter& interpreter, const Value& object, const Value& key) {
  if (const Undefined* undefined = object.get_if<Undefined>()) {
    fail_undefined(interpreter, *undefined);
  }
  if (std::optional<Value> value = find_item(object, key)) return *std::move(value);
  if (const Text* name = key.text()) {
    if (std::optional<Value> value = find_attribute(interpreter, object, name->bytes())) {
      return *std::move(value);
    }
    return Value::undefined(
        fmt::format("'{}' has no attribute '{}'", type_name(object), name->bytes()));
  }
  const std::string shown = key.list() == nullptr && key.dict() == nullptr
                                ? repr(key).bytes()
                                : std::string(type_name(key));
  return Value::undefined(fmt::format("'{}' has no element {}", type_name(object), shown));
}

Value get_slice(Interpreter& interpreter, const Value& object, const Value& start,
                const Value& stop, const Value& step) {
  if (const List* list = object.list();
      is_plain_list(list) || (list != nullptr && list->flavor == List::Flavor::kRange)) {
    const std::vector<std::size_t> positions = slice_positions(
        interpreter, static_cast<std::int64_t>(list->items.size()), start, stop, step);
    std::vector<Value> items;
    items.reserve(positions.size());
    for (const std::size_t i : positions) items.push_back(list->items[i]);
    return interpreter.make_items(std::move(items), list->flavor);
  }
  if (const Text* text = object.text()) {
    const std::vector<std::size_t> bytes = character_positions(text->bytes());
    const std::vector<std::size_t> positions = slice_positions(
        interpreter, static_cast<std::int64_t>(bytes.size()) - 1, start, stop, step);
    if (positions.empty()) return Value(Text());
    if (slice_bound(interpreter, step, 1) == 1) {
      return interpreter.make_text(
          text->part(bytes[positions.front()], bytes[positions.back() + 1]));
    }
    Text out;
    for (const std::size_t i : positions) out.append(text->part(bytes[i], bytes[i + 1]));
    return interpreter.make_text(std::move(out));
  }
  if (const Undefined* undefined = object.get_if<Undefined>()) {
    fail_undefined(interpreter, *undefined);
  }
  interpreter.fail(fmt::format("a {} cannot be sliced", type_name(object)));
}

std::int64_t length_of(Interpreter& interpreter, const Value& value) {
  if (const Text* text = value.text()) {
    return static_cast<std::int64_t>(character_positions(text->bytes()).size()) - 1;
  }
  if (const List* list = value.list()) return static_cast<std::int64_t>(list->items.size());
  if (const Dict* dict = value.dict()) return static_cast<std::int64_t>(dict->items.size());
  if (value.is_undefined()) return 0;
  if (const auto* loop = value.get_if<LoopPtr>()) {
    return (*loop)->items == nullptr ? 0 : static_cast<std::int64_t>((*loop)->items->size());
  }
  interpreter.fail(fmt::format("a {} has no length", type_name(value)));
}

}  // namespace winnow::jinja
