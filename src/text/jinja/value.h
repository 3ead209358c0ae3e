// What a template computes with: the values of Python that jinja2 templates meet.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja/text.h"

namespace winnow::jinja {

class Interpreter;
class Value;
struct Callable;
struct Dict;
struct List;
struct Loop;
struct Namespace;

/// Prints as nothing, is false and empty; any other use of it ends the rendering with `reason`.
struct Undefined {
  std::shared_ptr<const std::string> reason;
};

struct None {};

/// An integer beyond 64 bits, kept as written: it prints and compares, and refuses arithmetic.
struct BigInt {
  std::shared_ptr<const std::string> digits;  // decimal, with its sign
};

/// A sequence that can be walked once, as filters such as map and select give it.
struct Generator {
  std::vector<Value> items;
  std::size_t next = 0;
};

using TextPtr = std::shared_ptr<const Text>;
using ListPtr = std::shared_ptr<const List>;
using DictPtr = std::shared_ptr<const Dict>;
using GeneratorPtr = std::shared_ptr<Generator>;
using NamespacePtr = std::shared_ptr<Namespace>;
using CallablePtr = std::shared_ptr<const Callable>;
using LoopPtr = std::shared_ptr<Loop>;

/// Cheap to copy; what it refers to is never changed, except a namespace, a generator and a loop.
class Value {
 public:
  using Storage = std::variant<Undefined, None, bool, std::int64_t, BigInt, double, TextPtr,
                               ListPtr, DictPtr, GeneratorPtr, NamespacePtr, CallablePtr, LoopPtr>;

  Value() = default;  // undefined
  Value(None none) : storage_(none) {}
  template <std::same_as<bool> Bool>  // pointers must not decay to it
  Value(Bool value) : storage_(value) {}
  Value(int value) : storage_(std::int64_t{value}) {}
  Value(std::int64_t value) : storage_(value) {}
  Value(double value) : storage_(value) {}
  Value(BigInt value) : storage_(std::move(value)) {}
  Value(Text text) : storage_(std::make_shared<const Text>(std::move(text))) {}
  Value(std::string bytes, Origin origin) : Value(Text(std::move(bytes), origin)) {}
  explicit Value(const char* template_text)
      : Value(std::string(template_text), Origin::kTemplate) {}
  Value(ListPtr list) : storage_(std::move(list)) {}
  Value(DictPtr dict) : storage_(std::move(dict)) {}
  Value(GeneratorPtr generator) : storage_(std::move(generator)) {}
  Value(NamespacePtr names) : storage_(std::move(names)) {}
  Value(CallablePtr callable) : storage_(std::move(callable)) {}
  Value(LoopPtr loop) : storage_(std::move(loop)) {}
  static Value undefined(std::string reason);

  template <typename T>
  bool is() const {
    return std::holds_alternative<T>(storage_);
  }
  template <typename T>
  const T* get_if() const {
    return std::get_if<T>(&storage_);
  }
  const Storage& storage() const { return storage_; }

  bool is_undefined() const { return is<Undefined>(); }
  bool is_none() const { return is<None>(); }
  /// nullptr unless a string / dict / list or tuple or range or view.
  const Text* text() const;
  const Dict* dict() const;
  const List* list() const;

 private:
  Storage storage_;
};

struct List {
  enum class Flavor { kList, kTuple, kRange, kDictKeys, kDictValues, kDictItems };

  std::vector<Value> items;
  Flavor flavor = Flavor::kList;
  int depth = 1;  // of nesting, bounded so that no walk or destructor runs out of stack
};

/// Throws Error (kTooLarge) past the nesting bound.
ListPtr make_list(std::vector<Value> items, List::Flavor flavor = List::Flavor::kList);

struct Dict {
  std::vector<std::pair<Value, Value>> items;  // in order of insertion
  int depth = 1;

  /// Replaces the value of an equal key. Throws Error for a key that cannot be hashed.
  void set(Value key, Value value);
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;

 private:
  std::unordered_map<std::string, std::size_t> index_;  // kept once there are many items
};

/// Wraps a finished dict. Throws Error (kTooLarge) past the nesting bound.
DictPtr make_dict(Dict dict);

struct Namespace {
  Dict attributes;
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

struct Callable {
  std::string name;
  std::function<Value(Interpreter&, Arguments&)> call;
};

/// State of a for loop, as `loop` shows it.
struct Loop {
  const std::vector<Value>* items = nullptr;  // null once the loop has ended
  std::int64_t index0 = 0;
  std::int64_t depth0 = 0;
  std::vector<Value> last_changed;
  bool has_changed = false;
  std::function<Value(Interpreter&, const Value&)> recurse;  // for recursive loops
};

/// "str", "int", "dict", … as Python names the type.
std::string_view type_name(const Value& value);

bool is_true(const Value& value);
bool equals(const Value& a, const Value& b);

/// bool, int and float as numbers; nothing else.
bool is_number(const Value& value);

/// Python's str(): what {{ value }} prints.
Text to_text(const Value& value);
/// Python's repr().
Text repr(const Value& value);
std::string float_repr(double value);

constexpr int kMaxNesting = 600;

}  // namespace winnow::jinja
