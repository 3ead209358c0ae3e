// Execution of statements.
#include <fmt/format.h>

#include "text/jinja/ast.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/operators.h"

namespace winnow::jinja {

namespace {

void write(Interpreter& interpreter, const Text& text) {
  interpreter.charge_bytes(text.size());
  interpreter.output->append(text);
  if (static_cast<std::int64_t>(interpreter.output->size()) >
      interpreter.options().limits.max_output_bytes) {
    interpreter.charge_bytes(interpreter.output->size());  // over the limit: ends the rendering
  }
}

}  // namespace

Flow Data::execute(Interpreter& interpreter) const {
  write(interpreter, Text(text, Origin::kTemplate));
  return Flow::kNext;
}

Flow Output::execute(Interpreter& interpreter) const {
  write(interpreter, to_text(expression->evaluate(interpreter)));
  return Flow::kNext;
}

Flow If::execute(Interpreter& interpreter) const {
  for (const auto& [test, block] : branches) {
    if (is_true(test->evaluate(interpreter))) return interpreter.execute(block);
  }
  return interpreter.execute(otherwise);
}

Flow For::execute(Interpreter& interpreter) const {
  run(interpreter, iterable->evaluate(interpreter), 0);
  return Flow::kNext;
}

void For::run(Interpreter& interpreter, const Value& iterable_value, int depth0) const {
  const Interpreter::Nesting nesting(interpreter);
  interpreter.line = line;
  std::vector<Value> items = interpreter.iterate(iterable_value);
  const std::shared_ptr<Scope> outer = interpreter.scope;
  if (filter != nullptr) {
    std::erase_if(items, [&](const Value& item) {
      const Interpreter::ScopeGuard guard(interpreter, std::make_shared<Scope>(outer));
      interpreter.assign(target, item);
      return !is_true(filter->evaluate(interpreter));
    });
  }
  if (items.empty()) {
    const Interpreter::ScopeGuard guard(interpreter, std::make_shared<Scope>(outer));
    interpreter.execute(otherwise);
    return;
  }
  const auto loop = std::make_shared<Loop>();
  loop->items = &items;
  loop->depth0 = depth0;
  if (is_recursive) {
    loop->recurse = [this, outer, depth0](Interpreter& inner, const Value& value) {
      const Interpreter::ScopeGuard guard(inner, outer);
      Text captured;
      Text* const saved = std::exchange(inner.output, &captured);
      try {
        run(inner, value, depth0 + 1);
      } catch (...) {
        inner.output = saved;
        throw;
      }
      inner.output = saved;
      return inner.make_text(std::move(captured));
    };
  }
  // The loop object may outlive this function; what it points to does not.
  struct Detach {
    Loop& loop;
    ~Detach() {
      loop.items = nullptr;
      loop.recurse = nullptr;
    }
  } const detach{*loop};
  for (std::size_t i = 0; i < items.size(); ++i) {
    loop->index0 = static_cast<std::int64_t>(i);
    const Interpreter::ScopeGuard guard(interpreter, std::make_shared<Scope>(outer));
    interpreter.scope->set(loop_symbol, Value(loop));
    interpreter.assign(target, items[i]);
    if (interpreter.execute(body) == Flow::kBreak) break;
  }
}

Flow Set::execute(Interpreter& interpreter) const {
  interpreter.assign(target, value->evaluate(interpreter));
  return Flow::kNext;
}

Flow SetBlock::execute(Interpreter& interpreter) const {
  Value value;
  {
    const Interpreter::ScopeGuard guard(interpreter, std::make_shared<Scope>(interpreter.scope));
    value = interpreter.make_text(interpreter.capture(body));
    if (filter != nullptr) {
      value = static_cast<const FilterCall&>(*filter).apply(interpreter, std::move(value));
    }
  }
  interpreter.assign(target, std::move(value));
  return Flow::kNext;
}

Flow FilterBlock::execute(Interpreter& interpreter) const {
  const Interpreter::ScopeGuard guard(interpreter, std::make_shared<Scope>(interpreter.scope));
  Value value = interpreter.make_text(interpreter.capture(body));
  value = static_cast<const FilterCall&>(*filter).apply(interpreter, std::move(value));
  write(interpreter, to_text(value));
  return Flow::kNext;
}

Flow With::execute(Interpreter& interpreter) const {
  auto inner = std::make_shared<Scope>(interpreter.scope);
  for (const auto& [name, expression] : values) {
    inner->set(name.symbol, expression->evaluate(interpreter));
  }
  const Interpreter::ScopeGuard guard(interpreter, std::move(inner));
  return interpreter.execute(body);
}

Flow Macro::execute(Interpreter& interpreter) const {
  interpreter.scope->set(symbol, interpreter.make_macro(definition));
  return Flow::kNext;
}

Flow CallBlock::execute(Interpreter& interpreter) const {
  const auto& node = static_cast<const Call&>(*call);
  const Value callee = node.callee->evaluate(interpreter);
  Arguments arguments = node.arguments.evaluate(interpreter);
  arguments.named.emplace_back("caller", interpreter.make_macro(caller));
  interpreter.line = line;
  write(interpreter, to_text(interpreter.call(callee, arguments)));
  return Flow::kNext;
}

Flow Group::execute(Interpreter& interpreter) const { return interpreter.execute(body); }

}  // namespace winnow::jinja
