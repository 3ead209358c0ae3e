// What this CPU can do, asked once at start.
#pragma once

#include <string>
#include <string_view>

namespace winnow {

/// Instruction sets the CPU kernels are built for, lowest first.
enum class CpuIsa { kPortable, kAvx2, kAvx512 };

/// "portable", "avx2", "avx512".
std::string_view cpu_isa_name(CpuIsa isa);
/// Throws Error{kInvalidArgument} listing the names.
CpuIsa parse_cpu_isa(std::string_view name);

struct Machine {
  CpuIsa best_isa =
      CpuIsa::kPortable;  // kAvx2 needs FMA and F16C; kAvx512 needs F, BW, VL, DQ, VBMI
  bool has_avx512_bf16 = false;
  bool has_avx512_vnni = false;
  std::string cpu_name;
  int num_cores = 1;  // physical cores this process may use
};

Machine detect_machine();

}  // namespace winnow
