#include "ops/testing/backends.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "base/error.h"
#include "ops/testing/hosted_cuda.h"

namespace winnow::ops::testing {

std::vector<Backend> all_backends() {
  std::vector<Backend> backends{make_scalar_backend()};
  const Machine machine = detect_machine();
  for (const CpuIsa isa : {CpuIsa::kPortable, CpuIsa::kAvx2, CpuIsa::kAvx512}) {
    if (isa > machine.best_isa) break;
    try {
      backends.push_back(make_cpu_backend(isa));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnsupported) throw;
    }
  }
  if (has_cuda_device()) backends.push_back(make_hosted_cuda_backend(CudaKernels::kExact));
  // WINNOW_TEST_BACKEND=cuda-exact: the reference and that one only.
  if (const char* const only = std::getenv("WINNOW_TEST_BACKEND")) {
    std::erase_if(backends, [&](const Backend& backend) {
      return backend.name != "scalar" && backend.name != only;
    });
    if (backends.back().name != only) {
      throw Error(ErrorCode::kUnsupported,
                  std::string("WINNOW_TEST_BACKEND=") + only + ": this machine cannot run it");
    }
  }
  return backends;
}

void for_each_backend(const std::function<void(const Backend&, const OpContext&)>& check,
                      int num_threads) {
  for (const Backend& backend : all_backends()) {
    SCOPED_TRACE(backend.name);
    TestContext context(num_threads);
    check(backend, context.get());
  }
}

}  // namespace winnow::ops::testing
