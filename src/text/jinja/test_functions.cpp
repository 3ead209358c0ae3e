// The tests of "is" and of select. Behaviour: jinja2's tests.py.
#include <fmt/format.h>

#include <algorithm>

#include "text/jinja/builtins.h"
#include "text/jinja/characters.h"
#include "text/jinja/operators.h"
#include "text/unicode.h"

namespace winnow::jinja {

namespace {

#define WINNOW_TEST(name) \
  bool name(Interpreter& interpreter, const Value& input, Arguments& arguments)

void no_arguments(Interpreter& interpreter, Arguments& arguments) {
  const Bound none(interpreter, "the test", arguments, {});
}

template <bool (*holds)(const Value&)>
WINNOW_TEST(plain) {
  no_arguments(interpreter, arguments);
  return holds(input);
}

bool is_sequence(const Value& value) {
  const List* list = value.list();
  return value.text() != nullptr || value.dict() != nullptr || value.is_undefined() ||
         (list != nullptr && list->flavor < List::Flavor::kDictKeys);
}

bool is_iterable(const Value& value) {
  return value.text() != nullptr || value.dict() != nullptr || value.list() != nullptr ||
         value.is<GeneratorPtr>() || value.is<LoopPtr>() || value.is_undefined();
}

bool is_integer(const Value& value) { return value.is<std::int64_t>() || value.is<BigInt>(); }

bool is_callable(const Value& value) {
  return value.is<CallablePtr>() || value.is<LoopPtr>() || value.is_undefined();
}

// str.islower and str.isupper: at least one cased character, and all of them of that case.
template <bool (*has_case)(std::uint32_t)>
bool has_only(const Value& value) {
  const Text text = to_text(value);
  bool has_any = false;
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Step step = step_utf8(text.bytes(), i);
    if (is_cased(step.code_point)) {
      if (!has_case(step.code_point)) return false;
      has_any = true;
    }
    i += step.num_bytes;
  }
  return has_any;
}

Value remainder(Interpreter& interpreter, const Value& input, const Value& divisor) {
  return apply_binary(interpreter, Binary::Kind::kModulo, input, divisor);
}

WINNOW_TEST(even) {
  no_arguments(interpreter, arguments);
  return equals(remainder(interpreter, input, Value(2)), Value(0));
}
WINNOW_TEST(odd) {
  no_arguments(interpreter, arguments);
  return equals(remainder(interpreter, input, Value(2)), Value(1));
}
WINNOW_TEST(divisible_by) {
  const Bound bound(interpreter, "divisibleby", arguments, {"num"});
  return equals(remainder(interpreter, input, bound.at(0)), Value(0));
}

WINNOW_TEST(same_as) {
  const Bound bound(interpreter, "sameas", arguments, {"other"});
  const Value& other = bound.at(0);
  if (input.storage().index() != other.storage().index()) return false;
  if (const TextPtr* text = input.get_if<TextPtr>()) return *text == *other.get_if<TextPtr>();
  if (const ListPtr* list = input.get_if<ListPtr>()) return *list == *other.get_if<ListPtr>();
  if (const DictPtr* dict = input.get_if<DictPtr>()) return *dict == *other.get_if<DictPtr>();
  return equals(input, other);
}

WINNOW_TEST(equal) {
  const Bound bound(interpreter, "eq", arguments, {"other"});
  return equals(input, bound.at(0));
}
WINNOW_TEST(not_equal) {
  const Bound bound(interpreter, "ne", arguments, {"other"});
  return !equals(input, bound.at(0));
}
WINNOW_TEST(less) {
  const Bound bound(interpreter, "lt", arguments, {"other"});
  return order(interpreter, input, bound.at(0)) < 0;
}
WINNOW_TEST(less_equal) {
  const Bound bound(interpreter, "le", arguments, {"other"});
  return order(interpreter, input, bound.at(0)) <= 0;
}
WINNOW_TEST(greater) {
  const Bound bound(interpreter, "gt", arguments, {"other"});
  return order(interpreter, input, bound.at(0)) > 0;
}
WINNOW_TEST(greater_equal) {
  const Bound bound(interpreter, "ge", arguments, {"other"});
  return order(interpreter, input, bound.at(0)) >= 0;
}
WINNOW_TEST(in) {
  const Bound bound(interpreter, "in", arguments, {"seq"});
  return contains(interpreter, bound.at(0), input);
}
WINNOW_TEST(is_filter) {
  no_arguments(interpreter, arguments);
  return find_filter(to_text(input).bytes()) != nullptr;
}
WINNOW_TEST(is_test) {
  no_arguments(interpreter, arguments);
  return find_test(to_text(input).bytes()) != nullptr;
}

struct Entry {
  std::string_view name;
  Test test;
};

constexpr Entry kTests[] = {
    {"!=", not_equal},
    {"<", less},
    {"<=", less_equal},
    {"==", equal},
    {">", greater},
    {">=", greater_equal},
    {"boolean", plain<[](const Value& v) { return v.is<bool>(); }>},
    {"callable", plain<is_callable>},
    {"defined", plain<[](const Value& v) { return !v.is_undefined(); }>},
    {"divisibleby", divisible_by},
    {"eq", equal},
    {"equalto", equal},
    {"escaped", plain<[](const Value&) { return false; }>},
    {"even", even},
    {"false", plain<[](const Value& v) { return v.is<bool>() && !is_true(v); }>},
    {"filter", is_filter},
    {"float", plain<[](const Value& v) { return v.is<double>(); }>},
    {"ge", greater_equal},
    {"greaterthan", greater},
    {"gt", greater},
    {"in", in},
    {"integer", plain<is_integer>},
    {"iterable", plain<is_iterable>},
    {"le", less_equal},
    {"lessthan", less},
    {"lower", plain<has_only<is_lower_case>>},
    {"lt", less},
    {"mapping", plain<[](const Value& v) { return v.dict() != nullptr; }>},
    {"ne", not_equal},
    {"none", plain<[](const Value& v) { return v.is_none(); }>},
    {"number", plain<is_number>},
    {"odd", odd},
    {"sameas", same_as},
    {"sequence", plain<is_sequence>},
    {"string", plain<[](const Value& v) { return v.text() != nullptr; }>},
    {"test", is_test},
    {"true", plain<[](const Value& v) { return v.is<bool>() && is_true(v); }>},
    {"undefined", plain<[](const Value& v) { return v.is_undefined(); }>},
    {"upper", plain<has_only<is_upper_case>>},
};
#undef WINNOW_TEST

}  // namespace

Test find_test(std::string_view name) {
  for (const Entry& entry : kTests) {
    if (entry.name == name) return entry.test;
  }
  return nullptr;
}

}  // namespace winnow::jinja
