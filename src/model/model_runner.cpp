#include "model/model_runner.h"

#include "base/error.h"

namespace winnow {

std::shared_ptr<const ModelAdapter> ModelRunner::load_adapter(
    const std::filesystem::path& /*folder*/, const AdapterLimits& /*limits*/) {
  throw Error(ErrorCode::kUnsupported, "this runner takes no adapters");
}

}  // namespace winnow
