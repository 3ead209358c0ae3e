#include "formats/cache_row.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/machine.h"
#include "base/random.h"
#include "formats/bf16.h"
#include "formats/cache_codec.h"
#include "formats/e4m3.h"

namespace winnow {
namespace {

std::vector<int> layers_from(int first, int count) {
  std::vector<int> layers(static_cast<std::size_t>(count));
  std::iota(layers.begin(), layers.end(), first);
  return layers;
}

CacheRowShape m31_at_tp4() {
  return {.num_layers = 60,
          .index_layers = layers_from(0, 60),
          .num_kv_heads = 1,
          .head_dim = 128,
          .index_head_dim = 128,
          .block_tokens = 128,
          .kv_dtype = CacheDType::kNvfp4,
          .index_dtype = CacheDType::kNvfp4,
          .drafter = CacheRowShape::Drafter{
              .num_layers = 5, .num_kv_heads = 1, .head_dim = 128, .dtype = CacheDType::kFp8}};
}

CacheRowShape small_shape() {
  return {.num_layers = 3,
          .index_layers = {1, 2},
          .num_kv_heads = 2,
          .head_dim = 32,
          .index_head_dim = 32,
          .block_tokens = 16,
          .kv_dtype = CacheDType::kNvfp4,
          .index_dtype = CacheDType::kBF16,
          .drafter = CacheRowShape::Drafter{
              .num_layers = 2, .num_kv_heads = 2, .head_dim = 16, .dtype = CacheDType::kFp8}};
}

// spec/model.md section 5: the published row of M3.1 at TP4, and M3's bf16 page.
TEST(CacheRow, PublishedRowSizes) {
  EXPECT_EQ(CacheRowLayout(m31_at_tp4()).row_bytes(), 1'822'720);
  CacheRowShape m3 = m31_at_tp4();
  m3.drafter.reset();
  m3.index_layers = layers_from(3, 57);
  m3.kv_dtype = m3.index_dtype = CacheDType::kBF16;
  EXPECT_EQ(CacheRowLayout(m3).row_bytes(), 5'799'936);
  EXPECT_EQ(CacheRowLayout(m3).bytes_per_token(), 45'312);

  CacheRowShape m31 = m31_at_tp4();
  m31.drafter.reset();
  m31.num_kv_heads = 4;
  EXPECT_EQ(CacheRowLayout(m31).bytes_per_token(), 38'880);
}

TEST(CacheRow, PlanesAreAlignedDisjointAndFillTheRow) {
  for (const CacheRowShape& shape : {m31_at_tp4(), small_shape()}) {
    const CacheRowLayout layout(shape);
    std::vector<std::pair<std::int64_t, std::int64_t>> parts;
    const auto add = [&](const CachePlane& plane) {
      parts.emplace_back(plane.data_offset, plane.data_stride * shape.block_tokens);
      if (plane.scale_stride > 0) {
        parts.emplace_back(plane.scale_offset, plane.scale_stride * shape.block_tokens);
      }
    };
    for (int layer = 0; layer < shape.num_layers; ++layer) {
      for (int head = 0; head < shape.num_kv_heads; ++head) {
        add(layout.k(layer, head));
        add(layout.v(layer, head));
      }
      if (layout.has_index(layer)) add(layout.index_k(layer));
    }
    for (int layer = 0; layer < shape.drafter->num_layers; ++layer) {
      for (int head = 0; head < shape.drafter->num_kv_heads; ++head) {
        add(layout.drafter_k(layer, head));
        add(layout.drafter_v(layer, head));
      }
    }
    std::sort(parts.begin(), parts.end());
    std::int64_t end = 0;
    for (const auto& [offset, size] : parts) {
      EXPECT_EQ(offset % 128, 0);
      EXPECT_EQ(offset, (end + 127) / 128 * 128);
      end = offset + size;
    }
    EXPECT_EQ((end + 127) / 128 * 128, layout.row_bytes());
  }
}

TEST(CacheRow, ATensorParallelRanksHeadsAreOneContiguousRange) {
  CacheRowShape shape = small_shape();
  const CacheRowLayout whole(shape);
  shape.num_kv_heads = 1;
  const CacheRowLayout rank(shape);
  for (int head = 0; head < 2; ++head) {
    for (int layer = 0; layer < 3; ++layer) {
      EXPECT_EQ(whole.k(layer, head).data_offset,
                head * whole.head_bytes() + rank.k(layer, 0).data_offset);
      EXPECT_EQ(whole.v(layer, head).scale_offset,
                head * whole.head_bytes() + rank.v(layer, 0).scale_offset);
    }
  }
  EXPECT_FALSE(whole.has_index(0));
  EXPECT_GE(whole.index_k(1).data_offset, 2 * whole.head_bytes());
}

// cases.md B3: sizes and offsets beyond 32 bits.
TEST(CacheRow, OffsetsPass32Bits) {
  CacheRowShape shape = m31_at_tp4();
  shape.num_layers = 4000;
  shape.num_kv_heads = 64;
  shape.kv_dtype = CacheDType::kF32;
  const CacheRowLayout layout(shape);
  const CachePlane last = layout.v(3999, 63);
  EXPECT_EQ(layout.head_bytes(), std::int64_t{4000} * 2 * 128 * 512);
  EXPECT_GT(last.data_offset, std::int64_t{1} << 32);
  EXPECT_EQ(last.data_offset, 64 * layout.head_bytes() - 128 * 512);
}

TEST(CacheRow, RefusesImpossibleShapes) {
  CacheRowShape shape = small_shape();
  shape.head_dim = 24;
  EXPECT_THROW(CacheRowLayout{shape}, Error);
  shape = small_shape();
  shape.index_layers = {2, 1};
  EXPECT_THROW(CacheRowLayout{shape}, Error);
  shape = small_shape();
  shape.index_layers = {3};
  EXPECT_THROW(CacheRowLayout{shape}, Error);
  shape = small_shape();
  shape.block_tokens = 0;
  EXPECT_THROW(CacheRowLayout{shape}, Error);
}

TEST(CacheDType, ParsesTheFlagsSpellings) {
  for (const CacheDType dtype :
       {CacheDType::kF32, CacheDType::kBF16, CacheDType::kFp8, CacheDType::kNvfp4}) {
    EXPECT_EQ(parse_cache_dtype(cache_dtype_name(dtype)), dtype);
  }
  EXPECT_EQ(parse_cache_dtype("bfloat16"), CacheDType::kBF16);
  EXPECT_EQ(parse_cache_dtype("fp8_e4m3"), CacheDType::kFp8);
  EXPECT_EQ(parse_cache_dtype("float32"), CacheDType::kF32);
  try {
    parse_cache_dtype("int4");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.text(),
                testing::AllOf(testing::HasSubstr("--kv-cache-dtype"), testing::HasSubstr("int4"),
                               testing::HasSubstr("nvfp4"), testing::HasSubstr("bf16")));
  }
  try {
    parse_cache_dtype("fp8_e5m2");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.text(), testing::HasSubstr("E4M3"));
  }
}

TEST(CacheCodec, EachDTypeReadsBackWhatItsFormatSays) {
  const BulkCodecs& codecs = bulk_codecs(CpuIsa::kPortable);
  constexpr int kDim = 64;
  std::vector<float> x(kDim);
  for (std::uint32_t i = 0; i < kDim; ++i) {
    x[i] = static_cast<float>(static_cast<std::int32_t>(philox4x32(1, {i, 0, 0, 0})[0])) * 0x1p-30F;
  }
  std::vector<std::byte> data(4 * kDim), scales(kDim);
  std::vector<float> exact(kDim), rounded(kDim);
  for (const CacheDType dtype :
       {CacheDType::kF32, CacheDType::kBF16, CacheDType::kFp8, CacheDType::kNvfp4}) {
    encode_cache_vector(dtype, x, data.data(), scales.data(), codecs);
    decode_cache_vector(dtype, DequantMode::kExact, data.data(), scales.data(), exact, codecs);
    decode_cache_vector(dtype, DequantMode::kE4M3, data.data(), scales.data(), rounded, codecs);
    for (std::size_t i = 0; i < kDim; ++i) {
      switch (dtype) {
        case CacheDType::kF32:
          EXPECT_EQ(exact[i], x[i]);
          EXPECT_EQ(rounded[i], x[i]);
          break;
        case CacheDType::kBF16:
          EXPECT_EQ(exact[i], round_to_bf16(x[i]));
          EXPECT_EQ(rounded[i], exact[i]);
          break;
        case CacheDType::kFp8:
          EXPECT_EQ(exact[i], decode_e4m3(encode_e4m3(x[i])));
          EXPECT_EQ(rounded[i], exact[i]);
          break;
        case CacheDType::kNvfp4:
          EXPECT_EQ(rounded[i], decode_e4m3(encode_e4m3(exact[i])));
          EXPECT_NEAR(exact[i], x[i], 0.6);
          break;
      }
    }
  }
}

TEST(CacheCodec, ModeNames) {
  EXPECT_EQ(parse_dequant_mode("e4m3"), DequantMode::kE4M3);
  EXPECT_EQ(parse_dequant_mode("exact"), DequantMode::kExact);
  EXPECT_THROW(parse_dequant_mode("fast"), Error);
}

}  // namespace
}  // namespace winnow
