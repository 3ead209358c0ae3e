#include "formats/bulk_codecs.h"

#include "base/machine.h"

namespace winnow {

const BulkCodecs& bulk_codecs(CpuIsa isa) {
  if (isa >= CpuIsa::kAvx512 && kAvx512Codecs != nullptr) return *kAvx512Codecs;
  if (isa >= CpuIsa::kAvx2 && kAvx2Codecs != nullptr) return *kAvx2Codecs;
  return kScalarCodecs;
}

}  // namespace winnow
