// Repacks weights into the layout of cuda_matrix.h and uploads them. Called from several threads at
// once while a checkpoint loads: each has its own page-locked staging, so that repacking one piece
// overlaps the copy of the piece before.
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "formats/e4m3.h"
#include "formats/e8m0.h"
#include "formats/mxfp8.h"
#include "ops/cuda/check.h"
#include "ops/cuda/context.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/linear/check_sources.h"
#include "ops/linear/cuda_matrix.h"

namespace winnow::cuda {
namespace {

constexpr std::int64_t kStagingBytes = std::int64_t{4} << 20;

/// Two page-locked buffers of one thread: one is filled while the other is copied.
class Staging {
 public:
  Staging() {
    for (Half& half : halves_) {
      check(cudaMallocHost(&half.data, kStagingBytes), "cudaMallocHost");
      check(cudaEventCreateWithFlags(&half.copied, cudaEventDisableTiming), "cudaEventCreate");
    }
  }
  ~Staging() {
    for (const Half& half : halves_) {
      cudaEventSynchronize(half.copied);
      cudaEventDestroy(half.copied);
      cudaFreeHost(half.data);
    }
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  static Staging& of_this_thread() {
    thread_local Staging staging;
    return staging;
  }

  void start(std::byte* target, const Context& context) {
    target_ = target;
    stream_ = context.stream();
    recording_ = context.recording();
    used_ = 0;
    wait();
  }

  /// Room for the next `num_bytes` of the target, in order.
  std::byte* next(std::int64_t num_bytes) {
    if (used_ + num_bytes > kStagingBytes) flush();
    std::byte* const room = static_cast<std::byte*>(halves_[current_].data) + used_;
    used_ += num_bytes;
    return room;
  }

  void flush() {
    if (used_ == 0) return;
    Half& half = halves_[current_];
    {
      const std::lock_guard recording(*recording_);
      check(cudaMemcpyAsync(target_, half.data, static_cast<std::size_t>(used_),
                            cudaMemcpyHostToDevice, stream_),
            "copying weights to the device");
      check(cudaEventRecord(half.copied, stream_), "cudaEventRecord");
    }
    target_ += used_;
    used_ = 0;
    current_ ^= 1U;
    wait();
  }

 private:
  struct Half {
    void* data = nullptr;
    cudaEvent_t copied = nullptr;
  };

  void wait() const { check(cudaEventSynchronize(halves_[current_].copied), "copying weights"); }

  std::array<Half, 2> halves_;
  std::size_t current_ = 0;
  std::byte* target_ = nullptr;
  cudaStream_t stream_ = nullptr;
  SharedLock recording_;
  std::int64_t used_ = 0;
};

/// Sixteen rows of 64 columns, each row's bytes and scales contiguous; rows and columns beyond the
/// matrix are zeros.
struct ChunkView {
  const std::byte* data = nullptr;
  std::int64_t row_bytes = 0;
  const std::uint8_t* scales = nullptr;
  std::int64_t row_scales = 0;

  template <typename T>
  const T* row(std::int64_t r) const {
    return reinterpret_cast<const T*>(data + r * row_bytes);
  }
};

/// kCodePairs[pair][byte]: the word of two codes, the low nibble first, as values 2 · pair and
/// 2 · pair + 1.
using CodePairs = std::array<std::array<std::uint32_t, 256>, 4>;
constexpr CodePairs make_code_pairs() {
  CodePairs pairs{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    for (int pair = 0; pair < 4; ++pair) {
      pairs[static_cast<std::size_t>(pair)][byte] =
          nvfp4_place(byte & 15U, 2 * pair) ^ nvfp4_place(byte >> 4, 2 * pair + 1);
    }
  }
  return pairs;
}
constexpr CodePairs kCodePairs = make_code_pairs();

static_assert([] {
  for (int i = 0; i < 8; ++i) {
    for (std::uint32_t code = 0; code < 16; ++code) {
      const std::uint32_t word = nvfp4_place(code, i) ^ nvfp4_place(9, (i + 3) % 8);
      if (nvfp4_code(word, i) != code || nvfp4_code(word, (i + 3) % 8) != 9) return false;
    }
  }
  return true;
}());

static_assert([] {
  for (int code = 0; code < 0x7F; ++code) {
    const auto scale = static_cast<std::uint8_t>(code);
    if (nvfp4_scale_value(pack_nvfp4_scale(scale)) != decode_e4m3(scale)) return false;
  }
  return true;
}());

constexpr std::array<std::uint8_t, 256> kPackedScales = [] {
  std::array<std::uint8_t, 256> packed{};
  for (std::size_t scale = 0; scale < packed.size(); ++scale) {
    packed[scale] = pack_nvfp4_scale(static_cast<std::uint8_t>(scale));
  }
  return packed;
}();

/// Sixteen codes of one row under one scale, with the scale's sign in them and zeros under a zero:
/// byte i in bits 8i … 8i + 7.
std::uint64_t code_group(const std::uint8_t* codes, std::uint8_t scale) {
  static_assert(std::endian::native == std::endian::little);
  std::uint64_t group = 0;
  std::memcpy(&group, codes, sizeof(group));
  const std::uint64_t signs = 0x8888888888888888U;
  group ^= signs & (0 - static_cast<std::uint64_t>(scale >> 7U));
  return (scale & 0x7FU) == 0 ? 0 : group;
}

void pack_nvfp4(const ChunkView& view, std::byte* out) {
  auto* const words = reinterpret_cast<std::uint32_t*>(out);
  auto* const scales = reinterpret_cast<std::uint8_t*>(out + 512);
  for (std::int64_t g = 0; g < 8; ++g) {
    for (std::int64_t s = 0; s < 4; ++s) {
      const std::uint8_t top = view.scales[g * view.row_scales + s];
      const std::uint8_t bottom = view.scales[(g + 8) * view.row_scales + s];
      scales[8 * g + s] = kPackedScales[top];
      scales[8 * g + 4 + s] = kPackedScales[bottom];
      const std::uint64_t a = code_group(view.row<std::uint8_t>(g) + 8 * s, top);
      const std::uint64_t b = code_group(view.row<std::uint8_t>(g + 8) + 8 * s, bottom);
      for (unsigned c = 0; c < 4; ++c) {  // the byte of columns 16s + 2c, 2c + 1
        words[(4 * g + c) * 4 + s] =
            kCodePairs[0][a >> (8 * c) & 0xFFU] ^ kCodePairs[1][b >> (8 * c) & 0xFFU] ^
            kCodePairs[2][a >> (8 * c + 32) & 0xFFU] ^ kCodePairs[3][b >> (8 * c + 32) & 0xFFU];
      }
    }
  }
}

/// Values v, v + 1 of row a and of row b in the order of mxfp8_byte(): a, b, a, b.
std::uint32_t interleave(const std::uint8_t* a, const std::uint8_t* b) {
  return std::uint32_t{a[0]} | std::uint32_t{b[0]} << 8U | std::uint32_t{a[1]} << 16U |
         std::uint32_t{b[1]} << 24U;
}

static_assert(mxfp8_byte(0) == 0 && mxfp8_byte(2) == 1 && mxfp8_byte(1) == 2 &&
              mxfp8_byte(3) == 3 && mxfp8_byte(4) == 4 && mxfp8_byte(6) == 5 &&
              mxfp8_byte(5) == 6 && mxfp8_byte(7) == 7);

void pack_mxfp8(const ChunkView& view, std::byte* out) {
  auto* scales = reinterpret_cast<std::uint8_t*>(out + 1024);
  for (std::int64_t g = 0; g < 8; ++g) {
    const auto* const a = view.row<std::uint8_t>(g);
    const auto* const b = view.row<std::uint8_t>(g + 8);
    for (int half = 0; half < 2; ++half) {
      auto* words = reinterpret_cast<std::uint32_t*>(out + half * 512 + g * 64);
      for (int c = 0; c < 4; ++c) {
        for (int s = 2 * half; s < 2 * half + 2; ++s) {
          const int at = 16 * s + 2 * c;
          *words++ = interleave(a + at, b + at);
          *words++ = interleave(a + at + 8, b + at + 8);
        }
      }
    }
    std::memcpy(scales + 4 * g, view.scales + g * view.row_scales, 2);
    std::memcpy(scales + 4 * g + 2, view.scales + (g + 8) * view.row_scales, 2);
  }
}

/// BF16 and F32: pairs of neighbouring columns move as one value of twice the size.
template <typename Pair>
void pack_plain(const ChunkView& view, std::byte* out) {
  for (std::int64_t g = 0; g < 8; ++g) {
    const std::byte* const a = view.row<std::byte>(g);
    const std::byte* const b = view.row<std::byte>(g + 8);
    for (int c = 0; c < 4; ++c) {
      for (int s = 0; s < 4; ++s) {
        const std::size_t at = static_cast<std::size_t>(8 * s + c) * sizeof(Pair);
        constexpr std::size_t kFour = 4 * sizeof(Pair);
        std::byte* const to = out + static_cast<std::size_t>(s * 32 + 4 * g + c) * kFour;
        std::memcpy(to, a + at, sizeof(Pair));
        std::memcpy(to + sizeof(Pair), b + at, sizeof(Pair));
        std::memcpy(to + 2 * sizeof(Pair), a + at + kFour, sizeof(Pair));
        std::memcpy(to + 3 * sizeof(Pair), b + at + kFour, sizeof(Pair));
      }
    }
  }
}

void pack_chunk(QuantScheme scheme, const ChunkView& view, std::byte* out) {
  switch (scheme) {
    case QuantScheme::kNvfp4:
      return pack_nvfp4(view, out);
    case QuantScheme::kMxfp8:
      return pack_mxfp8(view, out);
    case QuantScheme::kBF16:
      return pack_plain<std::uint32_t>(view, out);
    case QuantScheme::kF32:
      return pack_plain<std::uint64_t>(view, out);
  }
}

/// Bytes of `cols` elements of one row.
std::int64_t element_bytes(QuantScheme scheme, std::int64_t cols) {
  switch (scheme) {
    case QuantScheme::kNvfp4:
      return cols / 2;
    case QuantScheme::kMxfp8:
      return cols;
    case QuantScheme::kBF16:
      return cols * 2;
    case QuantScheme::kF32:
      return cols * 4;
  }
  return 0;
}

/// One source, chunk by chunk.
class SourceReader {
 public:
  explicit SourceReader(const ops::MatrixSource& source)
      : source_(source),
        has_scales_(ops::has_scales(source.scheme)),
        group_(ops::group_columns(source.scheme)),
        row_bytes_(element_bytes(source.scheme, source.cols)),
        row_scales_(has_scales_ ? source.cols / group_ : 0) {}

  ChunkView chunk(std::int64_t tile, std::int64_t number) {
    const std::int64_t row = tile * kTileRows;
    const std::int64_t col = number * kChunkCols;
    const std::byte* const data = static_cast<const std::byte*>(source_.data) + row * row_bytes_ +
                                  element_bytes(source_.scheme, col);
    const std::uint8_t* const scales =
        has_scales_ ? source_.scales + row * row_scales_ + col / group_ : nullptr;
    const std::int64_t rows = std::min(kTileRows, source_.rows - row);
    const std::int64_t cols = std::min(kChunkCols, source_.cols - col);
    if (rows == kTileRows && cols == kChunkCols) return {data, row_bytes_, scales, row_scales_};
    return padded(data, scales, rows, cols);
  }

 private:
  static constexpr std::int64_t kRowRoom = kChunkCols * 4;
  static constexpr std::int64_t kScaleRoom = 4;

  ChunkView padded(const std::byte* data, const std::uint8_t* scales, std::int64_t rows,
                   std::int64_t cols) {
    data_.fill(std::byte{0});
    scales_.fill(0);
    for (std::int64_t r = 0; r < rows; ++r) {
      std::memcpy(data_.data() + r * kRowRoom, data + r * row_bytes_,
                  static_cast<std::size_t>(element_bytes(source_.scheme, cols)));
      if (!has_scales_) continue;
      std::memcpy(scales_.data() + r * kScaleRoom, scales + r * row_scales_,
                  static_cast<std::size_t>(cols / group_));
    }
    return {data_.data(), kRowRoom, scales_.data(), kScaleRoom};
  }

  const ops::MatrixSource& source_;
  bool has_scales_;
  std::int64_t group_;
  std::int64_t row_bytes_;
  std::int64_t row_scales_;
  std::array<std::byte, kTileRows * kRowRoom> data_{};
  std::array<std::uint8_t, kTileRows * kScaleRoom> scales_{};
};

/// MatrixPart::fits_bf16 of a source.
bool all_fit_bf16(const ops::MatrixSource& source) {
  if (source.scheme == QuantScheme::kF32) return false;
  if (!ops::has_scales(source.scheme)) return true;
  const std::int64_t group = ops::group_columns(source.scheme);
  const std::int64_t num_groups = source.rows * source.cols / group;
  const std::span<const std::uint8_t> scales(source.scales, static_cast<std::size_t>(num_groups));
  if (source.scheme == QuantScheme::kNvfp4) {
    return std::ranges::all_of(scales,
                               [](std::uint8_t s) { return fits_bf16(QuantScheme::kNvfp4, s); });
  }
  const auto* elements = static_cast<const std::uint8_t*>(source.data);
  for (const std::uint8_t scale : scales) {
    std::uint8_t highest = 0;  // a fixed count of bytes: one or two vector instructions
    for (int i = 0; i < kMxfp8Group; ++i) {
      highest = std::max<std::uint8_t>(highest, elements[i] & 0x7FU);
    }
    elements += kMxfp8Group;
    if (highest == kE4m3NaN || scale == kE8m0NaN) return false;
    if (highest != 0 && !fits_bf16(source.scheme, scale)) return false;
  }
  return true;
}

void upload(const ops::MatrixSource& source, const MatrixPart& part, std::byte* target,
            const Context& context) {
  Staging& staging = Staging::of_this_thread();
  staging.start(target, context);
  SourceReader reader(source);
  for (std::int64_t tile = 0; tile < part.num_tiles; ++tile) {
    for (std::int64_t chunk = 0; chunk < part.num_chunks; ++chunk) {
      pack_chunk(source.scheme, reader.chunk(tile, chunk), staging.next(chunk_bytes(part.scheme)));
    }
  }
  staging.flush();
}

}  // namespace

std::unique_ptr<ops::PackedMatrix> pack(Context& context,
                                        std::span<const ops::MatrixSource> stacked) {
  ops::check_sources(stacked);
  check(cudaSetDevice(context.device()), "cudaSetDevice");
  std::vector<MatrixPart> parts;
  std::int64_t rows = 0;
  std::int64_t num_bytes = 0;
  for (const ops::MatrixSource& source : stacked) {
    parts.push_back(
        {.scheme = source.scheme,
         .first_row = rows,
         .rows = source.rows,
         .num_tiles = (source.rows + kTileRows - 1) / kTileRows,
         .num_chunks = (source.cols + kChunkCols - 1) / kChunkCols,
         .data = nullptr,
         .matrix_scale = source.scheme == QuantScheme::kNvfp4 ? source.matrix_scale : 1.0F,
         .fits_bf16 = all_fit_bf16(source)});
    rows += source.rows;
    num_bytes += part_bytes(parts.back());
  }
  ops::Array<std::byte> data(context.memory(), num_bytes, "weights");
  std::byte* target = data.data();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    parts[i].data = target;
    upload(stacked[i], parts[i], target, context);
    target += part_bytes(parts[i]);
  }
  return std::make_unique<CudaMatrix>(rows, stacked.front().cols, std::move(parts),
                                      std::move(data));
}

}  // namespace winnow::cuda
