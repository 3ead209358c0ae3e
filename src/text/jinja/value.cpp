#include "text/jinja/value.h"

#include <fmt/format.h>
#include <unicode/uchar.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "text/unicode.h"

namespace winnow::jinja {

namespace {

constexpr std::size_t kLinearSearch = 8;  // more items than this get an index

int depth_of(const Value& value) {
  if (const List* list = value.list()) return list->depth;
  if (const Dict* dict = value.dict()) return dict->depth;
  if (const auto* generator = value.get_if<GeneratorPtr>()) {
    int depth = 1;
    for (const Value& item : (*generator)->items) depth = std::max(depth, 1 + depth_of(item));
    return depth;
  }
  return 0;
}

void check_depth(int depth) {
  if (depth > kMaxNesting) {
    throw Error(ErrorCode::kTooLarge,
                fmt::format("lists or mappings nested more than {} deep", kMaxNesting));
  }
}

// Equal keys (1, 1.0 and True among them) give equal strings.
std::string hash_key(const Value& value) {
  if (const Text* text = value.text()) return "s" + text->bytes();
  if (const bool* b = value.get_if<bool>()) return *b ? "i1" : "i0";
  if (const auto* i = value.get_if<std::int64_t>()) return fmt::format("i{}", *i);
  if (const double* d = value.get_if<double>()) {
    if (*d == std::floor(*d) && std::abs(*d) < 9e18) {
      return fmt::format("i{}", static_cast<std::int64_t>(*d));
    }
    return "f" + float_repr(*d);
  }
  if (const BigInt* big = value.get_if<BigInt>()) return "i" + *big->digits;
  if (value.is_none()) return "n";
  if (value.is_undefined()) return "u";
  const List* list = value.list();
  if (list != nullptr && list->flavor == List::Flavor::kTuple) {
    std::string key = "t";
    for (const Value& item : list->items) {
      const std::string part = hash_key(item);
      key += fmt::format("{}:{}", part.size(), part);
    }
    return key;
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("a {} cannot be the key of a mapping", type_name(value)));
}

bool is_printable(std::uint32_t c) {
  constexpr std::uint32_t kHidden = U_GC_C_MASK | U_GC_ZL_MASK | U_GC_ZP_MASK | U_GC_ZS_MASK;
  return c == ' ' || (U_GET_GC_MASK(static_cast<UChar32>(c)) & kHidden) == 0;
}

std::string string_repr(const std::string& bytes) {
  const bool has_single = bytes.find('\'') != std::string::npos;
  const char quote = has_single && bytes.find('"') == std::string::npos ? '"' : '\'';
  std::string out(1, quote);
  for (std::size_t i = 0; i < bytes.size();) {
    std::size_t length = 0;
    const std::uint32_t c = decode_utf8(bytes, i, &length);
    if (c == static_cast<unsigned char>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (is_printable(c)) {
      out.append(bytes, i, length);
    } else if (c < 0x100) {
      out += fmt::format("\\x{:02x}", c);
    } else if (c < 0x10000) {
      out += fmt::format("\\u{:04x}", c);
    } else {
      out += fmt::format("\\U{:08x}", c);
    }
    i += length;
  }
  out += quote;
  return out;
}

void append_repr(const Value& value, int depth, Text& out);

void append_items(const std::vector<Value>& items, int depth, Text& out) {
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out.append(", ", Origin::kTemplate);
    append_repr(items[i], depth + 1, out);
  }
}

void append_list(const List& list, int depth, Text& out) {
  const auto plain = [&](std::string_view text) { out.append(text, Origin::kTemplate); };
  switch (list.flavor) {
    case List::Flavor::kList:
      plain("[");
      append_items(list.items, depth, out);
      return plain("]");
    case List::Flavor::kTuple:
      plain("(");
      append_items(list.items, depth, out);
      return plain(list.items.size() == 1 ? ",)" : ")");
    case List::Flavor::kRange: {
      const auto at = [&](std::size_t i) { return *list.items[i].get_if<std::int64_t>(); };
      const std::size_t size = list.items.size();
      if (size == 0) return plain("range(0, 0)");
      const std::int64_t step = size > 1 ? at(1) - at(0) : 1;
      plain(fmt::format("range({}, {}", at(0), at(size - 1) + step));
      return plain(step == 1 ? std::string(")") : fmt::format(", {})", step));
    }
    case List::Flavor::kDictKeys:
      plain("dict_keys([");
      break;
    case List::Flavor::kDictValues:
      plain("dict_values([");
      break;
    case List::Flavor::kDictItems:
      plain("dict_items([");
      break;
  }
  append_items(list.items, depth, out);
  plain("])");
}

void append_dict(const Dict& dict, int depth, Text& out) {
  out.append("{", Origin::kTemplate);
  bool is_first = true;
  for (const auto& [key, value] : dict.items) {
    if (!is_first) out.append(", ", Origin::kTemplate);
    is_first = false;
    append_repr(key, depth + 1, out);
    out.append(": ", Origin::kTemplate);
    append_repr(value, depth + 1, out);
  }
  out.append("}", Origin::kTemplate);
}

void append_repr(const Value& value, int depth, Text& out) {
  check_depth(depth);
  const auto plain = [&](std::string_view text) { out.append(text, Origin::kTemplate); };
  if (const Text* text = value.text()) {
    out.append(string_repr(text->bytes()), text->origin());
  } else if (const List* list = value.list()) {
    append_list(*list, depth, out);
  } else if (const Dict* dict = value.dict()) {
    append_dict(*dict, depth, out);
  } else if (const auto* names = value.get_if<NamespacePtr>()) {
    plain("<Namespace ");
    append_dict((*names)->attributes, depth + 1, out);
    plain(">");
  } else if (value.is_undefined()) {
    plain("Undefined");
  } else if (value.is_none()) {
    plain("None");
  } else if (const bool* b = value.get_if<bool>()) {
    plain(*b ? "True" : "False");
  } else if (const auto* i = value.get_if<std::int64_t>()) {
    plain(fmt::format("{}", *i));
  } else if (const BigInt* big = value.get_if<BigInt>()) {
    plain(*big->digits);
  } else if (const double* d = value.get_if<double>()) {
    plain(float_repr(*d));
  } else if (const auto* callable = value.get_if<CallablePtr>()) {
    plain(fmt::format("<function {}>", (*callable)->name));
  } else if (const auto* loop = value.get_if<LoopPtr>()) {
    const std::size_t size = (*loop)->items == nullptr ? 0 : (*loop)->items->size();
    plain(fmt::format("<LoopContext {}/{}>", (*loop)->index0 + 1, size));
  } else {
    plain("<generator object>");
  }
}

bool numbers_equal(const Value& a, const Value& b) {
  const BigInt* big_a = a.get_if<BigInt>();
  const BigInt* big_b = b.get_if<BigInt>();
  if (big_a != nullptr && big_b != nullptr) return *big_a->digits == *big_b->digits;
  const auto as_double = [](const Value& value) -> long double {
    if (const bool* boolean = value.get_if<bool>()) return *boolean ? 1 : 0;
    if (const auto* i = value.get_if<std::int64_t>()) return static_cast<long double>(*i);
    if (const BigInt* big = value.get_if<BigInt>()) {
      return std::strtold(big->digits->c_str(), nullptr);
    }
    return *value.get_if<double>();
  };
  return as_double(a) == as_double(b);
}

bool equals_at(const Value& a, const Value& b, int depth) {
  check_depth(depth);
  if (is_number(a) && is_number(b)) return numbers_equal(a, b);
  if (a.storage().index() != b.storage().index()) return false;
  if (a.is_undefined() || a.is_none()) return true;
  if (const Text* text = a.text()) return text->bytes() == b.text()->bytes();
  if (const List* x = a.list()) {
    const List* y = b.list();
    if (x == y) return true;
    return x->flavor == y->flavor && x->items.size() == y->items.size() &&
           std::equal(x->items.begin(), x->items.end(), y->items.begin(),
                      [&](const Value& p, const Value& q) { return equals_at(p, q, depth + 1); });
  }
  if (const Dict* x = a.dict()) {
    const Dict* y = b.dict();
    if (x == y) return true;
    if (x->items.size() != y->items.size()) return false;
    return std::all_of(x->items.begin(), x->items.end(), [&](const auto& item) {
      const Value* other = y->find(item.first);
      return other != nullptr && equals_at(item.second, *other, depth + 1);
    });
  }
  if (const auto* p = a.get_if<NamespacePtr>()) return *p == *b.get_if<NamespacePtr>();
  if (const auto* p = a.get_if<CallablePtr>()) return *p == *b.get_if<CallablePtr>();
  if (const auto* p = a.get_if<LoopPtr>()) return *p == *b.get_if<LoopPtr>();
  if (const auto* p = a.get_if<GeneratorPtr>()) return *p == *b.get_if<GeneratorPtr>();
  return false;
}

}  // namespace

Value Value::undefined(std::string reason) {
  Value value;
  value.storage_ = Undefined{std::make_shared<const std::string>(std::move(reason))};
  return value;
}

const Text* Value::text() const {
  const TextPtr* text = get_if<TextPtr>();
  return text == nullptr ? nullptr : text->get();
}

const Dict* Value::dict() const {
  const DictPtr* dict = get_if<DictPtr>();
  return dict == nullptr ? nullptr : dict->get();
}

const List* Value::list() const {
  const ListPtr* list = get_if<ListPtr>();
  return list == nullptr ? nullptr : list->get();
}

ListPtr make_list(std::vector<Value> items, List::Flavor flavor) {
  int depth = 1;
  for (const Value& item : items) depth = std::max(depth, 1 + depth_of(item));
  check_depth(depth);
  return std::make_shared<const List>(List{std::move(items), flavor, depth});
}

DictPtr make_dict(Dict dict) {
  check_depth(dict.depth);
  return std::make_shared<const Dict>(std::move(dict));
}

void Dict::set(Value key, Value value) {
  depth = std::max({depth, 1 + depth_of(key), 1 + depth_of(value)});
  std::string hashed = hash_key(key);
  if (items.size() < kLinearSearch) {
    for (auto& [known, old] : items) {
      if (equals(known, key)) {
        old = std::move(value);
        return;
      }
    }
  } else {
    if (index_.empty()) {
      for (std::size_t i = 0; i < items.size(); ++i) index_.emplace(hash_key(items[i].first), i);
    }
    const auto [found, is_new] = index_.emplace(std::move(hashed), items.size());
    if (!is_new) {
      items[found->second].second = std::move(value);
      return;
    }
  }
  items.emplace_back(std::move(key), std::move(value));
}

const Value* Dict::find(const Value& key) const {
  if (const Text* text = key.text()) return find(text->bytes());
  const std::string hashed = hash_key(key);
  if (index_.empty()) {
    for (const auto& [known, value] : items) {
      if (equals(known, key)) return &value;
    }
    return nullptr;
  }
  const auto found = index_.find(hashed);
  return found == index_.end() ? nullptr : &items[found->second].second;
}

const Value* Dict::find(std::string_view key) const {
  if (index_.empty()) {
    for (const auto& [known, value] : items) {
      const Text* text = known.text();
      if (text != nullptr && text->bytes() == key) return &value;
    }
    return nullptr;
  }
  const auto found = index_.find("s" + std::string(key));
  return found == index_.end() ? nullptr : &items[found->second].second;
}

std::string_view type_name(const Value& value) {
  struct Namer {
    std::string_view operator()(const Undefined&) const { return "Undefined"; }
    std::string_view operator()(None) const { return "None"; }
    std::string_view operator()(bool) const { return "bool"; }
    std::string_view operator()(std::int64_t) const { return "int"; }
    std::string_view operator()(const BigInt&) const { return "int"; }
    std::string_view operator()(double) const { return "float"; }
    std::string_view operator()(const TextPtr&) const { return "str"; }
    std::string_view operator()(const ListPtr& list) const {
      constexpr std::string_view kNames[] = {"list",      "tuple",       "range",
                                             "dict_keys", "dict_values", "dict_items"};
      return kNames[static_cast<std::size_t>(list->flavor)];
    }
    std::string_view operator()(const DictPtr&) const { return "dict"; }
    std::string_view operator()(const GeneratorPtr&) const { return "generator"; }
    std::string_view operator()(const NamespacePtr&) const { return "Namespace"; }
    std::string_view operator()(const CallablePtr&) const { return "function"; }
    std::string_view operator()(const LoopPtr&) const { return "LoopContext"; }
  };
  return std::visit(Namer{}, value.storage());
}

bool is_number(const Value& value) {
  return value.is<bool>() || value.is<std::int64_t>() || value.is<double>() || value.is<BigInt>();
}

bool is_true(const Value& value) {
  struct Truth {
    bool operator()(const Undefined&) const { return false; }
    bool operator()(None) const { return false; }
    bool operator()(bool b) const { return b; }
    bool operator()(std::int64_t i) const { return i != 0; }
    bool operator()(const BigInt&) const { return true; }
    bool operator()(double d) const { return d != 0; }
    bool operator()(const TextPtr& text) const { return !text->empty(); }
    bool operator()(const ListPtr& list) const { return !list->items.empty(); }
    bool operator()(const DictPtr& dict) const { return !dict->items.empty(); }
    bool operator()(const GeneratorPtr&) const { return true; }
    bool operator()(const NamespacePtr&) const { return true; }
    bool operator()(const CallablePtr&) const { return true; }
    bool operator()(const LoopPtr&) const { return true; }
  };
  return std::visit(Truth{}, value.storage());
}

bool equals(const Value& a, const Value& b) { return equals_at(a, b, 0); }

Text to_text(const Value& value) {
  if (const Text* text = value.text()) return *text;
  if (value.is_undefined()) return {};
  return repr(value);
}

Text repr(const Value& value) {
  Text out;
  append_repr(value, 0, out);
  return out;
}

// Shortest digits that read back as the same double; an exponent below 1e-4 and from 1e16.
std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  if (value == 0) return std::signbit(value) ? "-0.0" : "0.0";
  char buffer[64];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  const std::string_view text(buffer, static_cast<std::size_t>(end.ptr - buffer));
  const std::size_t e = text.find('e');
  int exponent = 0;
  const std::string_view exponent_text = text.substr(e + (text[e + 1] == '+' ? 2 : 1));
  std::from_chars(exponent_text.data(), exponent_text.data() + exponent_text.size(), exponent);
  if (exponent < -4 || exponent >= 16) {
    return fmt::format("{}e{}{:02}", text.substr(0, e), exponent < 0 ? '-' : '+',
                       std::abs(exponent));
  }
  const auto fixed = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed);
  std::string out(buffer, fixed.ptr);
  if (out.find('.') == std::string::npos) out += ".0";
  return out;
}

}  // namespace winnow::jinja
