// The adapters (LoRA) that requests pick by name. Source: spec/serving.md 2.7, serving-fields.md
// 2.10.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/request.h"

namespace winnow::server {

/// Immutable: another load under the same name makes another one.
struct ServedAdapter {
  std::string name;
  std::string path;          // as it was given
  std::string base_model;    // parent in /v1/models; empty: the served model
  std::int64_t created = 0;  // Unix seconds
  std::shared_ptr<const ModelAdapter> weights;
};

struct AdapterTotals {
  std::int64_t num_adapters = 0;
  std::int64_t num_bytes = 0;
};

/// Any thread. Whoever lets go of an adapter last does not free it: some gigabytes take a good part
/// of a second, and it may be the engine between two steps. A thread of the registry does.
class AdapterRegistry {
 public:
  /// Reads a folder in PEFT's format. Throws Error.
  using Reader = std::function<std::shared_ptr<const ModelAdapter>(const std::filesystem::path&)>;

  AdapterRegistry(Reader reader, std::int64_t max_adapters);
  /// After it, adapters are freed by whoever lets go of them.
  ~AdapterRegistry();
  AdapterRegistry(const AdapterRegistry&) = delete;
  AdapterRegistry& operator=(const AdapterRegistry&) = delete;

  /// The model's own names: no adapter may have one. Throws Error{kInvalidArgument} if one has.
  void set_model_names(const std::vector<std::string>& names);

  struct Load {
    std::string name;
    std::string path;
    std::string base_model{};
    bool in_place = false;  // may take the place of one of that name
  };
  /// Throws Error, as load() does, for what can be told before anything is read.
  void check(const Load& load) const;
  /// Reads, then lets requests find it; until then they find what was there. Throws
  /// Error{kInvalidArgument} for a name that cannot be or is taken, too many adapters, a path that
  /// is none; Error{kNotFound} for no folder; and what the reader throws.
  std::shared_ptr<const ServedAdapter> load(const Load& load);
  /// Requests that run with it keep it. Throws Error{kNotFound}.
  void unload(const std::string& name);

  std::shared_ptr<const ServedAdapter> find(std::string_view name) const;  // null: none
  std::vector<std::shared_ptr<const ServedAdapter>> list() const;          // as they came
  AdapterTotals totals() const;

 private:
  class Disposal;

  void check_locked(const Load& load) const;

  std::shared_ptr<Disposal> disposal_;
  Reader reader_;
  std::int64_t max_adapters_;
  mutable std::mutex mutex_;
  std::vector<std::string> model_names_;
  std::set<std::string, std::less<>> loading_;  // names whose folders are being read
  std::vector<std::shared_ptr<const ServedAdapter>> entries_;
};

}  // namespace winnow::server
