#include "checkpoint/inspect.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/drafter_weights.h"
#include "checkpoint/json_file.h"
#include "checkpoint/weights.h"

namespace winnow {

namespace {

std::string_view scheme_name(QuantScheme scheme) {
  switch (scheme) {
    case QuantScheme::kF32:
      return "f32";
    case QuantScheme::kBF16:
      return "bf16";
    case QuantScheme::kMxfp8:
      return "mxfp8";
    case QuantScheme::kNvfp4:
      return "nvfp4";
  }
  return "unknown";
}

// Sums matrices by part and scheme, in the order in which they are first seen.
class WeightSums {
 public:
  void add(std::string_view part, const WeightMatrix& matrix) {
    if (matrix.data.data == nullptr) return;  // has a problem
    Inspection::WeightGroup& group = find(part, scheme_name(matrix.scheme));
    ++group.num_matrices;
    group.num_parameters += matrix.rows * matrix.cols;
    group.num_bytes += matrix.num_bytes();
  }

  void add(std::string_view part, const GatedMlp& mlp) {
    for (const WeightMatrix* matrix : {&mlp.gate, &mlp.up, &mlp.down}) add(part, *matrix);
  }

  std::vector<Inspection::WeightGroup> groups;

 private:
  Inspection::WeightGroup& find(std::string_view part, std::string_view scheme) {
    for (Inspection::WeightGroup& group : groups) {
      if (group.part == part && group.scheme == scheme) return group;
    }
    return groups.emplace_back(
        Inspection::WeightGroup{.part = std::string(part), .scheme = std::string(scheme)});
  }
};

std::vector<Inspection::WeightGroup> sum_weights(const ModelWeights& weights) {
  WeightSums sums;
  sums.add("embedding", weights.embed);
  for (const LayerWeights& layer : weights.layers) {
    for (const WeightMatrix* matrix : {&layer.q, &layer.k, &layer.v, &layer.o}) {
      sums.add("attention", *matrix);
    }
    if (layer.index) {
      sums.add("indexer", layer.index->q);
      sums.add("indexer", layer.index->k);
    }
    if (const auto* dense = std::get_if<GatedMlp>(&layer.mlp)) sums.add("dense MLP", *dense);
    if (const auto* moe = std::get_if<MoeWeights>(&layer.mlp)) {
      sums.add("router", moe->router);
      for (const GatedMlp& expert : moe->experts) sums.add("routed experts", expert);
      sums.add("shared expert", moe->shared);
    }
  }
  if (weights.lm_head.name != weights.embed.name) sums.add("lm_head", weights.lm_head);
  return std::move(sums.groups);
}

std::vector<Inspection::WeightGroup> sum_drafter(const DrafterWeights& weights) {
  WeightSums sums;
  sums.add("drafter fc", weights.fc);
  for (const DrafterLayerWeights& layer : weights.layers) {
    for (const WeightMatrix* matrix : {&layer.q, &layer.k, &layer.v, &layer.o}) {
      sums.add("drafter layers", *matrix);
    }
    sums.add("drafter layers", layer.mlp);
  }
  sums.add("drafter heads", weights.markov_w1);
  sums.add("drafter heads", weights.markov_w2);
  sums.add("drafter heads", weights.confidence);
  sums.add("drafter tables", weights.embed);
  sums.add("drafter tables", weights.lm_head);
  return std::move(sums.groups);
}

std::vector<Inspection::IgnoredGroup> sum_ignored(const std::vector<IgnoredTensor>& ignored) {
  std::vector<Inspection::IgnoredGroup> groups;
  for (const IgnoredTensor& tensor : ignored) {
    auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& candidate) {
      return candidate.reason == tensor.reason;
    });
    if (group == groups.end()) {
      group = groups.insert(
          groups.end(),
          {.reason = tensor.reason, .num_tensors = 0, .num_bytes = 0, .example = tensor.name});
    }
    ++group->num_tensors;
    group->num_bytes += tensor.num_bytes;
  }
  return groups;
}

std::vector<Inspection::CacheBytes> cache_bytes(const ModelConfig& config) {
  std::vector<Inspection::CacheBytes> all;
  for (const CacheDType dtype : {CacheDType::kBF16, CacheDType::kFp8, CacheDType::kNvfp4}) {
    if (dtype == CacheDType::kNvfp4 && config.head_dim % 16 != 0) continue;
    CacheRowShape shape{.num_layers = config.num_layers,
                        .index_layers = {},
                        .num_kv_heads = config.num_kv_heads,
                        .head_dim = config.head_dim,
                        .index_head_dim = config.index_head_dim,
                        .block_tokens = config.block_tokens,
                        .kv_dtype = dtype,
                        .index_dtype = dtype,
                        .drafter = {}};
    const std::int64_t kv = CacheRowLayout(shape).bytes_per_token();
    shape.index_layers = config.sparse_layers();
    all.push_back(
        {.dtype = dtype, .kv = kv, .index = CacheRowLayout(shape).bytes_per_token() - kv});
  }
  return all;
}

void inspect_front_end(Inspection& inspection) {
  struct Wanted {
    std::vector<const char*> names;  // any of them
    const char* purpose;
  };
  const Wanted all[] = {
      {{"tokenizer.json"}, "tokenizer"},
      {{"tokenizer_config.json"}, "tokenizer settings"},
      {{"chat_template.jinja", "chat_template.json"}, "chat template"},
      {{"generation_config.json"}, "sampling defaults, end tokens"},
  };
  for (const Wanted& wanted : all) {
    Inspection::FrontEndFile file{
        .name = wanted.names.front(), .purpose = wanted.purpose, .is_present = false};
    for (const char* name : wanted.names) {
      if (!std::filesystem::exists(inspection.folder / name)) continue;
      file.name = name;
      file.is_present = true;
      break;
    }
    inspection.front_end.push_back(file);
  }
  const auto is_present = [&](std::size_t i) { return inspection.front_end[i].is_present; };
  if (!is_present(0)) {
    inspection.warnings.emplace_back("no tokenizer.json: text cannot be served, only token ids");
  }
  bool has_template = is_present(2);
  if (!has_template && is_present(1)) {
    try {
      has_template =
          read_json_object(inspection.folder / "tokenizer_config.json").contains("chat_template");
    } catch (const Error& error) {
      inspection.problems.push_back(error.text());
    }
    if (has_template) {
      inspection.front_end[2] = {
          .name = "tokenizer_config.json", .purpose = "chat template", .is_present = true};
    }
  }
  if (!has_template) {
    inspection.warnings.emplace_back("no chat template: /v1/chat/completions needs one");
  }
}

void inspect_weights(Inspection& inspection, bool check_scales, ProblemList& problems) {
  const Checkpoint checkpoint(inspection.folder, problems);
  inspection.num_files = static_cast<int>(checkpoint.files().size());
  inspection.num_tensors = static_cast<std::int64_t>(checkpoint.num_tensors());
  for (const SafetensorsFile& file : checkpoint.files()) {
    for (const StoredTensor& tensor : file.tensors()) inspection.tensor_bytes += tensor.num_bytes;
  }
  if (!inspection.config) return;
  const ModelWeights weights =
      load_weights(checkpoint, *inspection.config,
                   {.check_scales = check_scales, .keep_scales = false}, problems);
  inspection.weights = sum_weights(weights);
  inspection.ignored = sum_ignored(weights.ignored);
}

void inspect_drafter(Inspection& inspection, bool check_scales, ProblemList& problems) {
  if (!inspection.config || !has_drafter(inspection.folder)) return;
  const std::size_t num_before = problems.all().size();
  DrafterConfig config = read_drafter_config(inspection.folder, *inspection.config, problems);
  const Checkpoint checkpoint(inspection.folder / kDrafterFolder, problems);
  if (problems.all().size() > num_before) return;
  const DrafterWeights weights = load_drafter_weights(
      checkpoint, config, {.check_scales = check_scales, .keep_scales = false}, problems);
  for (auto& group : sum_drafter(weights)) inspection.weights.push_back(std::move(group));
  config.has_confidence_head = weights.confidence.rows > 0;
  inspection.drafter = std::move(config);
}

// Runs `step`; what it throws becomes a problem.
template <typename Step>
void collect(ProblemList& problems, Step step) {
  try {
    step();
  } catch (const Error& error) {
    problems.add(error.text());
  }
}

std::string layers_text(const ModelConfig& config) {
  const auto num_moe = std::count_if(config.layers.begin(), config.layers.end(),
                                     [](const LayerConfig& layer) { return layer.is_moe; });
  return fmt::format("{} layers: {} with sparse attention, {} with experts", config.num_layers,
                     config.num_sparse_layers(), num_moe);
}

std::string render_config(const ModelConfig& config) {
  std::string text = fmt::format("model      {}, {}\n", config.model_type, layers_text(config));
  text += fmt::format("sizes      hidden {}, vocabulary {}, positions {}\n", config.hidden_size,
                      config.vocab_size, config.max_position_embeddings);
  text += fmt::format("attention  {} query and {} KV heads of {}, rotary {} (theta {:g})\n",
                      config.num_heads, config.num_kv_heads, config.head_dim, config.rotary_dim,
                      config.rope_theta);
  if (config.num_sparse_layers() > 0) {
    text +=
        fmt::format("selection  {} of the blocks of {} tokens ({} newest{} always)\n",
                    config.top_k_blocks, config.block_tokens, config.local_blocks,
                    config.init_blocks > 0 ? fmt::format(", {} first", config.init_blocks) : "");
  }
  if (config.num_experts > 0) {
    text +=
        fmt::format("experts    {} of {}, width {}, and a shared one of {}\n", config.top_k_experts,
                    config.num_experts, config.moe_intermediate, config.shared_intermediate);
  }
  const QuantizationInfo& info = config.quantization;
  text += fmt::format("quantised  {}\n", info.method.empty() ? std::string("no")
                                         : info.moe_algorithm.empty()
                                             ? info.method
                                             : fmt::format("{}, experts {} {}", info.method,
                                                           info.moe_algorithm, info.moe_format));
  text += fmt::format("KV cache   {} by default\n", cache_dtype_name(config.default_cache_dtype()));
  return text;
}

std::string render_drafter(const DrafterConfig& drafter) {
  return fmt::format(
      "drafter    DSpark: {} {}layers, up to {} tokens, window {}, after layers {}; Markov rank "
      "{}{}\n",
      drafter.num_layers, drafter.kind == DrafterKind::kQwen3 ? "Qwen3 " : "", drafter.block_size,
      drafter.sliding_window == kUnlimitedWindow ? "unlimited"
                                                 : std::to_string(drafter.sliding_window),
      fmt::join(drafter.target_layers, ", "), drafter.markov_rank,
      drafter.has_confidence_head ? ", confidence head" : "");
}

std::string render_weights(const Inspection& inspection) {
  if (inspection.weights.empty()) return {};
  std::string text = fmt::format("\n{:<16}{:<8}{:>9}{:>18}{:>12}\n", "weights", "stored",
                                 "matrices", "parameters", "size");
  std::int64_t matrices = 0, parameters = 0, bytes = 0;
  for (const auto& group : inspection.weights) {
    text += fmt::format("{:<16}{:<8}{:>9}{:>18}{:>12}\n", group.part, group.scheme,
                        group.num_matrices, group.num_parameters, bytes_text(group.num_bytes));
    matrices += group.num_matrices;
    parameters += group.num_parameters;
    bytes += group.num_bytes;
  }
  text += fmt::format("{:<24}{:>9}{:>18}{:>12}\n", "all", matrices, parameters, bytes_text(bytes));
  for (const auto& group : inspection.ignored) {
    text += fmt::format("ignored: {} tensors ({}), {}, such as {}\n", group.num_tensors,
                        bytes_text(group.num_bytes), group.reason, printable(group.example));
  }
  return text;
}

}  // namespace

std::string bytes_text(std::int64_t num_bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB"};
  auto value = static_cast<double>(num_bytes);
  std::size_t unit = 0;
  while (value >= 999.995 && unit + 1 < std::size(kUnits)) {
    value /= 1000;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", num_bytes) : fmt::format("{:.2f} {}", value, kUnits[unit]);
}

Inspection inspect_checkpoint(const std::filesystem::path& folder, bool check_scales) {
  Inspection inspection;
  inspection.folder = folder;
  if (!std::filesystem::is_directory(folder)) {
    inspection.problems.push_back(fmt::format("{}: not a folder", folder.string()));
    return inspection;
  }
  ProblemList problems;
  collect(problems, [&] {
    ModelConfig config = read_model_config(folder, problems);
    if (problems.empty()) inspection.config = std::move(config);
  });
  collect(problems, [&] { inspect_weights(inspection, check_scales, problems); });
  collect(problems, [&] { inspect_drafter(inspection, check_scales, problems); });
  if (inspection.config) inspection.cache = cache_bytes(*inspection.config);
  inspection.problems.assign(problems.all().begin(), problems.all().end());
  inspect_front_end(inspection);
  return inspection;
}

std::string render_inspection(const Inspection& inspection) {
  std::string text = fmt::format("{}\n", inspection.folder.string());
  if (inspection.config) text += render_config(*inspection.config);
  if (inspection.drafter) text += render_drafter(*inspection.drafter);
  if (inspection.num_files > 0) {
    text += fmt::format("files      {} safetensors, {} tensors, {}\n", inspection.num_files,
                        inspection.num_tensors, bytes_text(inspection.tensor_bytes));
  }
  text += render_weights(inspection);
  if (!inspection.cache.empty()) {
    text += fmt::format("\n{:<16}{:>12}{:>12}{:>12}{:>24}\n", "cache dtype", "KV B/token", "index",
                        "sum", "tokens in 1 GB");
    for (const auto& cache : inspection.cache) {
      const std::int64_t sum = cache.kv + cache.index;
      text +=
          fmt::format("{:<16}{:>12}{:>12}{:>12}{:>24}\n", cache_dtype_name(cache.dtype), cache.kv,
                      cache.index, sum, 1'000'000'000 / std::max<std::int64_t>(sum, 1));
    }
  }
  text += '\n';
  for (const auto& file : inspection.front_end) {
    text += fmt::format("{:<10}{} ({})\n", file.is_present ? "found" : "absent", file.name,
                        file.purpose);
  }
  for (const std::string& warning : inspection.warnings) {
    text += fmt::format("warning: {}\n", warning);
  }
  for (const std::string& problem : inspection.problems) {
    text += fmt::format("problem: {}\n", problem);
  }
  text += inspection.is_usable()
              ? std::string("usable: yes\n")
              : fmt::format("usable: no ({} problem{})\n", inspection.problems.size(),
                            inspection.problems.size() == 1 ? "" : "s");
  return text;
}

nlohmann::ordered_json inspection_to_json(const Inspection& inspection) {
  using json = nlohmann::ordered_json;
  json out = {{"folder", inspection.folder.string()}, {"usable", inspection.is_usable()}};
  if (inspection.config) {
    const ModelConfig& config = *inspection.config;
    out["config"] = {{"model_type", config.model_type},
                     {"hidden_size", config.hidden_size},
                     {"vocab_size", config.vocab_size},
                     {"num_layers", config.num_layers},
                     {"num_sparse_layers", config.num_sparse_layers()},
                     {"max_position_embeddings", config.max_position_embeddings},
                     {"num_heads", config.num_heads},
                     {"num_kv_heads", config.num_kv_heads},
                     {"head_dim", config.head_dim},
                     {"rotary_dim", config.rotary_dim},
                     {"block_tokens", config.block_tokens},
                     {"top_k_blocks", config.top_k_blocks},
                     {"num_experts", config.num_experts},
                     {"top_k_experts", config.top_k_experts},
                     {"quant_method", config.quantization.method},
                     {"default_cache_dtype", cache_dtype_name(config.default_cache_dtype())}};
  }
  if (inspection.drafter) {
    const DrafterConfig& drafter = *inspection.drafter;
    out["drafter"] = {{"kind", drafter.kind == DrafterKind::kQwen3 ? "qwen3" : "minimax"},
                      {"num_layers", drafter.num_layers},
                      {"block_size", drafter.block_size},
                      {"sliding_window", drafter.sliding_window},
                      {"target_layers", drafter.target_layers},
                      {"noise_token", drafter.noise_token},
                      {"markov_rank", drafter.markov_rank},
                      {"has_confidence_head", drafter.has_confidence_head}};
  }
  out["num_files"] = inspection.num_files;
  out["num_tensors"] = inspection.num_tensors;
  out["tensor_bytes"] = inspection.tensor_bytes;
  out["weights"] = json::array();
  for (const auto& group : inspection.weights) {
    out["weights"].push_back({{"part", group.part},
                              {"scheme", group.scheme},
                              {"num_matrices", group.num_matrices},
                              {"num_parameters", group.num_parameters},
                              {"num_bytes", group.num_bytes}});
  }
  out["ignored"] = json::array();
  for (const auto& group : inspection.ignored) {
    out["ignored"].push_back({{"reason", group.reason},
                              {"num_tensors", group.num_tensors},
                              {"num_bytes", group.num_bytes},
                              {"example", printable(group.example)}});
  }
  out["cache_bytes_per_token"] = json::array();
  for (const auto& cache : inspection.cache) {
    out["cache_bytes_per_token"].push_back(
        {{"dtype", cache_dtype_name(cache.dtype)}, {"kv", cache.kv}, {"index", cache.index}});
  }
  out["front_end"] = json::array();
  for (const auto& file : inspection.front_end) {
    out["front_end"].push_back(
        {{"name", file.name}, {"purpose", file.purpose}, {"present", file.is_present}});
  }
  out["warnings"] = inspection.warnings;
  out["problems"] = inspection.problems;
  return out;
}

}  // namespace winnow
