// Weights × inputs, panels of sixteen outputs at a time (layout in cpu_kernel.h).
//
// Floor on Zen 5 at 4.2 GHz, one input row, NVFP4: 144 bytes carry 16 columns of 16 outputs and
// take 16 permutes, 16 shifts and 16 fused multiply-adds, each at two per cycle on ports of their
// own, so 8 to 12 cycles, 12 to 18 bytes per cycle: about twice what one core gets from memory.
// MXFP8 takes five operations per 16 bytes on four ports, 12.8 bytes per cycle. One row is thus
// bound by memory, and so are a few; from about a dozen rows on, multiply-adds are the bound (two
// vectors a cycle).
#include "ops/linear/cpu_kernel.h"

#include "ops/x86/vec.h"

namespace winnow::ops::WINNOW_ISA {
namespace {

/// How far ahead of its reader a strip is fetched, in bytes of one stream. Measured on Zen 5 with
/// NVFP4: 4 KiB gives 0.64 of the read bandwidth, 8 KiB 0.79, 12 to 24 KiB 0.94.
constexpr int64_t kPrefetchBytes = 16384;

constexpr int kGroupRows = 16;  // columns of an input tile that lie together

enum Scheme { kF32, kBF16, kMxfp8, kNvfp4 };  // QuantScheme, checked in cpu.cpp

/// How a scheme's words become weights: next() decodes kStepColumns columns of a word and steps
/// past them.
template <Scheme scheme>
struct Decoder;

template <>
struct Decoder<kNvfp4> {
  static constexpr int kWordColumns = 8;
  static constexpr int kGroupColumns = 16;
  static constexpr int kStepColumns = 1;
  E2m1Table table = e2m1_table();
  [[gnu::always_inline]] void next(Words& words, Vec (&w)[kStepColumns]) const {
    w[0] = e2m1_low_nibble(table, words);
    words = shift_right<4>(words);
  }
  [[gnu::always_inline]] static Vec scales(const uint8_t* p) { return e4m3_scales(p); }
};

template <>
struct Decoder<kMxfp8> {
  static constexpr int kWordColumns = 4;
  static constexpr int kGroupColumns = 32;
  static constexpr int kStepColumns = 4;
  E4m3Tables tables = e4m3_tables();
  [[gnu::always_inline]] void next(Words& words, Vec (&w)[kStepColumns]) const {
    e4m3_columns(tables, words, w);
  }
  [[gnu::always_inline]] static Vec scales(const uint8_t* p) { return e8m0_scales(p); }
};

template <>
struct Decoder<kBF16> {
  static constexpr int kWordColumns = 2;
  static constexpr int kGroupColumns = 32;
  static constexpr int kStepColumns = 2;
  [[gnu::always_inline]] void next(Words& words, Vec (&w)[kStepColumns]) const {
    w[0] = bf16_low(words);
    w[1] = bf16_high(words);
  }
};

template <>
struct Decoder<kF32> {
  static constexpr int kWordColumns = 1;
  static constexpr int kGroupColumns = 32;
  static constexpr int kStepColumns = 1;
  [[gnu::always_inline]] void next(Words& words, Vec (&w)[kStepColumns]) const {
    w[0] = from_bits(words);
  }
};

/// Sums of R rows and P panels.
template <int R, int P>
struct Sums {
  Vec v[R][P];
  [[gnu::always_inline]] void clear() {
    WINNOW_UNROLL
    for (int r = 0; r < R; ++r) {
      WINNOW_UNROLL
      for (int p = 0; p < P; ++p) v[r][p] = zero();
    }
  }
};

/// sums of panel p += x · w for one column of it.
template <int R, int P>
[[gnu::always_inline]] inline void add_column(const float* x, int p, Vec w, Sums<R, P>& sums) {
  WINNOW_UNROLL
  for (int r = 0; r < R; ++r) sums.v[r][p] = fma(broadcast(x[r * kGroupRows]), w, sums.v[r][p]);
}

/// The columns of one word of each panel, from x on; only `count` of them exist.
template <Scheme scheme, int R, int P>
[[gnu::always_inline]] inline void add_words(const Decoder<scheme>& decoder, const float* x,
                                             int64_t count, Words (&words)[P], Sums<R, P>& sums) {
  constexpr int kColumns = Decoder<scheme>::kWordColumns;
  constexpr int kStep = Decoder<scheme>::kStepColumns;
  WINNOW_UNROLL
  for (int j = 0; j < kColumns; j += kStep) {
    WINNOW_UNROLL
    for (int p = 0; p < P; ++p) {
      Vec w[kStep];
      decoder.next(words[p], w);
      WINNOW_UNROLL
      for (int i = 0; i < kStep; ++i) {
        if (j + i < count) add_column(x + j + i, p, w[i], sums);
      }
    }
  }
}

/// P panels of one strip against a tile.
template <Scheme scheme, int R, int P>
class Multiplier {
  using Code = Decoder<scheme>;
  static constexpr PanelBlock kBlock = kPanelBlocks[scheme];
  static constexpr int kGroup = Code::kGroupColumns;
  static constexpr int kWord = Code::kWordColumns;

 public:
  /// Panels [first, first + P) of the strip of `strip_panels` panels that starts at `strip`.
  [[gnu::always_inline]] void run(const uint8_t* strip, int64_t strip_panels, int64_t first,
                                  int64_t num_columns, const float* x) {
    // A full strip taken at once: addresses become constants.
    const int64_t step = P == kStripPanels ? int64_t{kStripPanels} * 64 : strip_panels * 64;
    total_.clear();
    for (; num_columns >= kBlock.columns; num_columns -= kBlock.columns) {
      constexpr int kBlockWords = static_cast<int>(kBlock.columns) / kWord;
      for (int g = 0; g < kBlock.columns / kGroup; ++g) {
        // A local: as a member it would be written back to memory column by column.
        Sums<R, P> group;
        add_group(strip + first * 64 + g * kGroupWords * step, step, x, group);
        const uint8_t* const scales = strip + first * 64 + kBlockWords * step;
        if (kBlock.has_scales && R <= 4 && g == 0) prefetch(scales);
        join(scales + g * kPanelRows, group);
        x += kGroup * R;
      }
      strip += (kBlockWords + (kBlock.has_scales ? 1 : 0)) * step;
    }
    if (num_columns > 0) add_short_block(strip + first * 64, step, num_columns, x);
  }

  [[gnu::always_inline]] Vec total(int r, int p) const { return total_.v[r][p]; }

 private:
  static constexpr int kGroupWords = kGroup / kWord;

  /// Row 0 of column `column` of a tile.
  [[gnu::always_inline]] static const float* input(const float* x, int64_t column) {
    return x + column / kGroupRows * kGroupRows * R + column % kGroupRows;
  }

  /// The 64 bytes of each of the P panels that lie kPrefetchBytes behind these.
  [[gnu::always_inline]] static void prefetch(const uint8_t* p) {
    WINNOW_UNROLL
    for (int i = 0; i < P; ++i) __builtin_prefetch(p + i * 64 + kPrefetchBytes);
  }

  /// Adds the group's sums, times its scales, to the totals.
  [[gnu::always_inline]] void join(const uint8_t* scales, const Sums<R, P>& group) {
    WINNOW_UNROLL
    for (int p = 0; p < P; ++p) {
      if constexpr (kBlock.has_scales) {
        const Vec scale = Code::scales(scales + p * 64);
        WINNOW_UNROLL
        for (int r = 0; r < R; ++r) {
          total_.v[r][p] = fma(scale, group.v[r][p], total_.v[r][p]);
        }
      } else {
        WINNOW_UNROLL
        for (int r = 0; r < R; ++r) {
          total_.v[r][p] = add(total_.v[r][p], group.v[r][p]);
        }
      }
    }
  }

  /// Words of a column lie side by side, the next column's `step` bytes on.
  [[gnu::always_inline]] void add_group(const uint8_t* codes, int64_t step, const float* x,
                                        Sums<R, P>& group) {
    group.clear();
    for (int i = 0; i < kGroupWords; ++i, codes += step) {
      Words words[P];
      WINNOW_UNROLL
      for (int p = 0; p < P; ++p) words[p] = load_words(codes + p * 64);
      if constexpr (R <= 4) prefetch(codes);
      add_words<scheme, R, P>(decoder_, input(x, i * kWord), kWord, words, group);
    }
  }

  /// Fewer columns than a block has; the last group of F32 and BF16 may be short, too.
  [[gnu::noinline]] void add_short_block(const uint8_t* codes, int64_t step, int64_t num_columns,
                                         const float* x) {
    const uint8_t* const scales = codes + (num_columns + kWord - 1) / kWord * step;
    for (int64_t begin = 0; begin < num_columns; begin += kGroup) {
      const int64_t end = begin + kGroup < num_columns ? begin + kGroup : num_columns;
      Sums<R, P> group;
      group.clear();
      for (int64_t column = begin; column < end; column += kWord, codes += step) {
        Words words[P];
        WINNOW_UNROLL
        for (int p = 0; p < P; ++p) words[p] = load_words(codes + p * 64);
        add_words<scheme, R, P>(decoder_, input(x, column), end - column, words, group);
      }
      join(scales + begin / kGroup * kPanelRows, group);
    }
  }

  Decoder<scheme> decoder_;
  Sums<R, P> total_;
};

/// y (+)= total · row scale for the rows and outputs that exist.
template <Scheme scheme, int R, int P>
[[gnu::always_inline]] inline void write(const LinearTask& task, int64_t panel,
                                         const Multiplier<scheme, R, P>& multiplier) {
  WINNOW_UNROLL
  for (int p = 0; p < P; ++p) {
    const int64_t output = (panel + p) * kPanelRows;
    const int64_t left = task.num_outputs - output;
    const Vec scale = load(task.row_scales + output);
    WINNOW_UNROLL
    for (int r = 0; r < R; ++r) {
      if (r >= task.num_rows) break;
      float* const y = task.y + r * task.y_stride + output;
      Vec value = mul(multiplier.total(r, p), scale);
      if (left >= kPanelRows) {
        if (task.accumulate) value = add(load(y), value);
        store(y, value);
      } else {
        if (task.accumulate) value = add(load_first(y, left), value);
        store_first(y, left, value);
      }
    }
  }
}

template <Scheme scheme, int R, int P>
[[gnu::noinline]] void run_panels(const LinearTask& task, const uint8_t* strip,
                                  int64_t strip_panels, int64_t panel) {
  Multiplier<scheme, R, P> multiplier;
  multiplier.run(strip, strip_panels, panel % kStripPanels, task.num_columns, task.x);
  write(task, panel, multiplier);
}

/// Splits [first, last) into runs within one strip, and those into at most P panels.
template <Scheme scheme, int R, int P>
void run_tile(const LinearTask& task) {
  constexpr PanelBlock kBlock = kPanelBlocks[scheme];
  const int64_t whole = task.num_columns / kBlock.columns;
  const int64_t rest = task.num_columns % kBlock.columns;
  const int64_t panel_bytes =
      whole * kBlock.bytes(kBlock.columns) + (rest > 0 ? kBlock.bytes(rest) : 0);
  const int64_t num_panels = (task.num_outputs + kPanelRows - 1) / kPanelRows;
  for (int64_t panel = task.first_panel; panel < task.last_panel;) {
    const int64_t strip = panel / kStripPanels * kStripPanels;
    const int64_t strip_panels =
        num_panels - strip < kStripPanels ? num_panels - strip : kStripPanels;
    const int64_t strip_end =
        task.last_panel - strip < strip_panels ? task.last_panel : strip + strip_panels;
    const uint8_t* const base = task.weights + strip * panel_bytes;
    for (; panel + P <= strip_end; panel += P) {
      run_panels<scheme, R, P>(task, base, strip_panels, panel);
    }
    if constexpr (P > 1) {
      for (; panel < strip_end; ++panel) {
        run_panels<scheme, R, 1>(task, base, strip_panels, panel);
      }
    }
  }
}

/// Panels side by side for R rows: enough independent sums (eight hide the latency of a fused
/// multiply-add at two per cycle), few enough that sums, words and table stay in registers. Twelve
/// rows by two panels with weights decoded into a buffer first were slower (0.79 and 0.57 of the
/// multiply-add peak for NVFP4 and MXFP8, against 0.87 and 0.91): decoding in between costs
/// nothing, as it runs on other ports, while a decoding phase is longer than the processor looks
/// ahead.
constexpr int panels_for(int rows) {
  if (kRegisters < 32) return rows == 1 ? 2 : 1;
  return rows == 1 ? 8 : rows <= 3 ? 4 : rows <= 6 ? 2 : 1;
}

template <Scheme scheme>
void run(const LinearTask& task) {
  switch (task.tile_rows) {
    case 1:
      return run_tile<scheme, 1, panels_for(1)>(task);
    case 2:
      return run_tile<scheme, 2, panels_for(2)>(task);
    case 3:
      return run_tile<scheme, 3, panels_for(3)>(task);
    case 4:
      return run_tile<scheme, 4, panels_for(4)>(task);
    case 6:
      return run_tile<scheme, 6, panels_for(6)>(task);
    case 8:
      return run_tile<scheme, 8, panels_for(8)>(task);
    default:
      return run_tile<scheme, 12, panels_for(12)>(task);
  }
}

}  // namespace

extern const LinearKernels kLinearKernels = {{run<kF32>, run<kBF16>, run<kMxfp8>, run<kNvfp4>}};

}  // namespace winnow::ops::WINNOW_ISA
