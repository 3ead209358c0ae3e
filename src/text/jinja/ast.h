// The parsed template. Nodes evaluate themselves: expressions.cpp and statements.cpp.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace winnow::jinja {

class Interpreter;

using Symbol = int;  // index into Program::names
using Filter = Value (*)(Interpreter& interpreter, const Value& input, Arguments& arguments);
using Test = bool (*)(Interpreter& interpreter, const Value& input, Arguments& arguments);

struct Expression {
  int line = 0;
  int depth = 1;  // of the tree below, bounded by the parser

  virtual ~Expression() = default;
  /// Counts a step and a level of nesting, then computes.
  Value evaluate(Interpreter& interpreter) const;

 protected:
  virtual Value compute(Interpreter& interpreter) const = 0;
};
using ExpressionPtr = std::unique_ptr<Expression>;

enum class Flow { kNext, kBreak, kContinue };

struct Statement {
  int line = 0;

  virtual ~Statement() = default;
  virtual Flow execute(Interpreter& interpreter) const = 0;
};
using StatementPtr = std::unique_ptr<Statement>;
using Block = std::vector<StatementPtr>;

// --- expressions -----------------------------------------------------------------------------

struct Literal : Expression {
  Value value;
  Value compute(Interpreter&) const override { return value; }
};

struct Name : Expression {
  Symbol symbol = 0;
  std::string name;
  Value compute(Interpreter& interpreter) const override;
};

struct ListLiteral : Expression {
  std::vector<ExpressionPtr> items;
  bool is_tuple = false;
  Value compute(Interpreter& interpreter) const override;
};

struct DictLiteral : Expression {
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> items;
  Value compute(Interpreter& interpreter) const override;
};

struct Unary : Expression {
  enum class Kind { kNot, kMinus, kPlus };
  Kind kind{};
  ExpressionPtr operand;
  Value compute(Interpreter& interpreter) const override;
};

struct Binary : Expression {
  enum class Kind { kAnd, kOr, kAdd, kSubtract, kMultiply, kDivide, kFloorDivide, kModulo, kPower };
  Kind kind{};
  ExpressionPtr left;
  ExpressionPtr right;
  Value compute(Interpreter& interpreter) const override;
};

struct Concat : Expression {  // a ~ b ~ c
  std::vector<ExpressionPtr> parts;
  Value compute(Interpreter& interpreter) const override;
};

struct Compare : Expression {  // a < b <= c, chained as in Python
  enum class Kind { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual, kIn, kNotIn };
  ExpressionPtr first;
  std::vector<std::pair<Kind, ExpressionPtr>> rest;
  Value compute(Interpreter& interpreter) const override;
};

struct Conditional : Expression {  // a if test else b
  ExpressionPtr test;
  ExpressionPtr if_true;
  ExpressionPtr if_false;  // may be null: undefined
  Value compute(Interpreter& interpreter) const override;
};

struct Attribute : Expression {  // object.name
  ExpressionPtr object;
  std::string name;
  Value compute(Interpreter& interpreter) const override;
};

struct Subscript : Expression {  // object[key]
  ExpressionPtr object;
  ExpressionPtr key;
  Value compute(Interpreter& interpreter) const override;
};

struct Slice : Expression {  // object[start:stop:step]
  ExpressionPtr object;
  ExpressionPtr start;  // each may be null
  ExpressionPtr stop;
  ExpressionPtr step;
  Value compute(Interpreter& interpreter) const override;
};

struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr star;         // *args
  ExpressionPtr double_star;  // **kwargs

  Arguments evaluate(Interpreter& interpreter) const;
  int depth() const;
};

struct Call : Expression {
  ExpressionPtr callee;
  CallArguments arguments;
  Value compute(Interpreter& interpreter) const override;
};

struct FilterCall : Expression {
  ExpressionPtr input;  // null: the text of a filter or set block
  Filter filter = nullptr;
  CallArguments arguments;
  Value apply(Interpreter& interpreter, Value value) const;
  Value compute(Interpreter& interpreter) const override;
};

struct TestCall : Expression {
  ExpressionPtr input;
  Test test = nullptr;
  CallArguments arguments;
  bool is_negated = false;
  Value compute(Interpreter& interpreter) const override;
};

// --- statements ------------------------------------------------------------------------------

struct Data : Statement {
  std::string text;
  Flow execute(Interpreter& interpreter) const override;
};

struct Output : Statement {
  ExpressionPtr expression;
  Flow execute(Interpreter& interpreter) const override;
};

/// What a value can be assigned to: a name, namespace.attribute, or several of them.
struct Target {
  Symbol symbol = -1;
  std::string name;
  std::string attribute;      // not empty: an attribute of the namespace `name`
  std::vector<Target> parts;  // not empty: unpacked
};

struct If : Statement {
  std::vector<std::pair<ExpressionPtr, Block>> branches;
  Block otherwise;
  Flow execute(Interpreter& interpreter) const override;
};

struct For : Statement {
  Target target;
  ExpressionPtr iterable;
  ExpressionPtr filter;  // may be null
  bool is_recursive = false;
  Symbol loop_symbol = -1;
  Block body;
  Block otherwise;
  Flow execute(Interpreter& interpreter) const override;
  void run(Interpreter& interpreter, const Value& iterable_value, int depth0) const;
};

struct Set : Statement {
  Target target;
  ExpressionPtr value;
  Flow execute(Interpreter& interpreter) const override;
};

struct SetBlock : Statement {
  Target target;
  ExpressionPtr filter;  // chain of FilterCall whose innermost input is null, or null
  Block body;
  Flow execute(Interpreter& interpreter) const override;
};

struct FilterBlock : Statement {
  ExpressionPtr filter;
  Block body;
  Flow execute(Interpreter& interpreter) const override;
};

struct With : Statement {
  std::vector<std::pair<Target, ExpressionPtr>> values;
  Block body;
  Flow execute(Interpreter& interpreter) const override;
};

struct MacroDefinition {
  std::string name;
  struct Parameter {
    Symbol symbol;
    std::string name;
    ExpressionPtr default_value;  // may be null
  };
  std::vector<Parameter> parameters;
  Block body;
  // Present where the body mentions the name.
  std::optional<Symbol> varargs;
  std::optional<Symbol> kwargs;
  std::optional<Symbol> caller;
};

struct Macro : Statement {
  Symbol symbol = -1;
  std::shared_ptr<const MacroDefinition> definition;
  Flow execute(Interpreter& interpreter) const override;
};

struct CallBlock : Statement {
  ExpressionPtr call;  // a Call
  std::shared_ptr<const MacroDefinition> caller;
  Flow execute(Interpreter& interpreter) const override;
};

struct Group : Statement {  // {% generation %}: only its body counts
  Block body;
  Flow execute(Interpreter& interpreter) const override;
};

struct Jump : Statement {
  Flow flow{};
  Flow execute(Interpreter&) const override { return flow; }
};

struct Program {
  std::string name;  // of the template, for messages
  std::vector<std::string> names;
  Block body;
};

}  // namespace winnow::jinja
