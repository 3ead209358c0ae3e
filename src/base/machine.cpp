#include "base/machine.h"

#include <fmt/format.h>

#include <fstream>
#include <thread>

#include "base/error.h"

namespace winnow {

std::string_view cpu_isa_name(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kPortable:
      return "portable";
    case CpuIsa::kAvx2:
      return "avx2";
    case CpuIsa::kAvx512:
      return "avx512";
  }
  return "unknown";
}

CpuIsa parse_cpu_isa(std::string_view name) {
  for (const CpuIsa isa : {CpuIsa::kPortable, CpuIsa::kAvx2, CpuIsa::kAvx512}) {
    if (name == cpu_isa_name(isa)) return isa;
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("instruction set '{}' is not one of portable, avx2, avx512", name));
}

Machine detect_machine() {
  Machine machine;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    machine.best_isa = CpuIsa::kAvx2;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vbmi")) {
      machine.best_isa = CpuIsa::kAvx512;
    }
  }
  machine.has_avx512_bf16 = __builtin_cpu_supports("avx512bf16");
  machine.has_avx512_vnni = __builtin_cpu_supports("avx512vnni");
#endif
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (line.starts_with("model name")) {
      machine.cpu_name = line.substr(line.find(':') + 2);
      break;
    }
  }
  machine.num_cores = static_cast<int>(std::thread::hardware_concurrency());
  return machine;
}

}  // namespace winnow
