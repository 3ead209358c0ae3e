// Low-rank additions to a model's projections (LoRA), as the runner that loaded them holds them.
#pragma once

#include <cstdint>

namespace winnow {

/// What an adapter must fit to be loaded.
struct AdapterLimits {
  std::int32_t max_rank = 0;  // of any of its matrices
};

/// Immutable; any thread. Runs only on the runner that loaded it, which must outlive it.
class ModelAdapter {
 public:
  virtual ~ModelAdapter() = default;
  virtual std::int64_t num_bytes() const = 0;  // resident
  /// Of its contents: equal for two loads of equal files, and never that of no adapter (0).
  virtual std::uint64_t fingerprint() const = 0;
  virtual std::int32_t rank() const = 0;  // the largest of its matrices
};

}  // namespace winnow
