#include "text/jinja/interpreter.h"

#include <fmt/format.h>

#include "base/error.h"
#include "text/jinja/builtins.h"
#include "text/jinja/characters.h"

namespace winnow::jinja {

const Value* Scope::find(Symbol symbol) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent_.get()) {
    for (const auto& [name, value] : scope->values_) {
      if (name == symbol) return &value;
    }
  }
  return nullptr;
}

void Scope::set(Symbol symbol, Value value) {
  for (auto& [name, old] : values_) {
    if (name == symbol) {
      old = std::move(value);
      return;
    }
  }
  values_.emplace_back(symbol, std::move(value));
}

Interpreter::Interpreter(const Program& program, const Dict& context, const RenderOptions& options)
    : scope(std::make_shared<Scope>(nullptr)),
      program_(program),
      options_(options),
      steps_left_(options.limits.max_steps),
      bytes_left_(options.limits.max_allocated_bytes) {
  for (std::size_t i = 0; i < program.names.size(); ++i) {
    const auto symbol = static_cast<Symbol>(i);
    if (const Value* value = context.find(program.names[i])) {
      scope->set(symbol, *value);
    } else if (CallablePtr global = find_global(program.names[i])) {
      scope->set(symbol, Value(std::move(global)));
    }
  }
  scope = std::make_shared<Scope>(std::move(scope));
}

Interpreter::~Interpreter() {
  // What an attribute held may itself be the last owner of a namespace further on; all are kept
  // alive until the end so that no chain of them is destroyed by recursion.
  std::vector<std::shared_ptr<Namespace>> kept;
  for (const auto& weak : namespaces_) {
    if (std::shared_ptr<Namespace> names = weak.lock()) kept.push_back(std::move(names));
  }
  for (const auto& names : kept) names->attributes = Dict();
  for (const auto& weak : scopes_with_macros_) {
    if (const std::shared_ptr<Scope> defining = weak.lock()) defining->clear();
  }
}

Text Interpreter::run() {
  Text out;
  output = &out;
  try {
    execute(program_.body);
  } catch (const Error& error) {
    // Values know nothing of templates; what they refuse gets its place here.
    const std::string message = error.what();
    if (message.starts_with(program_.name + ", line ")) throw;
    throw Error(error.code(), fmt::format("{}, line {}: {}", program_.name, line, message),
                error.hint(), error.param());
  }
  return out;
}

void Interpreter::enter() {
  if (depth_ >= options_.limits.max_depth) {
    throw Error(ErrorCode::kTooLarge,
                fmt::format("{}, line {}: calls and expressions nested more than {} deep",
                            program_.name, line, options_.limits.max_depth));
  }
  ++depth_;
}

void Interpreter::charge_steps(std::int64_t count) {
  if ((steps_left_ -= count) < 0) {
    throw Error(ErrorCode::kTooLarge, fmt::format("{}, line {}: more than {} steps", program_.name,
                                                  line, options_.limits.max_steps));
  }
}

void Interpreter::charge_bytes(std::size_t count) {
  const auto bytes = static_cast<std::int64_t>(count);
  if (bytes > options_.limits.max_output_bytes || (bytes_left_ -= bytes) < 0) {
    throw Error(
        ErrorCode::kTooLarge,
        fmt::format("{}, line {}: more than {} bytes in a string or {} in all", program_.name, line,
                    options_.limits.max_output_bytes, options_.limits.max_allocated_bytes));
  }
}

Value Interpreter::make_text(Text text) {
  charge_bytes(text.size());
  return Value(std::move(text));
}

Value Interpreter::make_text(std::string bytes, Origin origin) {
  return make_text(Text(std::move(bytes), origin));
}

Value Interpreter::make_items(std::vector<Value> items, List::Flavor flavor) {
  charge_bytes(items.size() * sizeof(Value));
  return Value(make_list(std::move(items), flavor));
}

Value Interpreter::make_generator(std::vector<Value> items) {
  charge_bytes(items.size() * sizeof(Value));
  return Value(std::make_shared<Generator>(Generator{std::move(items), 0}));
}

Value Interpreter::make_namespace(Dict attributes) {
  auto names = std::make_shared<Namespace>(Namespace{std::move(attributes)});
  charge_bytes(sizeof(Namespace));
  namespaces_.push_back(names);
  return Value(std::move(names));
}

void Interpreter::fail(std::string_view message) const {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{}, line {}: {}", program_.name, line, message));
}

std::vector<Value> Interpreter::iterate(const Value& value) {
  std::vector<Value> items;
  if (const List* list = value.list()) {
    items = list->items;
  } else if (const Dict* dict = value.dict()) {
    items.reserve(dict->items.size());
    for (const auto& item : dict->items) items.push_back(item.first);
  } else if (const Text* text = value.text()) {
    const std::vector<std::size_t> positions = character_positions(text->bytes());
    charge_bytes(positions.size() * (sizeof(Value) + sizeof(Text)));
    for (std::size_t i = 0; i + 1 < positions.size(); ++i) {
      items.emplace_back(text->part(positions[i], positions[i + 1]));
    }
  } else if (const auto* generator = value.get_if<GeneratorPtr>()) {
    Generator& state = **generator;
    const auto begin = state.items.begin() + static_cast<std::ptrdiff_t>(state.next);
    items.assign(begin, state.items.end());
    state.next = state.items.size();
  } else if (!value.is_undefined()) {
    fail(fmt::format("a {} cannot be iterated over", type_name(value)));
  }
  charge_steps(static_cast<std::int64_t>(items.size()));
  charge_bytes(items.size() * sizeof(Value));
  return items;
}

Value Interpreter::call(const Value& callee, Arguments& arguments) {
  if (const auto* callable = callee.get_if<CallablePtr>()) {
    const CallablePtr kept = *callable;
    return kept->call(*this, arguments);
  }
  if (const auto* loop = callee.get_if<LoopPtr>()) {
    if ((*loop)->recurse && arguments.positional.size() == 1) {
      const auto recurse = (*loop)->recurse;
      return recurse(*this, arguments.positional[0]);
    }
    fail("loop can be called in a recursive loop only, with one argument");
  }
  if (const Undefined* undefined = callee.get_if<Undefined>()) {
    fail(undefined->reason == nullptr ? "an undefined value cannot be called" : *undefined->reason);
  }
  fail(fmt::format("a {} cannot be called", type_name(callee)));
}

Flow Interpreter::execute(const Block& block) {
  const Nesting nesting(*this);
  for (const StatementPtr& statement : block) {
    line = statement->line;
    charge_steps();
    const Flow flow = statement->execute(*this);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Text Interpreter::capture(const Block& block) {
  Text captured;
  Text* const saved = std::exchange(output, &captured);
  try {
    execute(block);
  } catch (...) {
    output = saved;
    throw;
  }
  output = saved;
  return captured;
}

void Interpreter::assign(const Target& target, Value value) {
  if (!target.parts.empty()) {
    std::vector<Value> items = iterate(value);
    if (items.size() != target.parts.size()) {
      fail(fmt::format("{} values cannot be unpacked into {} names", items.size(),
                       target.parts.size()));
    }
    for (std::size_t i = 0; i < items.size(); ++i) assign(target.parts[i], std::move(items[i]));
    return;
  }
  if (target.attribute.empty()) {
    scope->set(target.symbol, std::move(value));
    return;
  }
  const Value* object = scope->find(target.symbol);
  const NamespacePtr* names = object == nullptr ? nullptr : object->get_if<NamespacePtr>();
  if (names == nullptr) {
    fail(fmt::format("{}.{}: attributes can be set on a namespace only", target.name,
                     target.attribute));
  }
  (*names)->attributes.set(Value(target.attribute, Origin::kTemplate), std::move(value));
}

Value Interpreter::make_macro(std::shared_ptr<const MacroDefinition> definition) {
  scopes_with_macros_.push_back(scope);
  charge_bytes(sizeof(Callable) + 2 * sizeof(void*));
  std::string name = definition->name;
  // The defining scope is held weakly by nobody else: a macro keeps what it can see alive.
  return Value(std::make_shared<const Callable>(
      Callable{std::move(name), [definition = std::move(definition), outer = scope](
                                    Interpreter& interpreter, Arguments& arguments) {
                 return interpreter.run_macro(*definition, outer, arguments);
               }}));
}

Value Interpreter::run_macro(const MacroDefinition& definition, const std::shared_ptr<Scope>& outer,
                             Arguments& arguments) {
  const Nesting nesting(*this);
  const ScopeGuard guard(*this, std::make_shared<Scope>(outer));
  const int calling_line = line;
  std::vector<std::pair<std::string, Value>> named = std::move(arguments.named);
  const auto take_named = [&](std::string_view name) -> std::optional<Value> {
    for (auto item = named.begin(); item != named.end(); ++item) {
      if (item->first != name) continue;
      Value value = std::move(item->second);
      named.erase(item);
      return value;
    }
    return std::nullopt;
  };
  for (std::size_t i = 0; i < definition.parameters.size(); ++i) {
    const MacroDefinition::Parameter& parameter = definition.parameters[i];
    if (i < arguments.positional.size()) {
      scope->set(parameter.symbol, arguments.positional[i]);
    } else if (std::optional<Value> value = take_named(parameter.name)) {
      scope->set(parameter.symbol, *std::move(value));
    } else if (parameter.default_value != nullptr) {
      scope->set(parameter.symbol, parameter.default_value->evaluate(*this));
    } else {
      scope->set(parameter.symbol,
                 Value::undefined(fmt::format("parameter '{}' was not provided", parameter.name)));
    }
  }
  if (definition.caller) {
    std::optional<Value> value = take_named("caller");
    scope->set(*definition.caller,
               value ? *std::move(value) : Value::undefined("No caller defined"));
  }
  if (definition.kwargs) {
    Dict dict;
    for (auto& [name, value] : named) dict.set(Value(name, Origin::kTemplate), std::move(value));
    scope->set(*definition.kwargs, Value(make_dict(std::move(dict))));
  } else if (!named.empty()) {
    fail(fmt::format("macro {} has no parameter {}", definition.name, named.front().first));
  }
  const std::size_t num_parameters = definition.parameters.size();
  if (definition.varargs) {
    std::vector<Value> extra;
    for (std::size_t i = num_parameters; i < arguments.positional.size(); ++i) {
      extra.push_back(arguments.positional[i]);
    }
    scope->set(*definition.varargs, make_items(std::move(extra), List::Flavor::kTuple));
  } else if (arguments.positional.size() > num_parameters) {
    fail(fmt::format("macro {} takes {} arguments, got {}", definition.name, num_parameters,
                     arguments.positional.size()));
  }
  Text result = capture(definition.body);
  line = calling_line;
  return make_text(std::move(result));
}

}  // namespace winnow::jinja
