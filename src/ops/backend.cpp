#include "ops/backend.h"

#include <fmt/format.h>

#include "base/error.h"
#include "ops/scalar_ops.h"

namespace winnow::ops {

Backend make_scalar_backend() {
  return {.name = "scalar",
          .memory = make_host_memory(),
          .cuda = nullptr,
          .pack = scalar::pack,
          .bind_experts = {},
          .reserve = {},
          .run_step = {},
          .keep_rows = scalar::keep_rows,
          .embed = scalar::embed,
          .rms_norm = scalar::rms_norm,
          .linear = scalar::linear,
          .qkv_insert = scalar::qkv_insert,
          .index_topk = scalar::index_topk,
          .attention = scalar::attention,
          .mlp = scalar::mlp,
          .moe = scalar::moe};
}

Backend make_backend(const std::string& name, const Machine& machine) {
  if (name == "scalar") return make_scalar_backend();
  if (name == "auto" || name == "cpu") return make_cpu_backend(machine.best_isa);
  constexpr std::string_view kPrefix = "cpu-";
  if (name.starts_with(kPrefix))
    return make_cpu_backend(parse_cpu_isa(name.substr(kPrefix.size())));
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("backend '{}' is not one of auto, scalar, cpu, cpu-avx512, cpu-avx2, "
                          "cpu-portable",
                          name));
}

}  // namespace winnow::ops
