#include "checkpoint/testing/temporary_folder.h"

#include <cstdlib>
#include <string>
#include <system_error>

#include "base/error.h"

namespace winnow {

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "winnow-test-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw Error(ErrorCode::kIo, "cannot create " + name);
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace winnow
