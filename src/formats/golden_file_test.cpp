#include "formats/golden_file_test.h"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

#include "base/assert.h"

namespace winnow {

GoldenFile::GoldenFile() {
  std::ifstream file(WINNOW_SOURCE_DIR "/tests/golden/formats.safetensors", std::ios::binary);
  text_.assign(std::istreambuf_iterator<char>(file), {});
  WINNOW_ASSERT(text_.size() > 8, "golden file is there", text_.size());
}

std::string_view GoldenFile::raw(std::string_view name) const {
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, text_.data(), sizeof(header_bytes));
  const std::string_view header = std::string_view(text_).substr(8, header_bytes);
  const std::string_view key = "\"data_offsets\":[";
  const std::size_t entry = header.find(fmt::format("\"{}\"", name));
  WINNOW_ASSERT(entry != std::string_view::npos, "golden tensor", name);
  const std::size_t offsets = header.find(key, entry) + key.size();
  char* end = nullptr;
  const auto begin = std::strtoull(header.data() + offsets, &end, 10);
  const auto stop = std::strtoull(end + 1, nullptr, 10);
  return std::string_view(text_).substr(8 + header_bytes + begin, stop - begin);
}

std::vector<float> GoldenFile::floats(std::string_view name) const {
  const std::string_view data = raw(name);
  std::vector<float> values(data.size() / sizeof(float));
  std::memcpy(values.data(), data.data(), data.size());
  return values;
}

std::vector<std::uint8_t> GoldenFile::bytes(std::string_view name) const {
  const std::string_view data = raw(name);
  return {data.begin(), data.end()};
}

}  // namespace winnow
