// State of one rendering: variables, output, and the budgets that stop a runaway template.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/chat_template.h"
#include "text/jinja/ast.h"
#include "text/jinja/value.h"

namespace winnow::jinja {

/// Variables of a block; inner blocks see outer ones, and assignments stay in their own.
class Scope {
 public:
  explicit Scope(std::shared_ptr<Scope> parent) : parent_(std::move(parent)) {}

  const Value* find(Symbol symbol) const;
  void set(Symbol symbol, Value value);
  void clear() { values_.clear(); }

 private:
  std::shared_ptr<Scope> parent_;
  std::vector<std::pair<Symbol, Value>> values_;
};

/// One thread, one rendering.
class Interpreter {
 public:
  Interpreter(const Program& program, const Dict& context, const RenderOptions& options);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  Text run();

  /// Budgets; throw Error (kTooLarge) when used up.
  void charge_steps(std::int64_t count = 1);
  void charge_bytes(std::size_t count);
  Value make_text(Text text);                         // charged
  Value make_text(std::string bytes, Origin origin);  // charged
  Value make_items(std::vector<Value> items, List::Flavor flavor = List::Flavor::kList);
  Value make_generator(std::vector<Value> items);

  /// Ends the rendering: kInvalidArgument with the template's name and current line.
  [[noreturn]] void fail(std::string_view message) const;

  /// What walking `value` gives: items, keys, characters. Uses a generator up.
  std::vector<Value> iterate(const Value& value);

  Value call(const Value& callee, Arguments& arguments);
  Flow execute(const Block& block);
  void assign(const Target& target, Value value);
  /// Runs `block` with its output going to the result instead.
  Text capture(const Block& block);
  Value make_macro(std::shared_ptr<const MacroDefinition> definition);
  Value make_namespace(Dict attributes);

  const RenderOptions& options() const { return options_; }
  std::string_view symbol_name(Symbol symbol) const {
    return program_.names[static_cast<std::size_t>(symbol)];
  }

  class Nesting {
   public:
    explicit Nesting(Interpreter& interpreter) : interpreter_(interpreter) { interpreter_.enter(); }
    ~Nesting() { --interpreter_.depth_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    Interpreter& interpreter_;
  };

  /// Replaces the scope for a block and puts the old one back.
  class ScopeGuard {
   public:
    ScopeGuard(Interpreter& interpreter, std::shared_ptr<Scope> scope)
        : interpreter_(interpreter), saved_(std::exchange(interpreter.scope, std::move(scope))) {}
    ~ScopeGuard() { interpreter_.scope = std::move(saved_); }
    ScopeGuard(const ScopeGuard&) = delete;
    ScopeGuard& operator=(const ScopeGuard&) = delete;

   private:
    Interpreter& interpreter_;
    std::shared_ptr<Scope> saved_;
  };

  std::shared_ptr<Scope> scope;
  Text* output = nullptr;
  int line = 0;

 private:
  void enter();
  Value run_macro(const MacroDefinition& definition, const std::shared_ptr<Scope>& outer,
                  Arguments& arguments);

  const Program& program_;
  const RenderOptions& options_;
  std::int64_t steps_left_;
  std::int64_t bytes_left_;
  int depth_ = 0;
  // Macros and namespaces can refer to what holds them; these are emptied at the end so that the
  // cycles come apart.
  std::vector<std::weak_ptr<Scope>> scopes_with_macros_;
  std::vector<std::weak_ptr<Namespace>> namespaces_;
};

}  // namespace winnow::jinja
