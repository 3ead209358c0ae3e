#include "ops/embed/embed.h"

#include <gtest/gtest.h>

#include "formats/bf16.h"
#include "ops/testing/backends.h"
#include "ops/testing/compare_bits.h"
#include "ops/testing/random_inputs.h"

namespace winnow::ops {
namespace {

TEST(Embed, GathersRowsOfBothTableDtypes) {
  constexpr std::int64_t kVocab = 37;
  testing::for_each_backend([&](const Backend& backend, const OpContext& context) {
    for (const std::int64_t hidden : {1, 15, 16, 33, 256}) {
      testing::RandomInputs random(static_cast<std::uint64_t>(hidden));
      SCOPED_TRACE(random.describe());
      std::vector<std::uint16_t> table_bf16;
      std::vector<float> table_f32;
      for (const float x : random.normals(kVocab * hidden)) {
        table_bf16.push_back(encode_bf16(x));
        table_f32.push_back(decode_bf16(table_bf16.back()));
      }
      std::vector<std::int32_t> tokens{0, kVocab - 1};
      for (int i = 0; i < 65; ++i)
        tokens.push_back(static_cast<std::int32_t>(random.below(kVocab)));
      const auto num_tokens = static_cast<std::int64_t>(tokens.size());
      std::vector<float> expected;
      for (const std::int32_t token : tokens) {
        const auto row = table_f32.begin() + token * hidden;
        expected.insert(expected.end(), row, row + hidden);
      }
      for (const bool is_f32 : {false, true}) {
        std::vector<float> out = testing::poisoned(num_tokens * hidden);
        const void* const table = is_f32 ? static_cast<const void*>(table_f32.data())
                                         : static_cast<const void*>(table_bf16.data());
        backend.embed(context, {.tokens = tokens.data(),
                                .num_tokens = num_tokens,
                                .table = table,
                                .table_scheme = is_f32 ? QuantScheme::kF32 : QuantScheme::kBF16,
                                .hidden = hidden,
                                .out = out.data()});
        ASSERT_TRUE(testing::bits_equal(expected, out, {num_tokens, hidden}));
      }
    }
  });
}

}  // namespace
}  // namespace winnow::ops
