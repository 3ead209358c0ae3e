#include "base/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_color_sinks.h>

#include <algorithm>
#include <atomic>
#include <memory>

#include "base/error.h"

namespace winnow {
namespace {

// Inside a logged line. It stands at the beginning, too, so that no text from outside that another
// message quotes is taken for fields.
constexpr char kFieldMark = '\x1e';
constexpr char kValueMark = '\x1f';  // before its value, which is JSON

std::atomic<LogFormat> current_format{LogFormat::kText};

/// Bytes of the UTF-8 character at the start of `text`; 0: there is none.
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0U) != 0x80U) return 0;
  }
  // Overlong forms, surrogates, and what lies beyond U+10FFFF.
  const unsigned char second = byte(1);
  const bool is_out = (first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) ||
                      (first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F);
  return is_out ? 0 : length;
}

/// Appends `text` with what would break a line, or tell a terminal what to do, as JSON escapes it;
/// bytes of `more` get a backslash. What is no UTF-8 becomes U+FFFD.
void append_escaped(std::string& out, std::string_view text, std::string_view more) {
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const auto first = static_cast<unsigned char>(text.front());
    if (length == 0) {
      out += "\xEF\xBF\xBD";
    } else if (first == '\n') {
      out += "\\n";
    } else if (first < ' ' || first == 0x7F) {
      out += fmt::format("\\u{:04x}", first);
    } else if (first == 0xC2 && static_cast<unsigned char>(text[1]) < 0xA0) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned char>(text[1]));  // U+0080 to U+009F
    } else {
      if (more.find(text.front()) != std::string_view::npos) out += '\\';
      out += text.substr(0, length);
    }
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
}

/// Words as they are, everything else as a JSON string.
std::string text_value(std::string_view json) {
  const bool is_string = json.size() >= 2 && json.front() == '"';
  if (!is_string) return std::string(json);
  const std::string_view inner = json.substr(1, json.size() - 2);
  const bool is_plain = !inner.empty() && std::ranges::all_of(inner, [](char c) {
    return c > ' ' && c != '"' && c != '\\' && c != '=' && c != '\x7f';
  });
  return std::string(is_plain ? inner : json);
}

/// Returns the message, and gives each key with its JSON value.
template <typename F>
std::string_view split_payload(std::string_view payload, F&& on_field) {
  if (payload.empty() || payload.front() != kFieldMark) return payload;
  payload.remove_prefix(1);
  std::size_t mark = payload.find(kFieldMark);
  const std::string_view message = payload.substr(0, mark);
  while (mark != std::string_view::npos) {
    const std::size_t next = payload.find(kFieldMark, mark + 1);
    const std::string_view field = payload.substr(mark + 1, next - mark - 1);
    const std::size_t value = field.find(kValueMark);
    if (value != std::string_view::npos) on_field(field.substr(0, value), field.substr(value + 1));
    mark = next;
  }
  return message;
}

class TextFormatter final : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& line, spdlog::memory_buf_t& out) override {
    const std::string_view payload(line.payload.data(), line.payload.size());
    std::string fields;
    const std::string_view message =
        split_payload(payload, [&](std::string_view key, std::string_view value) {
          fields += fmt::format(" {}={}", key, text_value(value));
        });
    std::string text;
    append_escaped(text, message, "");
    text += fields;
    spdlog::details::log_msg shown = line;
    shown.payload = spdlog::string_view_t(text.data(), text.size());
    pattern_.format(shown, out);
    line.color_range_start = shown.color_range_start;
    line.color_range_end = shown.color_range_end;
  }
  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<TextFormatter>();
  }

 private:
  spdlog::pattern_formatter pattern_{"%Y-%m-%d %H:%M:%S.%e %^%l%$ %v"};
};

class JsonFormatter final : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& line, spdlog::memory_buf_t& out) override {
    const std::string_view payload(line.payload.data(), line.payload.size());
    std::string members;
    const std::string_view message =
        split_payload(payload, [&](std::string_view key, std::string_view value) {
          members += fmt::format(R"(,"{}":{})", key, value);
        });
    time_.format(line, out);
    const std::string rest = fmt::format("{}{}}}\n", json_quoted(message), members);
    out.append(rest.data(), rest.data() + rest.size());
  }
  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<JsonFormatter>();
  }

 private:
  spdlog::pattern_formatter time_{R"({"time":"%Y-%m-%dT%H:%M:%S.%eZ","level":"%l","message":)",
                                  spdlog::pattern_time_type::utc, ""};
};

std::string json_value(const std::variant<std::string, std::int64_t, double>& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return json_quoted(*text);
  if (const auto* number = std::get_if<std::int64_t>(&value)) return fmt::format("{}", *number);
  return fmt::format("{:.3f}", std::get<double>(value));
}

}  // namespace

void init_log(std::string_view level, LogFormat format) {
  const auto parsed = spdlog::level::from_str(std::string(level));
  if (parsed == spdlog::level::off && level != "off") {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("log level '{}' is not one of debug, info, warning, error, off", level));
  }
  auto logger = spdlog::get("winnow");
  if (!logger) logger = spdlog::stderr_color_mt("winnow");
  if (format == LogFormat::kJson) {
    logger->set_formatter(std::make_unique<JsonFormatter>());
  } else {
    logger->set_formatter(std::make_unique<TextFormatter>());
  }
  logger->set_level(parsed);
  spdlog::set_default_logger(logger);
  current_format = format;
}

LogFormat log_format() { return current_format; }

void log_event(spdlog::level::level_enum level, std::string_view message,
               std::span<const LogField> fields) {
  if (!spdlog::should_log(level)) return;
  std::string line = kFieldMark + std::string(message);
  for (const LogField& field : fields) {
    line += kFieldMark;
    line += field.key;
    line += kValueMark;
    line += json_value(field.value);
  }
  spdlog::log(level, "{}", line);
}

std::string json_quoted(std::string_view text) {
  std::string out = "\"";
  append_escaped(out, text, "\"\\");
  out += '"';
  return out;
}

}  // namespace winnow
