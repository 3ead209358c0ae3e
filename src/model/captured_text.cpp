#include "model/captured_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "base/error.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_writer.h"
#include "formats/bf16.h"
#include "model/decoder.h"

namespace winnow {
namespace {

std::string stream_name(std::int32_t layer) { return fmt::format("streams.{}", layer); }

std::int64_t total_tokens(std::span<const CapturedText> texts) {
  std::int64_t total = 0;
  for (const CapturedText& text : texts) total += std::ssize(text.tokens);
  return total;
}

std::vector<SafetensorsWriter::Tensor> text_tensors(std::span<const CapturedText> texts) {
  return {{"tokens", DType::kI32, {total_tokens(texts)}},
          {"starts", DType::kI64, {std::ssize(texts) + 1}},
          {"num_prompt", DType::kI32, {std::ssize(texts)}}};
}

void append_texts(SafetensorsWriter& writer, std::span<const CapturedText> texts) {
  std::vector<std::int64_t> starts = {0};
  std::vector<std::int32_t> num_prompt;
  for (const CapturedText& text : texts) {
    writer.append("tokens", std::as_bytes(std::span(text.tokens)));
    starts.push_back(starts.back() + std::ssize(text.tokens));
    num_prompt.push_back(text.num_prompt);
  }
  writer.append("starts", std::as_bytes(std::span(starts)));
  writer.append("num_prompt", std::as_bytes(std::span(num_prompt)));
}

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& what) {
  throw Error(ErrorCode::kInvalidCheckpoint, fmt::format("{}: {}", path.string(), what),
              "texts come from winnow capture --prompts");
}

template <typename T>
std::vector<T> read_list(const SafetensorsFile& file, const char* name, DType dtype) {
  const TensorView view = file.view(name);
  if (view.dtype != dtype || view.shape.size() != 1) {
    refuse(file.path(), fmt::format("{} is not a list of {}", name, dtype_name(dtype)));
  }
  std::vector<T> values(static_cast<std::size_t>(view.num_elements()));
  if (!values.empty()) std::memcpy(values.data(), view.data, values.size() * sizeof(T));
  return values;
}

/// Consecutive texts that make one step, or one text in chunks.
struct Group {
  std::size_t first = 0, end = 0;  // texts
  std::int64_t num_blocks = 0;
};

std::vector<Group> group_texts(std::span<const CapturedText> texts, std::int64_t step_tokens,
                               std::int64_t block_tokens) {
  std::vector<Group> groups;
  std::int64_t num_tokens = 0;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::int64_t length = std::ssize(texts[i].tokens);
    if (groups.empty() || num_tokens + length > step_tokens) {
      groups.push_back({.first = i});
      num_tokens = 0;
    }
    num_tokens += length;
    groups.back().end = i + 1;
    groups.back().num_blocks += (length + block_tokens - 1) / block_tokens;
  }
  return groups;
}

class StreamRecorder {
 public:
  StreamRecorder(Decoder& decoder, std::span<const std::int32_t> layers, std::int64_t step_tokens,
                 SafetensorsWriter& writer)
      : decoder_(decoder), layers_(layers), step_tokens_(step_tokens), writer_(writer) {}

  void record(std::span<const CapturedText> texts, const std::vector<BlockId>& blocks) {
    if (texts.size() == 1) {
      record_long(texts.front(), blocks);
      return;
    }
    Batch batch;
    std::size_t next_block = 0;
    for (const CapturedText& text : texts) {
      add(batch, text.tokens, 0, std::span(blocks).subspan(next_block));
      const auto block = static_cast<std::size_t>(decoder_.block_tokens());
      next_block += (text.tokens.size() + block - 1) / block;
    }
    run(batch);
  }

 private:
  static void add(Batch& batch, std::span<const TokenId> tokens, std::int64_t position,
                  std::span<const BlockId> block_table) {
    if (tokens.empty()) return;
    batch.sequences.push_back({.first_token = static_cast<std::int32_t>(batch.tokens.size()),
                               .num_tokens = static_cast<std::int32_t>(tokens.size()),
                               .first_position = static_cast<std::int32_t>(position),
                               .block_table = block_table});
    batch.tokens.insert(batch.tokens.end(), tokens.begin(), tokens.end());
  }

  void record_long(const CapturedText& text, const std::vector<BlockId>& blocks) {
    const std::span<const TokenId> tokens(text.tokens);
    for (std::size_t first = 0; first < tokens.size();) {
      const std::size_t count =
          std::min(tokens.size() - first, static_cast<std::size_t>(step_tokens_));
      Batch batch;
      add(batch, tokens.subspan(first, count), static_cast<std::int64_t>(first), blocks);
      run(batch);
      first += count;
    }
  }

  void run(const Batch& batch) {
    if (batch.tokens.empty()) return;
    decoder_.run(batch, {});
    const std::size_t count =
        batch.tokens.size() * static_cast<std::size_t>(decoder_.config().hidden_size);
    values_.resize(count);
    codes_.resize(count);
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      decoder_.memory()->download(values_.data(), decoder_.captured()[i],
                                  static_cast<std::int64_t>(count * sizeof(float)));
      std::ranges::transform(values_, codes_.begin(), encode_bf16);
      writer_.append(stream_name(layers_[i]), std::as_bytes(std::span(codes_)));
    }
  }

  Decoder& decoder_;
  std::span<const std::int32_t> layers_;
  std::int64_t step_tokens_;
  SafetensorsWriter& writer_;
  std::vector<float> values_;
  std::vector<Bf16> codes_;
};

}  // namespace

void write_texts(std::span<const CapturedText> texts, const std::filesystem::path& path) {
  SafetensorsWriter writer(path, text_tensors(texts));
  append_texts(writer, texts);
  writer.finish();
}

std::vector<CapturedText> read_texts(const std::filesystem::path& path, std::int32_t vocab_size) {
  const SafetensorsFile file(path);
  const auto tokens = read_list<TokenId>(file, "tokens", DType::kI32);
  const auto starts = read_list<std::int64_t>(file, "starts", DType::kI64);
  const auto num_prompt = read_list<std::int32_t>(file, "num_prompt", DType::kI32);
  if (starts.size() != num_prompt.size() + 1 || starts.front() != 0 ||
      starts.back() != std::ssize(tokens)) {
    refuse(path, "starts do not cover the tokens");
  }
  if (std::ranges::any_of(tokens, [&](TokenId t) { return t < 0 || t >= vocab_size; })) {
    refuse(path, fmt::format("tokens outside the vocabulary of {}", vocab_size));
  }
  std::vector<CapturedText> texts;
  if (!std::ranges::is_sorted(starts)) refuse(path, "starts do not rise");
  for (std::size_t i = 0; i < num_prompt.size(); ++i) {
    const std::int64_t length = starts[i + 1] - starts[i];
    if (num_prompt[i] < 0 || num_prompt[i] > length) refuse(path, "a prompt exceeds its text");
    texts.push_back({.tokens = {tokens.begin() + starts[i], tokens.begin() + starts[i + 1]},
                     .num_prompt = num_prompt[i]});
  }
  return texts;
}

void write_streams(Decoder& decoder, std::span<const std::int32_t> layers,
                   std::span<const CapturedText> texts, std::int32_t step_tokens,
                   const std::filesystem::path& path) {
  std::vector<SafetensorsWriter::Tensor> tensors = text_tensors(texts);
  for (const std::int32_t layer : layers) {
    tensors.push_back(
        {stream_name(layer), DType::kBF16, {total_tokens(texts), decoder.config().hidden_size}});
  }
  SafetensorsWriter writer(path, std::move(tensors));
  append_texts(writer, texts);

  const std::vector<Group> groups = group_texts(texts, step_tokens, decoder.block_tokens());
  std::int64_t most = 1;
  for (const Group& group : groups) most = std::max(most, group.num_blocks);
  decoder.allocate_pool(static_cast<std::int32_t>(most));
  std::vector<BlockId> blocks;
  for (std::int32_t b = 0; b < most; ++b) blocks.push_back(BlockId{b});
  StreamRecorder recorder(decoder, layers, step_tokens, writer);
  for (const Group& group : groups) {
    recorder.record(texts.subspan(group.first, group.end - group.first), blocks);
  }
  writer.finish();
}

}  // namespace winnow
