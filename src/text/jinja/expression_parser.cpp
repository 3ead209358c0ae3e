#include "text/jinja/expression_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "text/jinja/builtins.h"

namespace winnow::jinja {

namespace {

using Kind = Token::Kind;
constexpr int kMaxTreeDepth = 250;

int depth_of(const ExpressionPtr& node) { return node == nullptr ? 0 : node->depth; }
int depth_of(const std::vector<ExpressionPtr>& nodes) {
  int depth = 0;
  for (const ExpressionPtr& node : nodes) depth = std::max(depth, depth_of(node));
  return depth;
}
int depth_of(const CallArguments& arguments) { return arguments.depth(); }

}  // namespace

class ExpressionParser::Nesting {
 public:
  explicit Nesting(ExpressionParser& parser) : parser_(parser) {
    if (++parser_.nesting_ > kMaxTreeDepth) parser_.fail("expression nested too deeply");
  }
  ~Nesting() { --parser_.nesting_; }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;

 private:
  ExpressionParser& parser_;
};

int CallArguments::depth() const {
  int depth = std::max({depth_of(positional), depth_of(star), depth_of(double_star)});
  for (const auto& [name, value] : named) depth = std::max(depth, depth_of(value));
  return depth;
}

ExpressionParser::ExpressionParser(std::vector<Token> tokens, Program& program)
    : tokens_(std::move(tokens)), program_(program) {}

template <typename Node>
std::unique_ptr<Node> ExpressionParser::make(int line) const {
  auto node = std::make_unique<Node>();
  node->line = line;
  return node;
}

template <typename Node, typename... Children>
ExpressionPtr ExpressionParser::finish(std::unique_ptr<Node> node,
                                       const Children&... children) const {
  const int depth = std::max({0, depth_of(children)...});
  return check_depth(std::move(node), depth + 1);
}

ExpressionPtr ExpressionParser::check_depth(ExpressionPtr node, int depth) const {
  if (depth > kMaxTreeDepth) fail("expression nested too deeply");
  node->depth = depth;
  return node;
}

Token ExpressionParser::take() {
  Token token = current();
  if (position_ + 1 < tokens_.size()) ++position_;
  return token;
}

bool ExpressionParser::is_operator(std::string_view text) const {
  return current().kind == Kind::kOperator && current().text == text;
}

bool ExpressionParser::is_name(std::string_view text) const {
  return current().kind == Kind::kName && current().text == text;
}

bool ExpressionParser::take_if_operator(std::string_view text) {
  if (!is_operator(text)) return false;
  take();
  return true;
}

bool ExpressionParser::take_if_name(std::string_view text) {
  if (!is_name(text)) return false;
  take();
  return true;
}

void ExpressionParser::expect_operator(std::string_view text) {
  if (!take_if_operator(text)) fail(fmt::format("expected '{}'", text));
}

std::string ExpressionParser::expect_name() {
  if (current().kind != Kind::kName) fail("expected a name");
  return take().text;
}

void ExpressionParser::fail(std::string_view message) const {
  fail_syntax(program_.name, current().line, message);
}

void ExpressionParser::fail_unexpected() const {
  switch (current().kind) {
    case Kind::kEnd:
      fail("unexpected end of template");
    case Kind::kVariableEnd:
    case Kind::kBlockEnd:
      fail("unexpected end of tag");
    default:
      fail(fmt::format("unexpected '{}'", current().text));
  }
}

Symbol ExpressionParser::intern(const std::string& name) {
  const auto [found, is_new] = symbols_.emplace(name, static_cast<Symbol>(program_.names.size()));
  if (is_new) program_.names.push_back(name);
  return found->second;
}

ExpressionPtr ExpressionParser::parse_expression(bool with_condition) {
  if (!with_condition) return parse_or();
  const Nesting nesting(*this);
  ExpressionPtr value = parse_or();
  while (is_name("if")) {
    auto node = make<Conditional>(take().line);
    node->if_true = std::move(value);
    node->test = parse_or();
    if (take_if_name("else")) node->if_false = parse_expression();
    Conditional& made = *node;
    value = finish(std::move(node), made.if_true, made.test, made.if_false);
  }
  return value;
}

ExpressionPtr ExpressionParser::parse_or() {
  ExpressionPtr left = parse_and();
  while (is_name("or")) {
    auto node = make<Binary>(take().line);
    node->kind = Binary::Kind::kOr;
    node->left = std::move(left);
    node->right = parse_and();
    Binary& made = *node;
    left = finish(std::move(node), made.left, made.right);
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_and() {
  ExpressionPtr left = parse_not();
  while (is_name("and")) {
    auto node = make<Binary>(take().line);
    node->kind = Binary::Kind::kAnd;
    node->left = std::move(left);
    node->right = parse_not();
    Binary& made = *node;
    left = finish(std::move(node), made.left, made.right);
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_not() {
  if (!is_name("not")) return parse_compare();
  const Nesting nesting(*this);
  auto node = make<Unary>(take().line);
  node->kind = Unary::Kind::kNot;
  node->operand = parse_not();
  Unary& made = *node;
  return finish(std::move(node), made.operand);
}

ExpressionPtr ExpressionParser::parse_compare() {
  using CompareKind = Compare::Kind;
  auto node = make<Compare>(current().line);
  node->first = parse_sum();
  int depth = node->first->depth;
  while (true) {
    CompareKind kind{};
    if (take_if_operator("==")) {
      kind = CompareKind::kEqual;
    } else if (take_if_operator("!=")) {
      kind = CompareKind::kNotEqual;
    } else if (take_if_operator("<")) {
      kind = CompareKind::kLess;
    } else if (take_if_operator("<=")) {
      kind = CompareKind::kLessEqual;
    } else if (take_if_operator(">")) {
      kind = CompareKind::kGreater;
    } else if (take_if_operator(">=")) {
      kind = CompareKind::kGreaterEqual;
    } else if (take_if_name("in")) {
      kind = CompareKind::kIn;
    } else if (is_name("not") && peek().kind == Kind::kName && peek().text == "in") {
      take();
      take();
      kind = CompareKind::kNotIn;
    } else {
      break;
    }
    node->rest.emplace_back(kind, parse_sum());
    depth = std::max(depth, node->rest.back().second->depth);
  }
  if (node->rest.empty()) return std::move(node->first);
  return check_depth(std::move(node), depth + 1);
}

ExpressionPtr ExpressionParser::parse_sum() {
  ExpressionPtr left = parse_concat();
  while (is_operator("+") || is_operator("-")) {
    const Token token = take();
    auto node = make<Binary>(token.line);
    node->kind = token.text == "+" ? Binary::Kind::kAdd : Binary::Kind::kSubtract;
    node->left = std::move(left);
    node->right = parse_concat();
    Binary& made = *node;
    left = finish(std::move(node), made.left, made.right);
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_concat() {
  ExpressionPtr first = parse_product();
  if (!is_operator("~")) return first;
  auto node = make<Concat>(current().line);
  node->parts.push_back(std::move(first));
  while (take_if_operator("~")) node->parts.push_back(parse_product());
  Concat& made = *node;
  return finish(std::move(node), made.parts);
}

ExpressionPtr ExpressionParser::parse_product() {
  ExpressionPtr left = parse_power();
  while (true) {
    Binary::Kind kind{};
    if (is_operator("*")) {
      kind = Binary::Kind::kMultiply;
    } else if (is_operator("/")) {
      kind = Binary::Kind::kDivide;
    } else if (is_operator("//")) {
      kind = Binary::Kind::kFloorDivide;
    } else if (is_operator("%")) {
      kind = Binary::Kind::kModulo;
    } else {
      return left;
    }
    auto node = make<Binary>(take().line);
    node->kind = kind;
    node->left = std::move(left);
    node->right = parse_power();
    Binary& made = *node;
    left = finish(std::move(node), made.left, made.right);
  }
}

ExpressionPtr ExpressionParser::parse_power() {
  ExpressionPtr left = parse_unary(true);
  while (is_operator("**")) {
    auto node = make<Binary>(take().line);
    node->kind = Binary::Kind::kPower;
    node->left = std::move(left);
    node->right = parse_unary(true);
    Binary& made = *node;
    left = finish(std::move(node), made.left, made.right);
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_unary(bool with_filter) {
  const Nesting nesting(*this);
  ExpressionPtr node;
  if (is_operator("-") || is_operator("+")) {
    const Token token = take();
    auto unary = make<Unary>(token.line);
    unary->kind = token.text == "-" ? Unary::Kind::kMinus : Unary::Kind::kPlus;
    unary->operand = parse_unary(false);
    Unary& made = *unary;
    node = finish(std::move(unary), made.operand);
  } else {
    node = parse_primary();
  }
  node = parse_postfix(std::move(node));
  return with_filter ? parse_filter_chain(std::move(node)) : std::move(node);
}

ExpressionPtr ExpressionParser::parse_literal_number() {
  const Token token = take();
  auto node = make<Literal>(token.line);
  if (token.kind == Kind::kFloat) {
    node->value = std::strtod(token.text.c_str(), nullptr);
    return node;
  }
  std::int64_t value = 0;
  const char* end = token.text.data() + token.text.size();
  if (std::from_chars(token.text.data(), end, value).ec == std::errc()) {
    node->value = value;
  } else {
    node->value = BigInt{std::make_shared<const std::string>(token.text)};
  }
  return node;
}

ExpressionPtr ExpressionParser::parse_primary() {
  const Token& token = current();
  switch (token.kind) {
    case Kind::kName: {
      const Token name = take();
      const bool is_truth = name.text == "true" || name.text == "True";
      const bool is_none = name.text == "none" || name.text == "None";
      if (is_truth || is_none || name.text == "false" || name.text == "False") {
        auto node = make<Literal>(name.line);
        node->value = is_none ? Value(None{}) : Value(is_truth);
        return node;
      }
      if (names_read != nullptr) names_read->insert(name.text);
      auto node = make<Name>(name.line);
      node->symbol = intern(name.text);
      node->name = name.text;
      return node;
    }
    case Kind::kString: {
      auto node = make<Literal>(token.line);
      std::string text;
      while (current().kind == Kind::kString) text += take().text;
      node->value = Value(std::move(text), Origin::kTemplate);
      return node;
    }
    case Kind::kInteger:
    case Kind::kFloat:
      return parse_literal_number();
    default:
      break;
  }
  if (take_if_operator("(")) {
    ExpressionPtr node = parse_tuple(true, true);
    expect_operator(")");
    return node;
  }
  if (is_operator("[")) return parse_list();
  if (is_operator("{")) return parse_dict();
  fail_unexpected();
}

bool ExpressionParser::is_tuple_end(bool stops_at_recursive) const {
  return current().kind == Kind::kVariableEnd || current().kind == Kind::kBlockEnd ||
         is_operator(")") || (stops_at_recursive && is_name("recursive"));
}

ExpressionPtr ExpressionParser::parse_tuple(bool with_condition, bool is_parenthesized,
                                            bool stops_at_recursive) {
  auto node = make<ListLiteral>(current().line);
  node->is_tuple = true;
  bool has_comma = false;
  while (true) {
    if (!node->items.empty()) {
      if (!take_if_operator(",")) break;
      has_comma = true;
    }
    if (is_tuple_end(stops_at_recursive)) break;
    node->items.push_back(parse_expression(with_condition));
  }
  if (!has_comma) {
    if (!node->items.empty()) return std::move(node->items.front());
    if (!is_parenthesized) fail_unexpected();
  }
  ListLiteral& made = *node;
  return finish(std::move(node), made.items);
}

ExpressionPtr ExpressionParser::parse_list() {
  auto node = make<ListLiteral>(take().line);
  while (!is_operator("]")) {
    if (!node->items.empty()) expect_operator(",");
    if (is_operator("]")) break;
    node->items.push_back(parse_expression());
  }
  expect_operator("]");
  ListLiteral& made = *node;
  return finish(std::move(node), made.items);
}

ExpressionPtr ExpressionParser::parse_dict() {
  auto node = make<DictLiteral>(take().line);
  int depth = 0;
  while (!is_operator("}")) {
    if (!node->items.empty()) expect_operator(",");
    if (is_operator("}")) break;
    ExpressionPtr key = parse_expression();
    expect_operator(":");
    ExpressionPtr value = parse_expression();
    depth = std::max({depth, key->depth, value->depth});
    node->items.emplace_back(std::move(key), std::move(value));
  }
  expect_operator("}");
  return check_depth(std::move(node), depth + 1);
}

ExpressionPtr ExpressionParser::parse_postfix(ExpressionPtr node) {
  while (true) {
    if (is_operator(".")) {
      const int line = take().line;
      if (current().kind == Kind::kName) {
        auto attribute = make<Attribute>(line);
        attribute->name = take().text;
        attribute->object = std::move(node);
        Attribute& made = *attribute;
        node = finish(std::move(attribute), made.object);
      } else if (current().kind == Kind::kInteger) {
        auto subscript = make<Subscript>(line);
        subscript->key = parse_literal_number();
        subscript->object = std::move(node);
        Subscript& made = *subscript;
        node = finish(std::move(subscript), made.object);
      } else {
        fail("expected a name or a number after '.'");
      }
    } else if (is_operator("[")) {
      node = parse_subscript(std::move(node));
    } else if (is_operator("(")) {
      node = parse_call(std::move(node));
    } else {
      return node;
    }
  }
}

ExpressionPtr ExpressionParser::parse_subscript(ExpressionPtr object) {
  const int line = take().line;
  ExpressionPtr start;
  if (!is_operator(":")) {
    start = parse_expression();
    if (is_operator(",")) {  // object[a, b]: the key is a tuple
      auto tuple = make<ListLiteral>(line);
      tuple->is_tuple = true;
      tuple->items.push_back(std::move(start));
      while (take_if_operator(",")) {
        if (is_operator("]")) break;
        tuple->items.push_back(parse_expression());
      }
      ListLiteral& made = *tuple;
      start = finish(std::move(tuple), made.items);
    }
  }
  if (start != nullptr && is_operator("]")) {
    take();
    auto node = make<Subscript>(line);
    node->object = std::move(object);
    node->key = std::move(start);
    Subscript& made = *node;
    return finish(std::move(node), made.object, made.key);
  }
  auto node = make<Slice>(line);
  node->object = std::move(object);
  node->start = std::move(start);
  expect_operator(":");
  if (!is_operator("]") && !is_operator(":")) node->stop = parse_expression();
  if (take_if_operator(":") && !is_operator("]")) node->step = parse_expression();
  expect_operator("]");
  Slice& made = *node;
  return finish(std::move(node), made.object, made.start, made.stop, made.step);
}

ExpressionPtr ExpressionParser::parse_call(ExpressionPtr callee) {
  auto node = make<Call>(current().line);
  node->callee = std::move(callee);
  node->arguments = parse_call_arguments();
  Call& made = *node;
  return finish(std::move(node), made.callee, made.arguments);
}

CallArguments ExpressionParser::parse_call_arguments() {
  expect_operator("(");
  CallArguments arguments;
  bool is_first = true;
  while (!is_operator(")")) {
    if (!is_first) {
      expect_operator(",");
      if (is_operator(")")) break;
    }
    is_first = false;
    const bool has_named =
        !arguments.named.empty() || arguments.star != nullptr || arguments.double_star != nullptr;
    if (is_operator("*")) {
      if (arguments.star != nullptr || arguments.double_star != nullptr) fail_unexpected();
      take();
      arguments.star = parse_expression();
    } else if (is_operator("**")) {
      if (arguments.double_star != nullptr) fail_unexpected();
      take();
      arguments.double_star = parse_expression();
    } else if (current().kind == Kind::kName && peek().kind == Kind::kOperator &&
               peek().text == "=") {
      if (arguments.double_star != nullptr) fail_unexpected();
      std::string name = take().text;
      take();
      arguments.named.emplace_back(std::move(name), parse_expression());
    } else {
      if (has_named) fail_unexpected();
      arguments.positional.push_back(parse_expression());
    }
  }
  expect_operator(")");
  return arguments;
}

ExpressionPtr ExpressionParser::parse_filter_chain(ExpressionPtr node) {
  while (true) {
    if (is_operator("|")) {
      node = parse_filters(std::move(node), false);
    } else if (is_name("is")) {
      node = parse_test(std::move(node));
    } else if (is_operator("(")) {
      node = parse_call(std::move(node));
    } else {
      return node;
    }
  }
}

ExpressionPtr ExpressionParser::parse_filters(ExpressionPtr input, bool is_inline) {
  while (is_operator("|") || is_inline) {
    if (!is_inline) take();
    is_inline = false;
    auto node = make<FilterCall>(current().line);
    std::string name = expect_name();
    while (take_if_operator(".")) name += "." + expect_name();
    node->filter = find_filter(name);
    if (node->filter == nullptr) fail(fmt::format("no filter named '{}'", name));
    if (is_operator("(")) node->arguments = parse_call_arguments();
    node->input = std::move(input);
    FilterCall& made = *node;
    input = finish(std::move(node), made.input, made.arguments);
  }
  return input;
}

ExpressionPtr ExpressionParser::parse_test(ExpressionPtr input) {
  auto node = make<TestCall>(take().line);
  node->is_negated = take_if_name("not");
  std::string name = expect_name();
  while (take_if_operator(".")) name += "." + expect_name();
  node->test = find_test(name);
  if (node->test == nullptr) fail(fmt::format("no test named '{}'", name));
  const Kind kind = current().kind;
  const bool starts_value = kind == Kind::kName || kind == Kind::kString ||
                            kind == Kind::kInteger || kind == Kind::kFloat || is_operator("[") ||
                            is_operator("{");
  if (is_operator("(")) {
    node->arguments = parse_call_arguments();
  } else if (starts_value && !is_name("else") && !is_name("or") && !is_name("and")) {
    if (is_name("is")) fail("tests cannot be chained with 'is'");
    const Nesting nesting(*this);
    node->arguments.positional.push_back(parse_postfix(parse_primary()));
  }
  node->input = std::move(input);
  TestCall& made = *node;
  return finish(std::move(node), made.input, made.arguments);
}

}  // namespace winnow::jinja
