#include "ops/cuda/device.h"

namespace winnow::cuda {

bool is_compiled_in() { return false; }

std::vector<Device> list_devices() { return {}; }

}  // namespace winnow::cuda
