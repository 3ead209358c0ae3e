// One layer's experts as the device's kernels find them: which expert a token wants is only known
// there, so the parts of all of them stand in one table.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/linear/cuda_matrix.h"
#include "ops/moe/moe.h"

namespace winnow::cuda {

/// The three matrices of one feed-forward block; first_row of each is 0.
struct DeviceMlp {
  MatrixPart gate;  // [width][hidden]
  MatrixPart up;    // [width][hidden]
  MatrixPart down;  // [hidden][width]
};

class CudaExperts final : public ops::ExpertTable {
 public:
  CudaExperts(std::vector<DeviceMlp> host, ops::Array<DeviceMlp> device, std::int64_t hidden,
              std::int64_t width, std::int64_t shared_width)
      : host_(std::move(host)),
        device_(std::move(device)),
        hidden_(hidden),
        width_(width),
        shared_width_(shared_width) {}

  /// The routed experts by id, then the shared one where there is one: [num_experts() +
  /// has_shared()], on the device.
  const DeviceMlp* device() const { return device_.data(); }
  /// The same list on the host, for choosing a kernel.
  std::span<const DeviceMlp> host() const { return host_; }

  std::int64_t num_experts() const {
    return static_cast<std::int64_t>(host_.size()) - (has_shared() ? 1 : 0);
  }
  bool has_shared() const { return shared_width_ > 0; }
  std::int64_t hidden() const { return hidden_; }
  std::int64_t width() const { return width_; }                // of every routed expert
  std::int64_t shared_width() const { return shared_width_; }  // 0: none

 private:
  std::vector<DeviceMlp> host_;
  ops::Array<DeviceMlp> device_;
  std::int64_t hidden_;
  std::int64_t width_;
  std::int64_t shared_width_;
};

}  // namespace winnow::cuda
