#include "ops/backend.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <vector>

#include "base/error.h"
#include "ops/cuda/backend.h"
#include "ops/cuda/device.h"
#include "ops/scalar_ops.h"

namespace winnow::ops {

Backend make_scalar_backend() {
  return {.name = "scalar",
          .machine = {},
          .memory = make_host_memory(),
          .staging = {},
          .cuda = nullptr,
          .pack = scalar::pack,
          .make_random = {},
          .bind_experts = {},
          .bind_lora = {},
          .reserve = {},
          .run_step = {},
          .keep_rows = scalar::keep_rows,
          .embed = scalar::embed,
          .rms_norm = scalar::rms_norm,
          .linear = scalar::linear,
          .lora = scalar::lora,
          .qkv_insert = scalar::qkv_insert,
          .index_topk = scalar::index_topk,
          .attention = scalar::attention,
          .mlp = scalar::mlp,
          .moe = scalar::moe,
          .draft_insert = scalar::draft_insert,
          .draft_heads = scalar::draft_heads,
          .draft_attention = scalar::draft_attention};
}

namespace {

[[noreturn]] void throw_unknown(const std::string& name) {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("backend '{}' is not one of {}", name, fmt::join(kBackendNames, ", ")));
}

bool has_device() {
  const std::vector<cuda::Device> devices = cuda::list_devices();
  return cuda::is_compiled_in() && !devices.empty() &&
         devices.front().compute_capability == cuda::kComputeCapability;
}

/// "cuda" or "cuda-exact", with an optional ":N".
Backend make_named_cuda_backend(const std::string& name) {
  const std::size_t colon = std::min(name.find(':'), name.size());
  const std::string_view kind = std::string_view(name).substr(0, colon);
  int device = 0;
  if (colon < name.size()) {
    const char* const end = name.data() + name.size();
    const auto [rest, error] = std::from_chars(name.data() + colon + 1, end, device);
    if (error != std::errc() || rest != end || device < 0) throw_unknown(name);
  }
  if (kind == "cuda") return make_cuda_backend(device, CudaKernels::kFast);
  if (kind == "cuda-exact") return make_cuda_backend(device, CudaKernels::kExact);
  throw_unknown(name);
}

}  // namespace

Backend make_backend(const std::string& name, const Machine& machine) {
  if (name == "scalar") return make_scalar_backend();
  if (name == "auto" && has_device()) return make_cuda_backend(0, CudaKernels::kFast);
  if (name == "auto" || name == "cpu") return make_cpu_backend(machine.best_isa);
  if (name.starts_with("cuda")) return make_named_cuda_backend(name);
  constexpr std::string_view kPrefix = "cpu-";
  if (name.starts_with(kPrefix))
    return make_cpu_backend(parse_cpu_isa(name.substr(kPrefix.size())));
  throw_unknown(name);
}

}  // namespace winnow::ops
