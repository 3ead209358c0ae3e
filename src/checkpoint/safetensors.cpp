#include "checkpoint/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>

#include "base/error.h"

namespace winnow {

namespace {

std::optional<DType> parse_dtype(std::string_view name) {
  if (name == "F8_E8M0") return DType::kU8;
  for (int i = 0; i <= static_cast<int>(DType::kBool); ++i) {
    const auto dtype = static_cast<DType>(i);
    if (name == dtype_name(dtype)) return dtype;
  }
  return std::nullopt;
}

struct HeaderEntry {
  std::string name;
  std::optional<std::string> dtype;
  std::optional<std::vector<std::uint64_t>> shape;
  std::optional<std::vector<std::uint64_t>> data_offsets;
};

// Receives the header's JSON token by token: unlike a document it shows repeated names, and it
// builds nothing that the format has no place for.
class HeaderReader {
 public:
  using json = nlohmann::json;

  std::vector<HeaderEntry> entries;
  std::map<std::string, std::string> metadata;
  std::string error;  // what stopped the parse

  bool null() { return unexpected("null"); }
  bool boolean(bool) { return unexpected("a boolean"); }
  bool number_integer(json::number_integer_t value) {
    return unexpected(fmt::format("the number {}", value));
  }
  bool number_float(json::number_float_t, const std::string& text) {
    return unexpected(fmt::format("the number {}", printable(text)));
  }
  bool binary(json::binary_t&) { return unexpected("binary data"); }

  bool number_unsigned(json::number_unsigned_t value) {
    if (numbers_ == nullptr) return unexpected(fmt::format("the number {}", value));
    if (numbers_->size() >= kMaxTensorRank) {
      return stop(
          fmt::format("{}: {} has more than {} entries", entry_name(), field_, kMaxTensorRank));
    }
    numbers_->push_back(value);
    return true;
  }

  bool string(std::string& value) {
    if (level_ == 2 && is_metadata_) {
      metadata[field_] = value;
      return true;
    }
    if (level_ != 2 || field_ != "dtype" || numbers_ != nullptr) return unexpected("a string");
    entries.back().dtype = value;
    return true;
  }

  bool start_object(std::size_t) {
    if (level_ == 0) {
      level_ = 1;
      return true;
    }
    if (level_ != 1) return unexpected("an object");
    level_ = 2;
    is_metadata_ = field_ == "__metadata__";
    if (!is_metadata_)
      entries.push_back({.name = field_, .dtype = {}, .shape = {}, .data_offsets = {}});
    return true;
  }

  bool key(std::string& name) {
    field_ = name;
    if (level_ == 1) {
      if (!names_.insert(name).second) {
        return stop(fmt::format("{}: name given twice in the header", printable(name)));
      }
      return true;
    }
    if (is_metadata_) return true;
    const HeaderEntry& entry = entries.back();
    const bool is_known = name == "dtype" || name == "shape" || name == "data_offsets";
    if (!is_known) {
      return stop(fmt::format("{}: unknown field '{}', expected dtype, shape, data_offsets",
                              entry_name(), printable(name)));
    }
    const bool is_repeated = (name == "dtype" && entry.dtype) || (name == "shape" && entry.shape) ||
                             (name == "data_offsets" && entry.data_offsets);
    return !is_repeated || stop(fmt::format("{}: {} given twice", entry_name(), name));
  }

  bool end_object() {
    --level_;
    return true;
  }

  bool start_array(std::size_t) {
    if (level_ != 2 || is_metadata_ || field_ == "dtype" || numbers_ != nullptr) {
      return unexpected("an array");
    }
    HeaderEntry& entry = entries.back();
    numbers_ = field_ == "shape" ? &entry.shape.emplace() : &entry.data_offsets.emplace();
    return true;
  }

  bool end_array() {
    numbers_ = nullptr;
    return true;
  }

  bool parse_error(std::size_t, const std::string&, const json::exception& problem) {
    return stop(fmt::format("header is not valid JSON: {}", printable(problem.what())));
  }

 private:
  std::string entry_name() const { return printable(entries.back().name); }

  bool unexpected(std::string_view found) {
    return stop(level_ == 0 ? fmt::format("header holds {}, expected an object", found)
                            : fmt::format("header: {} at '{}'{}", found, printable(field_),
                                          level_ == 2 && !is_metadata_
                                              ? " of " + entry_name()
                                              : std::string(" where the format has none")));
  }

  bool stop(std::string text) {
    if (error.empty()) error = std::move(text);
    return false;
  }

  int level_ = 0;  // 1 inside the header's object, 2 inside an entry
  bool is_metadata_ = false;
  std::string field_;
  std::vector<std::uint64_t>* numbers_ = nullptr;
  std::unordered_set<std::string> names_;
};

// The entry as a tensor of a file whose data spans [data_begin, file_size), or what is wrong.
std::optional<StoredTensor> check_entry(const HeaderEntry& entry, std::int64_t data_begin,
                                        std::int64_t file_size, std::string& problem) {
  const auto data_size = static_cast<std::uint64_t>(file_size - data_begin);
  if (!entry.dtype || !entry.shape || !entry.data_offsets) {
    problem = fmt::format("no {}", !entry.dtype   ? "dtype"
                                   : !entry.shape ? "shape"
                                                  : "data_offsets");
    return std::nullopt;
  }
  const std::optional<DType> dtype = parse_dtype(*entry.dtype);
  if (!dtype) {
    problem = fmt::format(
        "dtype '{}' is not one that this program reads (F32, F16, BF16, "
        "F8_E4M3, U8, …)",
        printable(*entry.dtype));
    return std::nullopt;
  }
  StoredTensor tensor{
      .name = entry.name, .dtype = *dtype, .shape = {}, .offset = 0, .num_bytes = 0};
  std::int64_t expected = dtype_bytes(*dtype);
  for (const std::uint64_t extent : *entry.shape) {
    if (extent > static_cast<std::uint64_t>(INT64_MAX) ||
        __builtin_mul_overflow(expected, static_cast<std::int64_t>(extent), &expected)) {
      problem = fmt::format("shape [{}] of {} overflows 64 bits", fmt::join(*entry.shape, ", "),
                            *entry.dtype);
      return std::nullopt;
    }
    tensor.shape.push_back(static_cast<std::int64_t>(extent));
  }
  const std::vector<std::uint64_t>& offsets = *entry.data_offsets;
  if (offsets.size() != 2 || offsets[0] > offsets[1]) {
    problem = fmt::format("data_offsets [{}], expected [begin, end] with begin <= end",
                          fmt::join(offsets, ", "));
    return std::nullopt;
  }
  if (offsets[1] > data_size) {
    problem = fmt::format(
        "data_offsets [{}, {}] end past the file's {} bytes of data: the file is "
        "truncated, or its header is not its own",
        offsets[0], offsets[1], data_size);
    return std::nullopt;
  }
  if (offsets[1] - offsets[0] != static_cast<std::uint64_t>(expected)) {
    problem = fmt::format("{} bytes of data, expected {} ({} {})", offsets[1] - offsets[0],
                          expected, *entry.dtype, shape_text(tensor.shape));
    return std::nullopt;
  }
  tensor.offset = data_begin + static_cast<std::int64_t>(offsets[0]);
  tensor.num_bytes = expected;
  return tensor;
}

// Tensors must follow one another without gap or overlap and end with the file.
void check_coverage(const std::vector<StoredTensor>& tensors, std::string_view file,
                    std::int64_t data_begin, std::int64_t file_size, ProblemList& problems) {
  std::vector<const StoredTensor*> order;
  for (const StoredTensor& tensor : tensors) {
    if (tensor.num_bytes > 0) order.push_back(&tensor);
  }
  std::sort(order.begin(), order.end(),
            [](const auto* a, const auto* b) { return a->offset < b->offset; });
  std::int64_t end = data_begin;
  const StoredTensor* previous = nullptr;
  for (const StoredTensor* tensor : order) {
    if (tensor->offset < end) {
      problems.add(fmt::format("{}: {} overlaps {} by {} bytes (starts at byte {}, expected {})",
                               file, printable(tensor->name), printable(previous->name),
                               end - tensor->offset, tensor->offset, end));
    } else if (tensor->offset > end) {
      problems.add(
          fmt::format("{}: {} bytes before {} belong to no tensor (starts at byte {}, "
                      "expected {})",
                      file, tensor->offset - end, printable(tensor->name), tensor->offset, end));
    }
    if (tensor->offset + tensor->num_bytes > end) {
      end = tensor->offset + tensor->num_bytes;
      previous = tensor;
    }
  }
  if (end < file_size) {
    problems.add(fmt::format("{}: {} bytes after the last tensor (file has {} bytes, expected {})",
                             file, file_size - end, file_size, end));
  }
}

}  // namespace

SafetensorsHeader parse_safetensors(std::span<const std::byte> file, std::string_view name,
                                    ProblemList& problems) {
  SafetensorsHeader header;
  const auto file_size = static_cast<std::int64_t>(file.size());
  if (file_size < 8) {
    problems.add(
        fmt::format("{}: {} bytes, expected at least the 8 of a safetensors header "
                    "length: the file is truncated",
                    name, file_size));
    return header;
  }
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));  // little-endian, as this machine
  if (header_bytes > static_cast<std::uint64_t>(kMaxSafetensorsHeader)) {
    problems.add(
        fmt::format("{}: header of {} bytes, expected at most {}; is this a safetensors "
                    "file?",
                    name, header_bytes, kMaxSafetensorsHeader));
    return header;
  }
  const std::int64_t data_begin = 8 + static_cast<std::int64_t>(header_bytes);
  if (data_begin > file_size) {
    problems.add(fmt::format("{}: header of {} bytes in a file of {}: the file is truncated", name,
                             header_bytes, file_size));
    return header;
  }
  const auto* text = reinterpret_cast<const char*>(file.data()) + 8;
  HeaderReader reader;
  nlohmann::json::sax_parse(text, text + header_bytes, &reader);
  if (!reader.error.empty()) {
    problems.add(fmt::format("{}: {}", name, reader.error));
    return header;
  }
  header.metadata = std::move(reader.metadata);
  bool is_complete = true;
  for (const HeaderEntry& entry : reader.entries) {
    std::string problem;
    std::optional<StoredTensor> tensor = check_entry(entry, data_begin, file_size, problem);
    if (tensor) {
      header.tensors.push_back(std::move(*tensor));
    } else {
      problems.add(fmt::format("{}: {}: {}", name, printable(entry.name), problem));
      is_complete = false;
    }
  }
  // With an entry left out, its bytes would be reported a second time as a gap.
  if (is_complete) check_coverage(header.tensors, name, data_begin, file_size, problems);
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return header;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path, ProblemList& problems)
    : file_(path), header_(parse_safetensors(file_.bytes(), path.filename().string(), problems)) {}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(path) {
  ProblemList problems;
  header_ = parse_safetensors(file_.bytes(), path.filename().string(), problems);
  problems.throw_if_any(path.string());
}

const StoredTensor* SafetensorsFile::find(std::string_view name) const {
  const auto at = std::lower_bound(
      header_.tensors.begin(), header_.tensors.end(), name,
      [](const StoredTensor& tensor, std::string_view wanted) { return tensor.name < wanted; });
  return at != header_.tensors.end() && at->name == name ? &*at : nullptr;
}

TensorView SafetensorsFile::view(std::string_view name) const {
  const StoredTensor* tensor = find(name);
  if (tensor == nullptr) {
    throw Error(ErrorCode::kInvalidCheckpoint,
                fmt::format("{}: no tensor {}", path().string(), name));
  }
  return view(*tensor);
}

TensorView SafetensorsFile::view(const StoredTensor& tensor) const {
  return {
      .data = file_.bytes().data() + tensor.offset, .dtype = tensor.dtype, .shape = tensor.shape};
}

std::string shape_text(std::span<const std::int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

}  // namespace winnow
