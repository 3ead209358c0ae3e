// `linear` on the CPU: which thread multiplies which panels by which rows. The kernels are in
// cpu_kernel.cpp; nothing here can change a bit of the result.
#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>

#include "ops/cost_shares.h"
#include "ops/cpu_ops.h"
#include "ops/linear/cpu_kernel.h"
#include "ops/linear/cpu_linear.h"
#include "ops/run_tasks.h"

namespace winnow::cpu {
namespace {

using ops::kMaxTileRows;
using ops::kStripPanels;

constexpr std::int64_t kLane = 16;

/// Below this many multiply-adds (some 5 µs of one core) waking other threads costs more.
constexpr std::int64_t kParallelWork = std::int64_t{1} << 18;

/// Rows of one call that are multiplied together: bounds the scratch for their copy (25 MB at M3's
/// widest input), and is far beyond where the weights' bytes matter.
constexpr std::int64_t kChunkRows = 64 * kMaxTileRows;

/// Tiles of one unit of work: a strip of weights is read from the second-level cache for each.
constexpr std::int64_t kUnitTiles = 16;

constexpr std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

/// The inputs of one product, cut into tiles of kMaxTileRows and one of the rest.
struct Tiles {
  const float* x = nullptr;
  std::int64_t num_rows = 0;
  std::int64_t padded_columns = 0;

  std::int64_t count() const { return (num_rows + kMaxTileRows - 1) / kMaxTileRows; }
  int rows_of(std::int64_t tile) const {
    return static_cast<int>(std::min<std::int64_t>(kMaxTileRows, num_rows - tile * kMaxTileRows));
  }
  const float* at(std::int64_t tile) const { return x + tile * kMaxTileRows * padded_columns; }
};

/// The smallest kernel tile that holds `rows`.
int tile_rows(int rows) { return *std::ranges::lower_bound(ops::kTileRows, rows); }

/// [columns / 16][tile rows][16], zeros where there is no input.
void pack_tile(const ops::LinearParams& params, std::int64_t first_row, int num_rows, float* out) {
  const int rows = tile_rows(num_rows);
  const std::int64_t columns = params.w->cols();
  for (std::int64_t begin = 0; begin < columns; begin += kLane) {
    const std::int64_t count = std::min(kLane, columns - begin);
    for (int r = 0; r < rows; ++r, out += kLane) {
      if (r < num_rows && count == kLane) {
        std::memcpy(out, params.x + (first_row + r) * params.x_stride + begin,
                    kLane * sizeof(float));
        continue;
      }
      std::fill_n(out, kLane, 0.0F);
      if (r < num_rows) {
        std::copy_n(params.x + (first_row + r) * params.x_stride + begin, count, out);
      }
    }
  }
}

/// One strip (or less) of one segment against some tiles.
struct Unit {
  const ops::LinearParams* params = nullptr;
  const Tiles* tiles = nullptr;
  const Segment* segment = nullptr;
  std::int64_t first_panel = 0;
  std::int64_t last_panel = 0;
  std::int64_t first_tile = 0;
  std::int64_t last_tile = 0;
  std::int64_t cost = 0;
};

/// In multiply-adds; a panel that is read for few rows costs its bytes, as if it had four.
std::int64_t cost_of(const Unit& unit) {
  const std::int64_t rows = std::min(unit.tiles->num_rows, unit.last_tile * kMaxTileRows) -
                            unit.first_tile * kMaxTileRows;
  return (unit.last_panel - unit.first_panel) * unit.params->w->cols() *
         std::max<std::int64_t>(rows, 4);
}

void run_unit(const Kernels& kernels, const Unit& unit) {
  const Segment& segment = *unit.segment;
  const ops::LinearParams& params = *unit.params;
  for (std::int64_t tile = unit.first_tile; tile < unit.last_tile; ++tile) {
    const int rows = unit.tiles->rows_of(tile);
    const std::int64_t first_row = tile * kMaxTileRows;
    kernels.table.linear->run[static_cast<std::size_t>(segment.scheme)](
        {.weights = segment.weights,
         .row_scales = segment.row_scales.data(),
         .num_columns = params.w->cols(),
         .num_outputs = segment.num_outputs,
         .first_panel = unit.first_panel,
         .last_panel = unit.last_panel,
         .x = unit.tiles->at(tile),
         .tile_rows = tile_rows(rows),
         .num_rows = rows,
         .y = params.y + first_row * params.y_stride + segment.first_output,
         .y_stride = params.y_stride,
         .accumulate = params.accumulate});
  }
}

/// Everything that one barrier covers, as units in a fixed order.
class Plan {
 public:
  Plan(const ops::OpContext& context, std::span<const ops::LinearParams> products)
      : context_(context),
        products_(products),
        tiles_(context.scratch->take_array<Tiles>(std::ssize(products))) {
    for (const ops::LinearParams& params : products) {
      work_ += params.num_rows * params.w->rows() * params.w->cols();
    }
    num_threads_ = work_ < kParallelWork ? 1 : context.pool->num_threads();
    pack_inputs();
    make_units();
  }

  void run(const Kernels& kernels) const {
    run_by_cost(
        *context_.pool, num_units_, num_threads_ == 1,
        [&](std::int64_t i) { return units_[i].cost; },
        [&](std::int64_t i, int) { run_unit(kernels, units_[i]); });
  }

 private:
  void pack_inputs() {
    for (std::size_t i = 0; i < products_.size(); ++i) {
      const ops::LinearParams& params = products_[i];
      Tiles& tiles = tiles_[i];
      tiles = {.x = params.x,
               .num_rows = params.num_rows,
               .padded_columns = round_up(params.w->cols(), kLane)};
      if (params.num_rows <= 1) continue;
      auto* const packed =
          context_.scratch->take_array<float>(tiles.count() * kMaxTileRows * tiles.padded_columns);
      const auto pack_one = [&](std::int64_t tile, int) {
        pack_tile(params, tile * kMaxTileRows, tiles.rows_of(tile),
                  packed + tile * kMaxTileRows * tiles.padded_columns);
      };
      ops::run_tasks(context_, tiles.count(), num_threads_ > 1 && tiles.count() >= 4, pack_one);
      tiles.x = packed;
    }
  }

  /// Whole strips where there are enough to share out evenly, otherwise fractions of them.
  std::int64_t panels_per_unit() const {
    std::int64_t strips = 0;
    for (const ops::LinearParams& params : products_) {
      const std::int64_t chunks =
          (params.num_rows + kUnitTiles * kMaxTileRows - 1) / (kUnitTiles * kMaxTileRows);
      strips += chunks * (params.w->rows() / (kStripPanels * ops::kPanelRows) + 1);
    }
    std::int64_t panels = kStripPanels;
    while (panels > 1 && num_threads_ > 1 && strips * (kStripPanels / panels) < 6 * num_threads_) {
      panels /= 2;
    }
    return panels;
  }

  template <typename Visit>
  void for_each_unit(std::int64_t step, const Visit& visit) const {
    for (std::size_t i = 0; i < products_.size(); ++i) {
      const Tiles& tiles = tiles_[i];
      for (const Segment& segment : static_cast<const Matrix*>(products_[i].w)->segments()) {
        for (std::int64_t panel = 0; panel < segment.num_panels; panel += step) {
          for (std::int64_t tile = 0; tile < tiles.count(); tile += kUnitTiles) {
            visit(Unit{.params = &products_[i],
                       .tiles = &tiles,
                       .segment = &segment,
                       .first_panel = panel,
                       .last_panel = std::min(segment.num_panels, panel + step),
                       .first_tile = tile,
                       .last_tile = std::min(tiles.count(), tile + kUnitTiles)});
          }
        }
      }
    }
  }

  void make_units() {
    const std::int64_t step = panels_per_unit();
    for_each_unit(step, [&](const Unit&) { ++num_units_; });
    units_ = context_.scratch->take_array<Unit>(num_units_);
    std::int64_t next = 0;
    for_each_unit(step, [&](const Unit& unit) {
      units_[next] = unit;
      units_[next].cost = cost_of(unit);
      ++next;
    });
  }

  const ops::OpContext& context_;
  std::span<const ops::LinearParams> products_;
  Tiles* tiles_;
  Unit* units_ = nullptr;
  std::int64_t num_units_ = 0;
  std::int64_t work_ = 0;
  int num_threads_ = 1;
};

}  // namespace

void multiply(const Kernels& kernels, const ops::OpContext& context,
              std::span<const ops::LinearParams> products) {
  Plan(context, products).run(kernels);
}

void linear(const Kernels& kernels, const ops::OpContext& context,
            const ops::LinearParams& params) {
  for (std::int64_t first = 0; first < params.num_rows; first += kChunkRows) {
    ops::LinearParams chunk = params;
    chunk.x = params.x + first * params.x_stride;
    chunk.y = params.y + first * params.y_stride;
    chunk.num_rows = std::min(kChunkRows, params.num_rows - first);
    multiply(kernels, context, std::span(&chunk, 1));
    context.scratch->reset();
  }
}

}  // namespace winnow::cpu
