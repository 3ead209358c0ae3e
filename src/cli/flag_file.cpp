// --config FILE.yaml
#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "cli/flag_set.h"
#include "cli/usage_error.h"

namespace winnow::cli {
namespace {

constexpr int kMaxDepth = 32;

Json to_json(const YAML::Node& node, int depth = 0) {
  if (depth > kMaxDepth) throw UsageError("the file is nested too deeply");
  if (node.IsMap()) {
    Json out = Json::object();
    for (const auto& member : node) {
      out[member.first.as<std::string>()] = to_json(member.second, depth + 1);
    }
    return out;
  }
  if (node.IsSequence()) {
    Json out = Json::array();
    for (const auto& item : node) out.push_back(to_json(item, depth + 1));
    return out;
  }
  if (!node.IsScalar()) return nullptr;
  Json parsed = Json::parse(node.Scalar(), nullptr, false);
  const bool is_quoted = node.Tag() == "!";
  return is_quoted || parsed.is_discarded() ? Json(node.Scalar()) : parsed;
}

}  // namespace

std::vector<std::pair<std::string, std::vector<std::string>>> read_flag_file(
    const std::string& path) {
  YAML::Node root;
  try {
    root = YAML::LoadFile(path);
  } catch (const YAML::BadFile&) {
    throw UsageError(fmt::format("--config {}: cannot be read", path));
  } catch (const YAML::Exception& error) {
    throw UsageError(fmt::format("--config {}: line {}: {}", path, error.mark.line + 1, error.msg));
  }
  std::vector<std::pair<std::string, std::vector<std::string>>> out;
  if (root.IsNull()) return out;
  if (!root.IsMap()) {
    throw UsageError(fmt::format("--config {}: not a mapping of flag names to values", path));
  }
  for (const auto& member : root) {
    std::vector<std::string> values;
    const YAML::Node& node = member.second;
    if (node.IsScalar()) {
      values.push_back(node.Scalar());
    } else if (node.IsMap()) {
      values.push_back(to_json(node).dump());
    } else if (node.IsSequence()) {
      for (const auto& item : node) {
        values.push_back(item.IsScalar() ? item.Scalar() : to_json(item).dump());
      }
    }
    if (!values.empty()) out.emplace_back(member.first.as<std::string>(), std::move(values));
  }
  return out;
}

}  // namespace winnow::cli
