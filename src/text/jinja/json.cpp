#include "text/jinja/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "text/unicode.h"

namespace winnow::jinja {

namespace {

using Json = nlohmann::ordered_json;

[[noreturn]] void refuse_depth() {
  throw Error(ErrorCode::kInvalidJson,
              fmt::format("JSON nested more than {} deep", kMaxNesting / 2));
}

// Builds values bottom-up while nlohmann's parser walks the text, so that numbers are seen as they
// are written.
class Builder : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return add(None{}); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(std::int64_t value) override { return add(value); }
  bool number_unsigned(std::uint64_t value) override {
    if (value <= static_cast<std::uint64_t>(INT64_MAX))
      return add(static_cast<std::int64_t>(value));
    return add(BigInt{std::make_shared<const std::string>(std::to_string(value))});
  }
  bool number_float(double value, const std::string& spelling) override {
    if (spelling.find_first_of(".eE") != std::string::npos) return add(value);
    return add(BigInt{std::make_shared<const std::string>(spelling)});
  }
  bool string(std::string& value) override { return add(Value(std::move(value), Origin::kValue)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(true); }
  bool start_array(std::size_t) override { return open(false); }
  bool key(std::string& name) override {
    open_.back().key = Value(std::move(name), Origin::kValue);
    return true;
  }
  bool end_object() override {
    Value value = make_dict(std::move(open_.back().dict));
    open_.pop_back();
    return add(std::move(value));
  }
  bool end_array() override {
    Value value = make_list(std::move(open_.back().items));
    open_.pop_back();
    return add(std::move(value));
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception& e) override {
    throw Error(ErrorCode::kInvalidJson, e.what());
  }

  Value result;

 private:
  struct Open {
    bool is_object;
    Dict dict;
    Value key;
    std::vector<Value> items;
  };

  bool open(bool is_object) {
    if (open_.size() >= kMaxNesting / 2) refuse_depth();
    open_.push_back({is_object, {}, {}, {}});
    return true;
  }

  bool add(Value value) {
    if (open_.empty()) {
      result = std::move(value);
    } else if (open_.back().is_object) {
      open_.back().dict.set(std::move(open_.back().key), std::move(value));
    } else {
      open_.back().items.push_back(std::move(value));
    }
    return true;
  }

  std::vector<Open> open_;
};

Value convert(const Json& json, int depth) {
  if (depth > kMaxNesting / 2) refuse_depth();
  switch (json.type()) {
    case Json::value_t::null:
      return None{};
    case Json::value_t::boolean:
      return json.get<bool>();
    case Json::value_t::number_integer:
      return json.get<std::int64_t>();
    case Json::value_t::number_unsigned: {
      const auto value = json.get<std::uint64_t>();
      if (value <= static_cast<std::uint64_t>(INT64_MAX)) return static_cast<std::int64_t>(value);
      return BigInt{std::make_shared<const std::string>(std::to_string(value))};
    }
    case Json::value_t::number_float:
      return json.get<double>();
    case Json::value_t::string:
      return Value(replace_ill_formed(json.get_ref<const std::string&>()), Origin::kValue);
    case Json::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const Json& item : json) items.push_back(convert(item, depth + 1));
      return make_list(std::move(items));
    }
    case Json::value_t::object: {
      Dict dict;
      for (const auto& [key, value] : json.items()) {
        dict.set(Value(replace_ill_formed(key), Origin::kValue), convert(value, depth + 1));
      }
      return make_dict(std::move(dict));
    }
    default:
      throw Error(ErrorCode::kInvalidJson, "a binary value is not JSON");
  }
}

class Writer {
 public:
  explicit Writer(const JsonStyle& style) : style_(style) {}

  void write(const Value& value, int depth) {
    if (depth > kMaxNesting) refuse_depth();
    if (const Text* text = value.text()) {
      write_string(text->bytes());
      if (text->origin() == Origin::kValue) origin_ = Origin::kValue;
    } else if (const double* d = value.get_if<double>()) {
      out_ += std::isfinite(*d) ? float_repr(*d)
                                : std::string(std::isnan(*d) ? "NaN"
                                              : *d > 0       ? "Infinity"
                                                             : "-Infinity");
    } else if (const bool* b = value.get_if<bool>()) {
      out_ += *b ? "true" : "false";
    } else if (value.is_none()) {
      out_ += "null";
    } else if (is_number(value)) {
      out_ += repr(value).bytes();
    } else if (const Dict* dict = value.dict()) {
      write_dict(*dict, depth);
    } else if (const List* list = value.list();
               list != nullptr &&
               (list->flavor == List::Flavor::kList || list->flavor == List::Flavor::kTuple)) {
      write_list(*list, depth);
    } else {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("tojson: a {} has no JSON form", type_name(value)));
    }
  }

  Text finish() { return Text(std::move(out_), origin_); }

 private:
  void new_line(int depth) {
    if (!style_.has_indent) return;
    out_ += '\n';
    for (int i = 0; i < depth; ++i) out_ += style_.indent;
  }

  void write_list(const List& list, int depth) {
    if (list.items.empty()) {
      out_ += "[]";
      return;
    }
    out_ += '[';
    bool is_first = true;
    for (const Value& item : list.items) {
      if (!is_first) out_ += style_.item_separator;
      is_first = false;
      new_line(depth + 1);
      write(item, depth + 1);
    }
    new_line(depth);
    out_ += ']';
  }

  void write_dict(const Dict& dict, int depth) {
    if (dict.items.empty()) {
      out_ += "{}";
      return;
    }
    std::vector<const std::pair<Value, Value>*> items;
    for (const auto& item : dict.items) items.push_back(&item);
    if (style_.sort_keys) {
      std::stable_sort(items.begin(), items.end(), [](const auto* a, const auto* b) {
        return key_text(a->first) < key_text(b->first);
      });
    }
    out_ += '{';
    bool is_first = true;
    for (const auto* item : items) {
      if (!is_first) out_ += style_.item_separator;
      is_first = false;
      new_line(depth + 1);
      write_string(key_text(item->first));
      const Text* key = item->first.text();
      if (key != nullptr && key->origin() == Origin::kValue) origin_ = Origin::kValue;
      out_ += style_.key_separator;
      write(item->second, depth + 1);
    }
    new_line(depth);
    out_ += '}';
  }

  static std::string key_text(const Value& key) {
    if (const Text* text = key.text()) return text->bytes();
    if (const bool* b = key.get_if<bool>()) return *b ? "true" : "false";
    if (key.is_none()) return "null";
    if (is_number(key)) return repr(key).bytes();
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("tojson: a {} cannot be a key in JSON", type_name(key)));
  }

  void write_string(const std::string& bytes) {
    out_ += '"';
    for (std::size_t i = 0; i < bytes.size();) {
      std::size_t length = 0;
      const std::uint32_t c = decode_utf8(bytes, i, &length);
      switch (c) {
        case '"':
          out_ += "\\\"";
          break;
        case '\\':
          out_ += "\\\\";
          break;
        case '\b':
          out_ += "\\b";
          break;
        case '\f':
          out_ += "\\f";
          break;
        case '\n':
          out_ += "\\n";
          break;
        case '\r':
          out_ += "\\r";
          break;
        case '\t':
          out_ += "\\t";
          break;
        default:
          if (c < 0x20 || (style_.ensure_ascii && c > 0x7E)) {
            write_escape(c);
          } else {
            out_.append(bytes, i, length);
          }
      }
      i += length;
    }
    out_ += '"';
  }

  void write_escape(std::uint32_t c) {
    if (c < 0x10000) {
      out_ += fmt::format("\\u{:04x}", c);
    } else {
      const std::uint32_t rest = c - 0x10000;
      out_ += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF));
    }
  }

  const JsonStyle& style_;
  std::string out_;
  Origin origin_ = Origin::kTemplate;
};

}  // namespace

Value parse_json(std::string_view json) {
  Builder builder;
  Json::sax_parse(json, &builder);
  return std::move(builder.result);
}

Value from_json(const nlohmann::ordered_json& json) { return convert(json, 0); }

Text to_json(const Value& value, const JsonStyle& style) {
  Writer writer(style);
  writer.write(value, 0);
  return writer.finish();
}

}  // namespace winnow::jinja
