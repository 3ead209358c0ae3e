#include "checkpoint/safetensors_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/assert.h"
#include "base/error.h"

namespace winnow {

namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const char* what) {
  throw Error(ErrorCode::kIo,
              fmt::format("{}: cannot {}: {}", path.string(), what, std::strerror(errno)));
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::vector<Tensor> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : path_(path) {
  std::sort(tensors.begin(), tensors.end(), [](const Tensor& a, const Tensor& b) {
    return std::make_tuple(-dtype_bytes(a.dtype), std::string_view(a.name)) <
           std::make_tuple(-dtype_bytes(b.dtype), std::string_view(b.name));
  });
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::int64_t offset = 0;
  for (const Tensor& tensor : tensors) {
    std::int64_t num_bytes = dtype_bytes(tensor.dtype);
    for (const std::int64_t extent : tensor.shape) num_bytes *= extent;
    const Slot slot{.offset = offset, .num_bytes = num_bytes, .written = 0};
    if (!slots_.emplace(tensor.name, slot).second) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{}: tensor {} given twice", path.string(), tensor.name));
    }
    header[tensor.name] = {{"dtype", dtype_name(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, offset + num_bytes}}};
    offset += num_bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const auto data_begin = static_cast<std::int64_t>(8 + text.size());
  for (auto& [name, slot] : slots_) slot.offset += data_begin;
  file_bytes_ = data_begin + offset;

  descriptor_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor_ < 0) fail(path_, "create");
  const auto header_bytes = static_cast<std::uint64_t>(text.size());
  write_at(0, std::as_bytes(std::span(&header_bytes, 1)));
  write_at(8, std::as_bytes(std::span(text)));
}

SafetensorsWriter::~SafetensorsWriter() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void SafetensorsWriter::write_at(std::int64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::pwrite(descriptor_, bytes.data(), bytes.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) fail(path_, "write");
    bytes = bytes.subspan(static_cast<std::size_t>(count));
    offset += count;
  }
}

void SafetensorsWriter::append(std::string_view name, std::span<const std::byte> bytes) {
  const auto at = slots_.find(name);
  WINNOW_ASSERT(at != slots_.end(), "tensor was announced", name);
  Slot& slot = at->second;
  const auto size = static_cast<std::int64_t>(bytes.size());
  WINNOW_ASSERT(slot.written + size <= slot.num_bytes, "data fits the tensor", name, size);
  write_at(slot.offset + slot.written, bytes);
  slot.written += size;
}

void SafetensorsWriter::finish() {
  for (const auto& [name, slot] : slots_) {
    WINNOW_ASSERT(slot.written == slot.num_bytes, "tensor is complete", name, slot.written);
  }
  if (::fsync(descriptor_) != 0) fail(path_, "flush");
  const int descriptor = descriptor_;
  descriptor_ = -1;
  if (::close(descriptor) != 0) fail(path_, "close");
}

}  // namespace winnow
