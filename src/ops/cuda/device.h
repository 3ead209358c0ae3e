// Which CUDA devices this process can see. Compiled in two forms: device.cu asks the driver, and
// device_absent.cpp answers "none" in a build without CUDA.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace winnow::cuda {

/// What the kernels are compiled for: 90 is Hopper.
inline constexpr int kComputeCapability = 90;

struct Device {
  std::string name;
  int compute_capability = 0;  // 90 for Hopper
  int num_multiprocessors = 0;
  std::int64_t memory_bytes = 0;
  std::int64_t l2_bytes = 0;
};

/// True when this binary was built with WINNOW_CUDA=ON.
bool is_compiled_in();

/// Devices in driver order; empty when there is no driver or no device. Never throws.
std::vector<Device> list_devices();

}  // namespace winnow::cuda
