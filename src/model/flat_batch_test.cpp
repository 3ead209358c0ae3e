#include "model/flat_batch.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace winnow {
namespace {

constexpr BatchLimits kLimits{.max_num_tokens = 8,
                              .vocab_size = 100,
                              .block_tokens = 4,
                              .num_blocks = 10,
                              .max_positions = 32};

struct Good {
  Good() {
    batch.tokens = {5, 6, 7, 8};
    batch.sequences = {{.first_token = 0, .num_tokens = 3, .first_position = 6, .block_table = a},
                       {.first_token = 0, .num_tokens = 0, .first_position = 0, .block_table = {}},
                       {.first_token = 3, .num_tokens = 1, .first_position = 0, .block_table = b}};
    batch.logit_rows = {2, 3};
  }
  std::vector<BlockId> a{{9}, {0}, {3}};
  std::vector<BlockId> b{{1}};
  Batch batch;
};

TEST(FlatBatch, FlattensSequencesAndSkipsEmptyOnes) {
  const Good good;
  FlatBatch flat;
  flat.assign(good.batch, kLimits);
  const ops::BatchView view = flat.view();
  EXPECT_EQ(std::vector(view.positions, view.positions + view.num_tokens),
            (std::vector<std::int32_t>{6, 7, 8, 0}));
  EXPECT_EQ(std::vector(view.sequence_of, view.sequence_of + view.num_tokens),
            (std::vector<std::int32_t>{0, 0, 0, 2}));
  EXPECT_EQ(view.sequences[0].block_table[0], 9);
  EXPECT_EQ(view.sequences[2].first_token, 3);
  EXPECT_EQ(flat.num_positions(), 9);
}

TEST(FlatBatch, KeepsFromTheFirstToTheLastRowOfLogitsOfEachSequence) {
  Good good;
  good.batch.tokens = {5, 6, 7, 8, 9, 10};
  good.batch.sequences[2].num_tokens = 3;
  good.batch.logit_rows = {1, 3, 5};
  FlatBatch flat;
  flat.assign(good.batch, kLimits);
  flat.keep_logit_rows();
  const ops::BatchView view = flat.view();
  const auto list = [](const auto& span) {
    return std::vector<std::int32_t>(span.begin(), span.end());
  };
  EXPECT_EQ(list(flat.kept_tokens()), (std::vector<std::int32_t>{1, 3, 4, 5}));
  EXPECT_EQ(list(flat.logit_rows()), (std::vector<std::int32_t>{0, 1, 3}));
  EXPECT_EQ(std::vector(view.positions, view.positions + view.num_tokens),
            (std::vector<std::int32_t>{7, 0, 1, 2}));
  EXPECT_EQ(std::vector(view.sequence_of, view.sequence_of + view.num_tokens),
            (std::vector<std::int32_t>{0, 2, 2, 2}));
  EXPECT_EQ(view.sequences[0].first_position, 7);
  EXPECT_EQ(view.sequences[0].num_tokens, 1);
  EXPECT_EQ(view.sequences[1].num_tokens, 0);
  EXPECT_EQ(view.sequences[2].first_token, 1);

  good.batch.logit_rows = {};
  flat.assign(good.batch, kLimits);
  flat.keep_logit_rows();
  EXPECT_EQ(flat.view().num_tokens, 0);
}

template <typename Change>
void expect_refused(const Change& change) {
  Good good;
  change(good);
  FlatBatch flat;
  EXPECT_THROW(flat.assign(good.batch, kLimits), Error);
}

TEST(FlatBatch, RefusesWhatDoesNotFit) {
  expect_refused([](Good& g) { g.batch.tokens[0] = 100; });
  expect_refused([](Good& g) { g.batch.tokens[1] = -1; });
  expect_refused([](Good& g) { g.batch.tokens.resize(9); });
  expect_refused([](Good& g) { g.batch.tokens.push_back(1); });
  expect_refused([](Good& g) { g.batch.sequences[2].first_token = 2; });
  expect_refused([](Good& g) { g.batch.sequences[0].first_position = -1; });
  expect_refused([](Good& g) { g.batch.sequences[0].first_position = 10; });  // a fourth block
  expect_refused([](Good& g) { g.batch.sequences[0].first_position = 31; });  // beyond 32 positions
  expect_refused([](Good& g) { g.a[1] = {10}; });
  expect_refused([](Good& g) { g.a[0] = {-1}; });
  expect_refused([](Good& g) { g.batch.logit_rows = {4}; });
  expect_refused([](Good& g) { g.batch.logit_rows = {3, 2}; });
  expect_refused([](Good& g) { g.batch.logit_rows = {1, 1}; });
}

}  // namespace
}  // namespace winnow
