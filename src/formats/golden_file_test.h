// Reads tests/golden/formats.safetensors for the tests of this folder, which sits below the real
// safetensors reader.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace winnow {

class GoldenFile {
 public:
  GoldenFile();
  /// The tensor's elements; a test failure ends the program if it is not in the file.
  std::vector<float> floats(std::string_view name) const;
  std::vector<std::uint8_t> bytes(std::string_view name) const;

 private:
  std::string_view raw(std::string_view name) const;
  std::string text_;
};

}  // namespace winnow
