#include <cuda_runtime.h>

#include "ops/cuda/device.h"

namespace winnow::cuda {

bool is_compiled_in() { return true; }

std::vector<Device> list_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) return {};
  std::vector<Device> devices;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, i) != cudaSuccess) continue;
    devices.push_back({.name = properties.name,
                       .compute_capability = properties.major * 10 + properties.minor,
                       .num_multiprocessors = properties.multiProcessorCount,
                       .memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem),
                       .l2_bytes = properties.l2CacheSize});
  }
  return devices;
}

}  // namespace winnow::cuda
