#include <fmt/format.h>

#include "base/error.h"
#include "ops/backend.h"

namespace winnow::ops {

Backend make_cpu_backend(CpuIsa isa) {
  throw Error(ErrorCode::kUnsupported,
              fmt::format("this build has no kernels for {}", cpu_isa_name(isa)));
}

}  // namespace winnow::ops
