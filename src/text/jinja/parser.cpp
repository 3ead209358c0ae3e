#include "text/jinja/parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

#include "text/jinja/expression_parser.h"

namespace winnow::jinja {

namespace {

using Kind = Token::Kind;
constexpr int kMaxBlockDepth = 100;

class Parser {
 public:
  Parser(std::string_view source, Program& program)
      : parser_(tokenize(source, program.name), program) {}

  Block run() { return parse_block({}); }

 private:
  bool at_keyword(std::initializer_list<std::string_view> names) const {
    return std::any_of(names.begin(), names.end(),
                       [&](std::string_view name) { return parser_.is_name(name); });
  }

  // Statements up to a tag whose first word is in `ends`; that tag is opened but not read.
  Block parse_block(std::initializer_list<std::string_view> ends) {
    if (++depth_ > kMaxBlockDepth) parser_.fail("blocks nested too deeply");
    Block block;
    while (parser_.current().kind != Kind::kEnd) {
      const Token token = parser_.take();
      if (token.kind == Kind::kData) {
        auto node = std::make_unique<Data>();
        node->line = token.line;
        node->text = token.text;
        block.push_back(std::move(node));
      } else if (token.kind == Kind::kVariableBegin) {
        auto node = std::make_unique<Output>();
        node->line = token.line;
        node->expression = parser_.parse_tuple();
        if (parser_.current().kind != Kind::kVariableEnd) parser_.fail_unexpected();
        parser_.take();
        block.push_back(std::move(node));
      } else {
        if (at_keyword(ends)) {
          --depth_;
          return block;
        }
        const int line = parser_.current().line;
        StatementPtr node = parse_statement();
        node->line = line;
        block.push_back(std::move(node));
        end_tag();
      }
    }
    if (ends.size() > 0) {
      parser_.fail(fmt::format("unexpected end of template, expected '{}'", *(ends.end() - 1)));
    }
    --depth_;
    return block;
  }

  void end_tag() {
    if (parser_.current().kind != Kind::kBlockEnd) parser_.fail_unexpected();
    parser_.take();
  }

  // A block whose end tag has only a keyword, which is read.
  Block parse_body(std::string_view end) {
    end_tag();
    Block body = parse_block({end});
    parser_.take();
    return body;
  }

  StatementPtr parse_statement() {
    if (parser_.current().kind != Kind::kName) parser_.fail_unexpected();
    const std::string keyword = parser_.take().text;
    if (keyword == "if") return parse_if();
    if (keyword == "for") return parse_for();
    if (keyword == "set") return parse_set();
    if (keyword == "macro") return parse_macro();
    if (keyword == "call") return parse_call_block();
    if (keyword == "filter") return parse_filter_block();
    if (keyword == "with") return parse_with();
    if (keyword == "generation") {
      auto node = std::make_unique<Group>();
      node->body = parse_body("endgeneration");
      return node;
    }
    if (keyword == "break" || keyword == "continue") {
      if (loop_depth_ == 0) parser_.fail(fmt::format("'{}' outside a loop", keyword));
      auto node = std::make_unique<Jump>();
      node->flow = keyword == "break" ? Flow::kBreak : Flow::kContinue;
      return node;
    }
    parser_.fail(fmt::format("unknown tag '{}'", keyword));
  }

  StatementPtr parse_if() {
    auto node = std::make_unique<If>();
    while (true) {
      ExpressionPtr test = parser_.parse_tuple(false);
      end_tag();
      node->branches.emplace_back(std::move(test), parse_block({"elif", "else", "endif"}));
      if (parser_.take_if_name("elif")) continue;
      if (parser_.take_if_name("else")) {
        node->otherwise = parse_body("endif");
      } else {
        parser_.take();  // endif
      }
      return node;
    }
  }

  StatementPtr parse_for() {
    auto node = std::make_unique<For>();
    node->target = parse_target(false);
    if (!parser_.take_if_name("in")) parser_.fail("expected 'in'");
    node->iterable = parser_.parse_tuple(false, false, true);
    if (parser_.take_if_name("if")) node->filter = parser_.parse_expression();
    node->is_recursive = parser_.take_if_name("recursive");
    node->loop_symbol = parser_.intern("loop");
    end_tag();
    ++loop_depth_;
    node->body = parse_block({"else", "endfor"});
    --loop_depth_;
    if (parser_.take_if_name("else")) {
      node->otherwise = parse_body("endfor");
    } else {
      parser_.take();  // endfor
    }
    return node;
  }

  StatementPtr parse_set() {
    const Target target = parse_target(true);
    if (parser_.take_if_operator("=")) {
      auto node = std::make_unique<Set>();
      node->target = target;
      node->value = parser_.parse_tuple();
      return node;
    }
    auto node = std::make_unique<SetBlock>();
    node->target = target;
    node->filter = parser_.parse_filters(nullptr, false);
    node->body = parse_body("endset");
    return node;
  }

  StatementPtr parse_filter_block() {
    auto node = std::make_unique<FilterBlock>();
    node->filter = parser_.parse_filters(nullptr, true);
    node->body = parse_body("endfilter");
    return node;
  }

  StatementPtr parse_with() {
    auto node = std::make_unique<With>();
    while (parser_.current().kind != Kind::kBlockEnd) {
      if (!node->values.empty()) parser_.expect_operator(",");
      Target target = parse_name_target();
      parser_.expect_operator("=");
      node->values.emplace_back(std::move(target), parser_.parse_expression());
    }
    node->body = parse_body("endwith");
    return node;
  }

  StatementPtr parse_macro() {
    auto node = std::make_unique<Macro>();
    const std::string name = parser_.expect_name();
    node->symbol = parser_.intern(name);
    auto definition = std::make_shared<MacroDefinition>();
    definition->name = name;
    parse_signature(*definition);
    parse_macro_body(*definition, "endmacro");
    node->definition = std::move(definition);
    return node;
  }

  StatementPtr parse_call_block() {
    auto node = std::make_unique<CallBlock>();
    auto definition = std::make_shared<MacroDefinition>();
    definition->name = "caller";
    if (parser_.is_operator("(")) parse_signature(*definition);
    node->call = parser_.parse_expression();
    if (dynamic_cast<const Call*>(node->call.get()) == nullptr) parser_.fail("expected a call");
    parse_macro_body(*definition, "endcall");
    node->caller = std::move(definition);
    return node;
  }

  void parse_signature(MacroDefinition& definition) {
    parser_.expect_operator("(");
    bool has_default = false;
    while (!parser_.is_operator(")")) {
      if (!definition.parameters.empty()) parser_.expect_operator(",");
      MacroDefinition::Parameter parameter{};
      parameter.name = assignable_name();
      parameter.symbol = parser_.intern(parameter.name);
      if (parser_.take_if_operator("=")) {
        parameter.default_value = parser_.parse_expression();
        has_default = true;
      } else if (has_default) {
        parser_.fail("a parameter without a default follows one with a default");
      }
      definition.parameters.push_back(std::move(parameter));
    }
    parser_.expect_operator(")");
  }

  // jinja2 hands a macro caller, varargs and kwargs only where its body mentions them.
  void parse_macro_body(MacroDefinition& definition, std::string_view end) {
    std::unordered_set<std::string> names;
    std::unordered_set<std::string>* outer = parser_.names_read;
    const int outer_loops = loop_depth_;
    parser_.names_read = &names;
    loop_depth_ = 0;
    definition.body = parse_body(end);
    loop_depth_ = outer_loops;
    parser_.names_read = outer;
    const auto wants = [&](const char* name) -> std::optional<Symbol> {
      const bool is_parameter =
          std::any_of(definition.parameters.begin(), definition.parameters.end(),
                      [&](const auto& parameter) { return parameter.name == name; });
      if (!names.contains(name) || is_parameter) return std::nullopt;
      return parser_.intern(name);
    };
    definition.varargs = wants("varargs");
    definition.kwargs = wants("kwargs");
    definition.caller = wants("caller");
    if (outer != nullptr) outer->insert(names.begin(), names.end());
  }

  std::string assignable_name() {
    std::string name = parser_.expect_name();
    for (const char* reserved : {"true", "false", "none", "True", "False", "None"}) {
      if (name == reserved) parser_.fail(fmt::format("cannot assign to '{}'", name));
    }
    return name;
  }

  Target parse_name_target() {
    Target target;
    target.name = assignable_name();
    target.symbol = parser_.intern(target.name);
    return target;
  }

  Target parse_one_target(bool with_namespace) {
    if (parser_.take_if_operator("(")) {
      Target target = parse_target(with_namespace);
      parser_.expect_operator(")");
      return target;
    }
    Target target = parse_name_target();
    if (with_namespace && parser_.take_if_operator(".")) target.attribute = parser_.expect_name();
    return target;
  }

  Target parse_target(bool with_namespace) {
    if (++depth_ > kMaxBlockDepth) parser_.fail("nested too deeply");
    Target first = parse_one_target(with_namespace);
    if (parser_.is_operator(",")) {
      Target tuple;
      tuple.parts.push_back(std::move(first));
      while (parser_.take_if_operator(",")) {
        if (parser_.current().kind != Kind::kName && !parser_.is_operator("(")) break;
        if (parser_.is_name("in")) break;
        tuple.parts.push_back(parse_one_target(with_namespace));
      }
      first = std::move(tuple);
    }
    --depth_;
    return first;
  }

  ExpressionParser parser_;
  int depth_ = 0;
  int loop_depth_ = 0;
};

}  // namespace

Program parse_template(std::string_view source, std::string name) {
  Program program;
  program.name = std::move(name);
  program.body = Parser(source, program).run();
  return program;
}

}  // namespace winnow::jinja
