// Evaluation of expressions.
#include <fmt/format.h>

#include "text/jinja/ast.h"
#include "text/jinja/builtins.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/operators.h"

namespace winnow::jinja {

Value Expression::evaluate(Interpreter& interpreter) const {
  const Interpreter::Nesting nesting(interpreter);
  interpreter.charge_steps();
  return compute(interpreter);
}

Value Name::compute(Interpreter& interpreter) const {
  const Value* value = interpreter.scope->find(symbol);
  return value != nullptr ? *value : Value::undefined(fmt::format("'{}' is undefined", name));
}

Value ListLiteral::compute(Interpreter& interpreter) const {
  std::vector<Value> values;
  values.reserve(items.size());
  for (const ExpressionPtr& item : items) values.push_back(item->evaluate(interpreter));
  return interpreter.make_items(std::move(values),
                                is_tuple ? List::Flavor::kTuple : List::Flavor::kList);
}

Value DictLiteral::compute(Interpreter& interpreter) const {
  Dict dict;
  for (const auto& [key, value] : items) {
    Value key_value = key->evaluate(interpreter);
    dict.set(std::move(key_value), value->evaluate(interpreter));
  }
  interpreter.charge_bytes(items.size() * 2 * sizeof(Value));
  return Value(make_dict(std::move(dict)));
}

Value Unary::compute(Interpreter& interpreter) const {
  Value value = operand->evaluate(interpreter);
  if (kind == Kind::kNot) return !is_true(value);
  interpreter.line = line;
  if (kind == Kind::kMinus) return negate(interpreter, value);
  if (const bool* b = value.get_if<bool>()) return *b ? 1 : 0;
  if (!is_number(value)) negate(interpreter, value);  // fails with the right message
  return value;
}

Value Binary::compute(Interpreter& interpreter) const {
  Value first = left->evaluate(interpreter);
  if (kind == Kind::kAnd) return is_true(first) ? right->evaluate(interpreter) : first;
  if (kind == Kind::kOr) return is_true(first) ? first : right->evaluate(interpreter);
  const Value second = right->evaluate(interpreter);
  interpreter.line = line;
  return apply_binary(interpreter, kind, first, second);
}

Value Concat::compute(Interpreter& interpreter) const {
  Text out;
  for (const ExpressionPtr& part : parts) {
    const Text text = to_text(part->evaluate(interpreter));
    interpreter.charge_bytes(text.size());
    out.append(text);
  }
  interpreter.charge_bytes(out.size());
  return Value(std::move(out));
}

Value Compare::compute(Interpreter& interpreter) const {
  Value left = first->evaluate(interpreter);
  for (const auto& [kind, expression] : rest) {
    Value right = expression->evaluate(interpreter);
    interpreter.line = line;
    bool holds = false;
    switch (kind) {
      case Kind::kEqual:
        holds = equals(left, right);
        break;
      case Kind::kNotEqual:
        holds = !equals(left, right);
        break;
      case Kind::kLess:
        holds = order(interpreter, left, right) < 0;
        break;
      case Kind::kLessEqual:
        holds = order(interpreter, left, right) <= 0;
        break;
      case Kind::kGreater:
        holds = order(interpreter, left, right) > 0;
        break;
      case Kind::kGreaterEqual:
        holds = order(interpreter, left, right) >= 0;
        break;
      case Kind::kIn:
        holds = contains(interpreter, right, left);
        break;
      case Kind::kNotIn:
        holds = !contains(interpreter, right, left);
        break;
    }
    if (!holds) return false;
    left = std::move(right);
  }
  return true;
}

Value Conditional::compute(Interpreter& interpreter) const {
  if (is_true(test->evaluate(interpreter))) return if_true->evaluate(interpreter);
  if (if_false != nullptr) return if_false->evaluate(interpreter);
  return Value::undefined("the inline if expression has no else and its condition is false");
}

Value Attribute::compute(Interpreter& interpreter) const {
  const Value value = object->evaluate(interpreter);
  interpreter.line = line;
  return get_attribute(interpreter, value, name);
}

Value Subscript::compute(Interpreter& interpreter) const {
  const Value value = object->evaluate(interpreter);
  const Value index = key->evaluate(interpreter);
  interpreter.line = line;
  return get_item(interpreter, value, index);
}

Value Slice::compute(Interpreter& interpreter) const {
  const Value value = object->evaluate(interpreter);
  const auto bound = [&](const ExpressionPtr& expression) {
    return expression == nullptr ? Value(None{}) : expression->evaluate(interpreter);
  };
  const Value from = bound(start);
  const Value to = bound(stop);
  const Value by = bound(step);
  interpreter.line = line;
  return get_slice(interpreter, value, from, to, by);
}

Arguments CallArguments::evaluate(Interpreter& interpreter) const {
  Arguments arguments;
  arguments.positional.reserve(positional.size());
  for (const ExpressionPtr& value : positional) {
    arguments.positional.push_back(value->evaluate(interpreter));
  }
  for (const auto& [name, value] : named) {
    arguments.named.emplace_back(name, value->evaluate(interpreter));
  }
  if (star != nullptr) {
    for (Value& value : interpreter.iterate(star->evaluate(interpreter))) {
      arguments.positional.push_back(std::move(value));
    }
  }
  if (double_star != nullptr) {
    const Value value = double_star->evaluate(interpreter);
    if (value.dict() == nullptr) interpreter.fail("the argument after ** is not a mapping");
    for (const auto& [key, item] : value.dict()->items) {
      if (key.text() == nullptr) interpreter.fail("keywords must be strings");
      arguments.named.emplace_back(key.text()->bytes(), item);
    }
  }
  return arguments;
}

Value Call::compute(Interpreter& interpreter) const {
  const Value value = callee->evaluate(interpreter);
  Arguments evaluated = arguments.evaluate(interpreter);
  interpreter.line = line;
  return interpreter.call(value, evaluated);
}

Value FilterCall::apply(Interpreter& interpreter, Value value) const {
  if (input != nullptr) {  // an inner filter of the chain
    value = static_cast<const FilterCall&>(*input).apply(interpreter, std::move(value));
  }
  Arguments evaluated = arguments.evaluate(interpreter);
  interpreter.line = line;
  return filter(interpreter, value, evaluated);
}

Value FilterCall::compute(Interpreter& interpreter) const {
  const Value value = input->evaluate(interpreter);
  Arguments evaluated = arguments.evaluate(interpreter);
  interpreter.line = line;
  return filter(interpreter, value, evaluated);
}

Value TestCall::compute(Interpreter& interpreter) const {
  const Value value = input->evaluate(interpreter);
  Arguments evaluated = arguments.evaluate(interpreter);
  interpreter.line = line;
  return test(interpreter, value, evaluated) != is_negated;
}

}  // namespace winnow::jinja
