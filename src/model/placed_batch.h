// A step's batch where the backend reads it: in place on CPUs, in one upload on a device.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "model/batch.h"
#include "model/flat_batch.h"
#include "ops/memory.h"
#include "ops/sample/sample.h"

namespace winnow {

class PlacedBatch {
 public:
  explicit PlacedBatch(std::shared_ptr<ops::Memory> memory) : memory_(std::move(memory)) {}

  /// `last` is `all` after keep_logit_rows(). All three must outlive the step. `bound_positions`,
  /// at least all.num_positions(), becomes num_positions of both views.
  void place(const Batch& batch, const FlatBatch& all, const FlatBatch& last,
             std::int32_t bound_positions, std::span<const ops::Draw> draws);

  const ops::BatchView& all() const { return all_; }    // every token of the step
  const ops::BatchView& last() const { return last_; }  // those that the last layer goes on with
  // FlatBatch::adapter_of() of both; nothing without adapters.
  const std::int32_t* adapter_of() const { return adapter_of_; }
  const std::int32_t* last_adapter_of() const { return last_adapter_of_; }
  const std::int32_t* tokens() const { return tokens_; }
  const std::int32_t* kept_tokens() const { return kept_tokens_; }
  const std::int32_t* logit_rows() const { return logit_rows_; }
  const ops::Draw* draws() const { return draws_; }

  /// Changes when the arrays have moved: what was recorded with their addresses is then stale.
  std::int64_t generation() const { return generation_; }

 private:
  ops::BatchView view_of(const FlatBatch& flat, std::int32_t bound_positions) const;
  void upload(const Batch& batch, const FlatBatch& all, const FlatBatch& last,
              std::span<const ops::Draw> draws);

  std::shared_ptr<ops::Memory> memory_;
  ops::Array<std::byte> device_;
  std::vector<std::byte> staging_;
  ops::BatchView all_;
  ops::BatchView last_;
  const std::int32_t* adapter_of_ = nullptr;
  const std::int32_t* last_adapter_of_ = nullptr;
  const std::int32_t* tokens_ = nullptr;
  const std::int32_t* kept_tokens_ = nullptr;
  const std::int32_t* logit_rows_ = nullptr;
  const ops::Draw* draws_ = nullptr;
  std::int64_t generation_ = 0;
};

}  // namespace winnow
