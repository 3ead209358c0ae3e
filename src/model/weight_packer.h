// Packs a list of matrices for one backend on several threads: the model's weights and the
// drafter's.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "checkpoint/weights.h"
#include "model/packed_weights.h"

namespace winnow {

ops::MatrixSource source_of(const WeightMatrix& matrix);
ops::Array<float> place_weights(const ops::Backend& backend, const std::vector<float>& values);

/// FNV-1a over each tensor's name and its first and last bytes: other weights give another value,
/// without reading all of a large checkpoint.
std::uint64_t weights_fingerprint(const Checkpoint& checkpoint);

/// Lists what is to be packed and where it goes, then packs on several threads. A matrix depends on
/// its own source alone, so the number of threads changes nothing but the time.
class WeightPacker {
 public:
  /// `target` must stay where it is until run() returns.
  void add(std::vector<const WeightMatrix*> stack, std::unique_ptr<ops::PackedMatrix>& target);
  void add_mlp(const GatedMlp& mlp, PackedMlp& packed);

  /// Lets go of the matrices' mapped pages as it goes. Throws Error{kOutOfMemory} before anything
  /// is read where the whole cannot fit, and what packing throws.
  void run(const Checkpoint& checkpoint, const ops::Backend& backend,
           const PackingProgress& progress);

 private:
  void check_room(const ops::Memory& memory) const;

  struct Job {
    std::vector<const WeightMatrix*> stack;
    std::unique_ptr<ops::PackedMatrix>* target = nullptr;
  };

  std::vector<Job> jobs_;
  std::int64_t total_bytes_ = 0;
};

}  // namespace winnow
