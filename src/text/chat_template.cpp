#include "text/chat_template.h"

#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/json.h"
#include "text/jinja/parser.h"
#include "text/unicode.h"

namespace winnow {

namespace {

constexpr std::size_t kMaxSourceBytes = std::size_t{4} << 20;

std::optional<std::string> read_if_present(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (file.bad()) throw Error(ErrorCode::kIo, fmt::format("{}: cannot be read", path.string()));
  return text;
}

// `chat_template` of tokenizer_config.json: a string, or a list of {name, template}.
std::optional<std::string> template_in_config(const std::string& config, const std::string& name) {
  nlohmann::json json;
  try {
    json = nlohmann::json::parse(config);
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorCode::kInvalidCheckpoint, fmt::format("{}: {}", name, error.what()));
  }
  if (!json.is_object() || !json.contains("chat_template")) return std::nullopt;
  const nlohmann::json& entry = json["chat_template"];
  if (entry.is_string()) return entry.get<std::string>();
  if (entry.is_null()) return std::nullopt;
  if (entry.is_array()) {
    for (const nlohmann::json& item : entry) {
      const bool is_default = item.is_object() && item.value("name", nlohmann::json()) == "default";
      if (is_default && item.contains("template") && item["template"].is_string()) {
        return item["template"].get<std::string>();
      }
    }
  }
  throw Error(ErrorCode::kInvalidCheckpoint,
              fmt::format("{}: chat_template: expected a string or a list with an entry named "
                          "\"default\"",
                          name));
}

}  // namespace

struct ChatTemplate::Impl {
  std::string source;
  jinja::Program program;
};

ChatTemplate::ChatTemplate(std::string_view source, std::string name)
    : impl_(std::make_unique<Impl>()) {
  if (source.size() > kMaxSourceBytes) {
    throw Error(ErrorCode::kInvalidCheckpoint, fmt::format("{}: {} bytes, accepted: up to {}", name,
                                                           source.size(), kMaxSourceBytes));
  }
  if (well_formed_prefix(source) != source.size()) {
    throw Error(ErrorCode::kInvalidCheckpoint, fmt::format("{}: not UTF-8 text", name));
  }
  impl_->source = std::string(source);
  impl_->program = jinja::parse_template(source, std::move(name));
}

ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

ChatTemplate ChatTemplate::from_folder(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "chat_template.jinja";
  if (const std::optional<std::string> source = read_if_present(file)) {
    return ChatTemplate(*source, file.string());
  }
  const std::filesystem::path config = folder / "tokenizer_config.json";
  if (const std::optional<std::string> text = read_if_present(config)) {
    if (const auto source = template_in_config(*text, config.string())) {
      return ChatTemplate(*source, config.string() + ": chat_template");
    }
  }
  throw Error(ErrorCode::kNotFound, fmt::format("{}: no chat template", folder.string()),
              "add chat_template.jinja, or use completions instead of chat");
}

std::string ChatTemplate::render(const nlohmann::ordered_json& context,
                                 const RenderOptions& options) const {
  std::string text;
  for (const TextSegment& segment : render_segments(context, options)) text += segment.text;
  return text;
}

std::vector<TextSegment> ChatTemplate::render_segments(const nlohmann::ordered_json& context,
                                                       const RenderOptions& options) const {
  return render_segments(jinja::from_json(context), options);
}

std::vector<TextSegment> ChatTemplate::render_segments(const jinja::Value& context,
                                                       const RenderOptions& options) const {
  if (context.dict() == nullptr) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: the context must be an object", impl_->program.name));
  }
  jinja::Interpreter interpreter(impl_->program, *context.dict(), options);
  const jinja::Text text = interpreter.run();
  std::vector<TextSegment> segments;
  std::size_t begin = 0;
  for (const jinja::Text::Run& run : text.runs()) {
    segments.push_back(
        {text.bytes().substr(begin, run.end - begin), run.origin == jinja::Origin::kTemplate});
    begin = run.end;
  }
  return segments;
}

const std::string& ChatTemplate::source() const { return impl_->source; }

}  // namespace winnow
