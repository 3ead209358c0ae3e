#include "server/adapters/adapter_registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"

namespace winnow::server {
namespace {

constexpr std::size_t kMaxNameLength = 128;
constexpr std::size_t kMaxPathLength = 4096;
constexpr std::string_view kNameMarks = "._-/:@+=";

[[noreturn]] void refuse(const char* param, const std::string& message, std::string hint = {}) {
  throw Error(ErrorCode::kInvalidArgument, message, std::move(hint), param);
}

/// Names stand in paths, log lines and labels of metrics, several with commas between.
void check_name(std::string_view name) {
  const bool is_plain = std::ranges::all_of(name, [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           kNameMarks.find(c) != std::string_view::npos;
  });
  if (name.empty() || name.size() > kMaxNameLength || !is_plain) {
    refuse("lora_name", fmt::format("lora_name: 1 to {} letters, digits and {} are expected",
                                    kMaxNameLength, kNameMarks));
  }
}

/// What is no plain file (a pipe, a device) could hold its reader up for ever.
void check_folder(const std::string& path) {
  if (path.empty() || path.size() > kMaxPathLength || path.find('\0') != std::string::npos) {
    refuse("lora_path", "lora_path: not a path");
  }
  std::error_code error;
  const std::filesystem::path folder(path);
  if (!std::filesystem::is_directory(folder, error)) {
    throw Error(ErrorCode::kNotFound, fmt::format("lora_path: there is no folder '{}'", path),
                "give a folder on the server's machine; nothing is downloaded", "lora_path");
  }
  for (const auto& file : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = file.path().filename().string();
    if (name.starts_with("adapter_") && !file.is_regular_file(error)) {
      refuse("lora_path", fmt::format("lora_path: '{}' is not a plain file", name));
    }
  }
}

/// Of a list of adapters that may be const; its end: none has the name.
template <typename Entries>
auto entry_of(Entries& entries, std::string_view name) {
  return std::ranges::find(entries, name,
                           [](const auto& entry) { return std::string_view(entry->name); });
}

std::int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

/// The thread that frees. Lives as long as any adapter of the registry.
class AdapterRegistry::Disposal {
 public:
  void add(std::shared_ptr<const ModelAdapter> adapter) {
    const std::lock_guard lock(mutex_);
    if (is_stopped_) return;
    adapters_.push_back(std::move(adapter));
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
    changed_.notify_one();
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      is_stopped_ = true;
    }
    changed_.notify_one();
    if (thread_.joinable()) thread_.join();
    adapters_.clear();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (!is_stopped_) {
      std::vector<std::shared_ptr<const ModelAdapter>> freed;
      freed.swap(adapters_);
      lock.unlock();
      freed.clear();
      lock.lock();
      changed_.wait(lock, [this] { return is_stopped_ || !adapters_.empty(); });
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<const ModelAdapter>> adapters_;
  bool is_stopped_ = false;
  std::thread thread_;  // starts with the first adapter
};

AdapterRegistry::AdapterRegistry(Reader reader, std::int64_t max_adapters)
    : disposal_(std::make_shared<Disposal>()),
      reader_(std::move(reader)),
      max_adapters_(max_adapters) {}

AdapterRegistry::~AdapterRegistry() {
  entries_.clear();
  disposal_->stop();
}

void AdapterRegistry::set_model_names(const std::vector<std::string>& names) {
  const std::lock_guard lock(mutex_);
  for (const std::string& name : names) {
    if (entry_of(entries_, name) == entries_.end()) continue;
    refuse("lora_name", fmt::format("the adapter '{}' has the name of the served model", name),
           "give it another name");
  }
  model_names_ = names;
}

void AdapterRegistry::check(const Load& load) const {
  check_name(load.name);
  {
    const std::lock_guard lock(mutex_);
    check_locked(load);
  }
  check_folder(load.path);
}

void AdapterRegistry::check_locked(const Load& load) const {
  const std::string& name = load.name;
  if (std::ranges::find(model_names_, name) != model_names_.end()) {
    refuse("lora_name", fmt::format("lora_name: '{}' is the served model's own name", name));
  }
  if (loading_.contains(name)) {
    refuse("lora_name", fmt::format("The lora adapter '{}' is being loaded", name));
  }
  if (entry_of(entries_, name) != entries_.end()) {
    if (load.in_place) return;
    refuse("lora_name", fmt::format("The lora adapter '{}' has already been loaded. If you want to "
                                    "load the adapter in place, set 'load_inplace' to True.",
                                    name));
  }
  const auto num_taken = std::ssize(entries_) + std::ssize(loading_);
  if (num_taken >= max_adapters_) {
    refuse("lora_name",
           fmt::format("{} adapters are loaded, as many as may be (--max-cpu-loras)", num_taken),
           "unload one first");
  }
}

std::shared_ptr<const ServedAdapter> AdapterRegistry::load(const Load& load) {
  check(load);
  {
    const std::lock_guard lock(mutex_);
    check_locked(load);  // another load may have come in between
    loading_.insert(load.name);
  }
  std::shared_ptr<ServedAdapter> loaded;
  try {
    auto weights = reader_(load.path);
    const ModelAdapter* const shared = weights.get();
    loaded = std::make_shared<ServedAdapter>(
        ServedAdapter{.name = load.name,
                      .path = load.path,
                      .base_model = load.base_model,
                      .created = unix_seconds(),
                      .weights = {shared, [weights = std::move(weights),
                                           disposal = disposal_](const ModelAdapter*) mutable {
                                    disposal->add(std::move(weights));
                                  }}});
  } catch (...) {
    const std::lock_guard lock(mutex_);
    loading_.erase(load.name);
    throw;
  }
  std::shared_ptr<const ServedAdapter> replaced;  // is freed after the lock
  const std::lock_guard lock(mutex_);
  loading_.erase(load.name);
  const auto at = entry_of(entries_, load.name);
  if (at == entries_.end()) {
    entries_.push_back(loaded);
  } else {
    replaced = std::exchange(*at, loaded);
  }
  return loaded;
}

void AdapterRegistry::unload(const std::string& name) {
  std::shared_ptr<const ServedAdapter> removed;  // is freed after the lock
  const std::lock_guard lock(mutex_);
  const auto at = entry_of(entries_, name);
  if (at == entries_.end()) {
    throw Error(ErrorCode::kNotFound, fmt::format("The lora adapter '{}' cannot be found.", name),
                {}, "lora_name");
  }
  removed = std::move(*at);
  entries_.erase(at);
}

std::shared_ptr<const ServedAdapter> AdapterRegistry::find(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  const auto at = entry_of(entries_, name);
  return at != entries_.end() ? *at : nullptr;
}

std::vector<std::shared_ptr<const ServedAdapter>> AdapterRegistry::list() const {
  const std::lock_guard lock(mutex_);
  return entries_;
}

AdapterTotals AdapterRegistry::totals() const {
  const std::lock_guard lock(mutex_);
  AdapterTotals totals{.num_adapters = std::ssize(entries_)};
  for (const auto& entry : entries_) totals.num_bytes += entry->weights->num_bytes();
  return totals;
}

}  // namespace winnow::server
