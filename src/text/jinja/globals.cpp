// Functions every template can call: jinja2's own and those transformers adds.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "base/error.h"
#include "text/jinja/builtins.h"
#include "text/jinja/operators.h"
#include "text/unicode.h"

namespace winnow::jinja {

namespace {

constexpr std::int64_t kMaxRange = 100'000;  // jinja2's sandbox

Value range(Interpreter& interpreter, Arguments& arguments) {
  const std::size_t count = arguments.positional.size();
  if (count == 0 || count > 3 || !arguments.named.empty()) {
    interpreter.fail("range takes one to three numbers");
  }
  std::int64_t bounds[3] = {0, 0, 1};
  for (std::size_t i = 0; i < count; ++i) {
    const std::optional<std::int64_t> bound = as_integer(arguments.positional[i]);
    if (!bound) {
      interpreter.fail(fmt::format("range of a {}", type_name(arguments.positional[i])));
    }
    bounds[count == 1 ? 1 : i] = *bound;
  }
  const auto [start, stop, step] = bounds;
  if (step == 0) interpreter.fail("range with step 0");
  std::vector<Value> values;
  for (std::int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (static_cast<std::int64_t>(values.size()) == kMaxRange) {
      interpreter.fail(fmt::format("range of more than {} numbers", kMaxRange));
    }
    values.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  interpreter.charge_steps(static_cast<std::int64_t>(values.size()));
  return interpreter.make_items(std::move(values), List::Flavor::kRange);
}

Dict dict_of(Interpreter& interpreter, std::string_view function, Arguments& arguments) {
  Dict dict;
  if (arguments.positional.size() > 1) {
    interpreter.fail(fmt::format("{} takes at most one mapping", function));
  }
  if (!arguments.positional.empty()) {
    const Value& source = arguments.positional[0];
    if (const Dict* other = source.dict()) {
      for (const auto& [key, value] : other->items) dict.set(key, value);
    } else {
      for (const Value& item : interpreter.iterate(source)) {
        std::vector<Value> pair = interpreter.iterate(item);
        if (pair.size() != 2) interpreter.fail(fmt::format("{}: expected pairs", function));
        dict.set(std::move(pair[0]), std::move(pair[1]));
      }
    }
  }
  for (const auto& [name, value] : arguments.named) {
    dict.set(Value(name, Origin::kTemplate), value);
  }
  interpreter.charge_bytes(dict.items.size() * 2 * sizeof(Value));
  return dict;
}

Value make_dictionary(Interpreter& interpreter, Arguments& arguments) {
  return Value(make_dict(dict_of(interpreter, "dict", arguments)));
}

Value make_namespace(Interpreter& interpreter, Arguments& arguments) {
  return interpreter.make_namespace(dict_of(interpreter, "namespace", arguments));
}

Value joiner(Interpreter& interpreter, Arguments& arguments) {
  const Bound bound(interpreter, "joiner", arguments, {"sep"});
  const Value separator = bound.value(0, Value(", "));
  const auto is_used = std::make_shared<bool>(false);
  return Value(std::make_shared<const Callable>(
      Callable{"joiner", [separator, is_used](Interpreter&, Arguments&) {
                 return std::exchange(*is_used, true) ? separator : Value("");
               }}));
}

// next() is all that templates use of it; current and reset would need an object of their own.
Value cycler(Interpreter& interpreter, Arguments& arguments) {
  if (arguments.positional.empty()) interpreter.fail("cycler: nothing to cycle over");
  const std::vector<Value> items = arguments.positional;
  const auto position = std::make_shared<std::size_t>(0);
  Dict attributes;
  attributes.set(Value("next"), Value(std::make_shared<const Callable>(
                                    Callable{"next", [items, position](Interpreter&, Arguments&) {
                                               return items[(*position)++ % items.size()];
                                             }})));
  attributes.set(Value("reset"), Value(std::make_shared<const Callable>(
                                     Callable{"reset", [position](Interpreter&, Arguments&) {
                                                *position = 0;
                                                return Value(None{});
                                              }})));
  return interpreter.make_namespace(std::move(attributes));
}

Value raise_exception(Interpreter& interpreter, Arguments& arguments) {
  const Bound bound(interpreter, "raise_exception", arguments, {"message"});
  interpreter.fail(to_text(bound.at(0)).bytes());
}

Value strftime_now(Interpreter& interpreter, Arguments& arguments) {
  const Bound bound(interpreter, "strftime_now", arguments, {"format"});
  const Text& format = need_text(interpreter, "strftime_now", bound.at(0));
  if (format.size() > 1000) interpreter.fail("strftime_now: the format is too long");
  const std::time_t now = std::chrono::system_clock::to_time_t(
      interpreter.options().now.value_or(std::chrono::system_clock::now()));
  std::tm local{};
  localtime_r(&now, &local);
  // A leading character tells an empty result from a buffer that was too small.
  std::string out(std::size_t{16} * 1024, '\0');
  const std::size_t size =
      std::strftime(out.data(), out.size(), ("x" + format.bytes()).c_str(), &local);
  if (size == 0) interpreter.fail("strftime_now: the result is too long");
  return interpreter.make_text(replace_ill_formed(out.substr(1, size - 1)), format.origin());
}

struct Entry {
  std::string_view name;
  Value (*function)(Interpreter&, Arguments&);
};

constexpr Entry kGlobals[] = {
    {"cycler", cycler},
    {"dict", make_dictionary},
    {"joiner", joiner},
    {"namespace", make_namespace},
    {"raise_exception", raise_exception},
    {"range", range},
    {"strftime_now", strftime_now},
};

}  // namespace

CallablePtr find_global(std::string_view name) {
  for (const Entry& entry : kGlobals) {
    if (entry.name == name) {
      return std::make_shared<const Callable>(Callable{std::string(name), entry.function});
    }
  }
  return nullptr;
}

}  // namespace winnow::jinja
