// The half of the parser that reads expressions, by recursive descent with bounded depth.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

namespace winnow::jinja {

class ExpressionParser {
 public:
  ExpressionParser(std::vector<Token> tokens, Program& program);

  /// With `with_condition` also "a if b else c"; `with_tuple` also "a, b".
  ExpressionPtr parse_expression(bool with_condition = true);
  ExpressionPtr parse_tuple(bool with_condition = true, bool is_parenthesized = false,
                            bool stops_at_recursive = false);
  CallArguments parse_call_arguments();
  /// "name(args) | name…" applied to `input`, which may be null; `is_inline` when the first name
  /// comes without a bar.
  ExpressionPtr parse_filters(ExpressionPtr input, bool is_inline);
  ExpressionPtr parse_postfix(ExpressionPtr node);
  ExpressionPtr parse_primary();

  const Token& current() const { return tokens_[position_]; }
  const Token& peek() const { return tokens_[std::min(position_ + 1, tokens_.size() - 1)]; }
  Token take();
  bool is_operator(std::string_view text) const;
  bool is_name(std::string_view text) const;
  bool take_if_operator(std::string_view text);
  bool take_if_name(std::string_view text);
  void expect_operator(std::string_view text);
  std::string expect_name();
  [[noreturn]] void fail(std::string_view message) const;
  [[noreturn]] void fail_unexpected() const;

  Symbol intern(const std::string& name);
  /// Names read since the set was handed in, for macros that ask for caller, varargs, kwargs.
  std::unordered_set<std::string>* names_read = nullptr;

 private:
  class Nesting;

  template <typename Node>
  std::unique_ptr<Node> make(int line) const;
  template <typename Node, typename... Children>
  ExpressionPtr finish(std::unique_ptr<Node> node, const Children&... children) const;
  ExpressionPtr check_depth(ExpressionPtr node, int depth) const;

  ExpressionPtr parse_or();
  ExpressionPtr parse_and();
  ExpressionPtr parse_not();
  ExpressionPtr parse_compare();
  ExpressionPtr parse_sum();
  ExpressionPtr parse_concat();
  ExpressionPtr parse_product();
  ExpressionPtr parse_power();
  ExpressionPtr parse_unary(bool with_filter);
  ExpressionPtr parse_filter_chain(ExpressionPtr node);
  ExpressionPtr parse_test(ExpressionPtr input);
  ExpressionPtr parse_subscript(ExpressionPtr object);
  ExpressionPtr parse_call(ExpressionPtr callee);
  ExpressionPtr parse_list();
  ExpressionPtr parse_dict();
  ExpressionPtr parse_literal_number();
  bool is_tuple_end(bool stops_at_recursive) const;

  std::vector<Token> tokens_;
  std::size_t position_ = 0;
  int nesting_ = 0;
  Program& program_;
  std::unordered_map<std::string, Symbol> symbols_;
};

}  // namespace winnow::jinja
