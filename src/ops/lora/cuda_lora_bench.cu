// What an adapter of rank 16 adds to M3's projections. `check` compares with sums in double
// precision and, bit by bit, with each row alone, and exits with 1 at the first fault; `time`
// prints times beside the floor: the bytes of A and B once.
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "formats/bf16.h"
#include "ops/cuda/bench.cuh"
#include "ops/cuda/context.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/lora/cuda_table.h"
#include "ops/op_context.h"

namespace winnow::cuda::bench {
namespace {

constexpr std::int64_t kRank = 16;

struct Shape {
  const char* name;
  std::int64_t inputs;
  std::vector<std::int64_t> parts;  // rows of each B, one behind the other

  std::int64_t outputs() const {
    std::int64_t sum = 0;
    for (const std::int64_t rows : parts) sum += rows;
    return sum;
  }
  std::int64_t ranks() const { return static_cast<std::int64_t>(parts.size()) * kRank; }
};

/// One adapter, and what its values are on the host.
class Adapter {
 public:
  Adapter(Context& context, const Shape& shape, std::uint64_t seed) {
    std::vector<std::vector<Bf16>> a;
    std::vector<ops::MatrixSource> stack;
    std::int64_t row = 0;
    for (const std::int64_t rows : shape.parts) {
      a.push_back(random(kRank * shape.inputs, ++seed * 1000));
      values_b_.push_back(random(rows * kRank, ++seed * 1000));
      stack.push_back(source(a.back(), kRank, shape.inputs));
      b_.push_back(pack(context, std::vector{source(values_b_.back(), rows, kRank)}));
      parts_.push_back({.b = b_.back().get(),
                        .first_rank = static_cast<std::int64_t>(parts_.size()) * kRank,
                        .first_row = row});
      row += rows;
    }
    for (std::size_t i = 0; i < a.size(); ++i) {
      values_a_.insert(values_a_.end(), a[i].begin(), a[i].end());
      stack[i].data = a[i].data();
    }
    a_ = pack(context, stack);
    scales_ = ops::Array<float>(context.memory(),
                                std::vector<float>(static_cast<std::size_t>(shape.ranks()), kScale),
                                "scales");
    site_ = {.a = a_.get(), .scales = scales_.data(), .parts = parts_};
    const ops::LoraSite* const sites[] = {&site_};
    table_ = bind_lora(context, sites);
    site_.table = table_.get();
  }

  const ops::LoraSite& site() const { return site_; }

  /// What is added for x.
  std::vector<double> delta(const Shape& shape, const float* x) const {
    std::vector<double> out;
    for (std::size_t p = 0; p < shape.parts.size(); ++p) {
      double u[kRank] = {};
      for (std::int64_t j = 0; j < kRank; ++j) {
        const Bf16* const row =
            values_a_.data() + (static_cast<std::int64_t>(p) * kRank + j) * shape.inputs;
        for (std::int64_t k = 0; k < shape.inputs; ++k) u[j] += double{x[k]} * decode_bf16(row[k]);
      }
      for (std::int64_t n = 0; n < shape.parts[p]; ++n) {
        double sum = 0;
        for (std::int64_t j = 0; j < kRank; ++j) {
          sum += u[j] * kScale * decode_bf16(values_b_[p][static_cast<std::size_t>(n * kRank + j)]);
        }
        out.push_back(sum);
      }
    }
    return out;
  }

 private:
  static constexpr float kScale = 2.0F;

  static std::vector<Bf16> random(std::int64_t count, std::uint64_t seed) {
    std::vector<Bf16> values(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = encode_bf16(random_normal(seed, i) * 0.02F);
    }
    return values;
  }
  static ops::MatrixSource source(const std::vector<Bf16>& values, std::int64_t rows,
                                  std::int64_t cols) {
    return {.scheme = QuantScheme::kBF16, .rows = rows, .cols = cols, .data = values.data()};
  }

  std::vector<Bf16> values_a_;
  std::vector<std::vector<Bf16>> values_b_;
  std::unique_ptr<ops::PackedMatrix> a_;
  std::vector<std::unique_ptr<ops::PackedMatrix>> b_;
  std::vector<ops::LoraPart> parts_;
  ops::Array<float> scales_;
  std::unique_ptr<ops::LoraTable> table_;
  ops::LoraSite site_;
};

class Bench {
 public:
  Bench(Context& context, const Shape& shape, std::int64_t num_adapters, std::int64_t num_rows)
      : context_(context), shape_(shape), num_rows_(num_rows) {
    for (std::int64_t i = 0; i < num_adapters; ++i) {
      adapters_.push_back(
          std::make_unique<Adapter>(context, shape, static_cast<std::uint64_t>(i) * 64));
      sites_.push_back(&adapters_.back()->site());
    }
    x_.resize(static_cast<std::size_t>(num_rows * shape.inputs));
    for (std::size_t i = 0; i < x_.size(); ++i) x_[i] = random_normal(7, i);
    device_x_ = to_device(x_);
    device_y_ = device_array<float>(num_rows * shape.outputs());
    context.memory()->finish();
  }
  ~Bench() {
    cudaFree(device_x_);
    cudaFree(device_y_);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  /// Adds to rows of zeros; `adapter_of` lies on the device.
  void run(const std::int32_t* adapter_of, std::span<const ops::LoraSite* const> sites,
           std::int64_t first, std::int64_t count) const {
    const ops::OpContext context{.cuda = &context_};
    exact::lora(context, {.rows = {.adapter_of = adapter_of + first, .adapters = sites},
                          .num_rows = count,
                          .x = device_x_ + first * shape_.inputs,
                          .x_stride = shape_.inputs,
                          .y = device_y_ + first * shape_.outputs(),
                          .y_stride = shape_.outputs()});
  }

  bool is_right() const {
    std::vector<std::int32_t> adapter_of(static_cast<std::size_t>(num_rows_));
    const auto count = static_cast<std::int32_t>(sites_.size());
    for (std::size_t i = 0; i < adapter_of.size(); ++i) {
      adapter_of[i] = static_cast<std::int32_t>(i / 3) % (count + 1) - 1;
    }
    const std::int32_t* const device = to_device(adapter_of);
    const std::vector<float> together = outputs([&] { run(device, sites_, 0, num_rows_); });
    const std::vector<float> alone = outputs([&] {
      for (std::int64_t row = 0; row < num_rows_; ++row) run(device, sites_, row, 1);
    });
    const std::int64_t width = shape_.outputs();
    for (std::int64_t row = 0; row < num_rows_; ++row) {
      const float* const y = together.data() + row * width;
      for (std::int64_t n = 0; n < width; ++n) {
        if (y[n] == alone[static_cast<std::size_t>(row * width + n)]) continue;
        std::printf("FAIL %s: row %d output %d is %.9g, alone %.9g\n", shape_.name,
                    static_cast<int>(row), static_cast<int>(n), static_cast<double>(y[n]),
                    static_cast<double>(alone[static_cast<std::size_t>(row * width + n)]));
        return false;
      }
      const std::int32_t adapter = adapter_of[static_cast<std::size_t>(row)];
      std::vector<double> expected(static_cast<std::size_t>(width));
      if (adapter >= 0) {
        expected = adapters_[static_cast<std::size_t>(adapter)]->delta(
            shape_, x_.data() + row * shape_.inputs);
      }
      const double error =
          adapter < 0 ? std::abs(double{y[0]}) : relative_error(y, expected.data(), width);
      if (!(error < 1e-5)) {
        std::printf("FAIL %s: row %d, error %.3g\n", shape_.name, static_cast<int>(row), error);
        return false;
      }
    }
    std::printf("%s: right\n", shape_.name);
    return true;
  }

  /// `spread`: every row has another adapter; else all have one.
  void time(bool spread) const {
    std::vector<std::int32_t> adapter_of(static_cast<std::size_t>(num_rows_));
    const auto count = static_cast<std::int64_t>(sites_.size());
    if (spread) {
      for (std::size_t i = 0; i < adapter_of.size(); ++i) {
        adapter_of[i] = static_cast<std::int32_t>(static_cast<std::int64_t>(i) % count);
      }
    }
    const std::int32_t* const device = to_device(adapter_of);
    const std::int64_t used = spread ? std::min(count, num_rows_) : 1;
    const double bytes = static_cast<double>(
        used * kRank *
        (static_cast<std::int64_t>(shape_.parts.size()) * shape_.inputs + 4 * shape_.outputs()) *
        2);
    std::vector<const ops::LoraSite*> turned = sites_;
    const double us = median_us(context_.stream(), 16, [&](int i) {
      std::rotate_copy(sites_.begin(), sites_.begin() + i % count, sites_.end(), turned.begin());
      run(device, turned, 0, num_rows_);
    });
    const std::string what = std::string(shape_.name) + ", " + std::to_string(num_rows_) +
                             " rows, adapters: " + std::to_string(used);
    report("lora", what.c_str(), nullptr, us, bytes, 0, bytes / kCopyBandwidth * 1e6);
  }

 private:
  template <typename Run>
  std::vector<float> outputs(const Run& run) const {
    const std::int64_t count = num_rows_ * shape_.outputs();
    require(cudaMemsetAsync(device_y_, 0, static_cast<std::size_t>(count) * sizeof(float),
                            context_.stream()),
            "memset");
    run();
    context_.memory()->finish();
    return to_host(device_y_, count);
  }

  Context& context_;
  const Shape& shape_;
  std::int64_t num_rows_;
  std::vector<std::unique_ptr<Adapter>> adapters_;
  std::vector<const ops::LoraSite*> sites_;
  std::vector<float> x_;
  float* device_x_ = nullptr;
  float* device_y_ = nullptr;
};

const Shape kShapes[] = {{"qkv 6144 to 9856", 6144, {8192, 512, 512, 512, 128}},
                         {"o_proj 8192 to 6144", 8192, {6144}},
                         {"expert gate_up 6144 to 6144", 6144, {3072, 3072}}};

int check_all(Context& context) {
  for (const Shape& shape : kShapes) {
    for (const std::int64_t rows : {7, 90}) {
      if (!Bench(context, shape, 3, rows).is_right()) return 1;
    }
  }
  std::printf("cuda_lora_bench: all right\n");
  return 0;
}

int time_all(Context& context) {
  for (const Shape& shape : kShapes) {
    for (const std::int64_t rows : {1, 8, 64, 2048}) {
      const Bench bench(context, shape, 64, rows);
      bench.time(false);
      if (rows == 8 || rows == 64) bench.time(true);
    }
  }
  std::printf("cuda_lora_bench: timed\n");
  return 0;
}

}  // namespace
}  // namespace winnow::cuda::bench

int main(int argc, char** argv) {
  using namespace winnow::cuda;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  Context context(0);
  const std::string verb = argc > 1 ? argv[1] : "";
  if (verb == "check") return bench::check_all(context);
  if (verb == "time") return bench::time_all(context);
  std::printf("usage: cuda_lora_bench check|time\n");
  return 2;
}
