// Row codecs over 64 MiB of floats, far beyond the caches, on one thread. GB/s counts bytes read
// plus bytes written; `of_memcpy` is that over what memcpy of the same buffers reaches in this run:
// 1 means that the codec costs nothing beyond moving its bytes.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <functional>
#include <vector>

#include "base/machine.h"
#include "base/memory.h"
#include "base/random.h"
#include "formats/bulk_codecs.h"

namespace winnow {
namespace {

constexpr std::int64_t kValues = std::int64_t{16} << 20;

// Page-aligned memory, as weights and cache rows have.
template <typename T>
class Array {
 public:
  explicit Array(std::int64_t size)
      : buffer_(size * static_cast<std::int64_t>(sizeof(T)), "bench") {}
  T* data() { return buffer_.as<T>(); }

 private:
  Buffer buffer_;
};

struct Buffers {
  Array<float> floats{kValues};
  Array<float> floats_out{kValues};
  Array<std::uint16_t> halves{kValues};
  Array<std::uint8_t> bytes{kValues};
  Array<std::uint8_t> bytes_out{kValues};
  Array<std::uint8_t> scales{kValues / 16};

  Buffers() {
    for (std::int64_t i = 0; i < kValues; i += 4) {
      const Philox4 r = philox4x32(1, {static_cast<std::uint32_t>(i), 0, 0, 0});
      for (std::size_t j = 0; j < 4; ++j) {
        floats.data()[i + static_cast<std::int64_t>(j)] =
            static_cast<float>(static_cast<std::int32_t>(r[j])) * 0x1p-30F;
      }
    }
    kScalarCodecs.encode_bf16(floats.data(), halves.data(), kValues);
  }
};

Buffers& buffers() {
  static Buffers instance;
  return instance;
}

// CPU time of this thread, as the benchmarks' rates are: other work may share the core.
double cpu_seconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double memcpy_bytes_per_second() {
  static const double measured = [] {
    double best = 0;
    for (int round = 0; round < 7; ++round) {
      const double begin = cpu_seconds();
      std::memcpy(buffers().floats_out.data(), buffers().floats.data(), kValues * sizeof(float));
      benchmark::DoNotOptimize(buffers().floats_out.data());
      best = std::max(best, 2. * kValues * sizeof(float) / (cpu_seconds() - begin));
    }
    return best;
  }();
  return measured;
}

struct Case {
  const char* name;
  double bytes_per_value;  // read and written
  std::function<void(const BulkCodecs&, Buffers&)> run;
  std::function<void(Buffers&)> prepare;  // makes what `run` decodes
};

const std::vector<Case>& cases() {
  constexpr double kF32 = 4;
  constexpr double kNvfp4 = 9. / 16;
  constexpr double kMxfp8 = 33. / 32;
  const auto nothing = [](Buffers&) {};
  const auto nvfp4 = [](Buffers& b) {
    bulk_codecs(detect_machine().best_isa)
        .quantize_nvfp4_cache(b.floats.data(), b.bytes.data(), b.scales.data(), kValues);
  };
  const auto mxfp8 = [](Buffers& b) {
    bulk_codecs(detect_machine().best_isa)
        .quantize_mxfp8(b.floats.data(), b.bytes.data(), b.scales.data(), kValues);
  };
  static const std::vector<Case> all = {
      {"encode_bf16", kF32 + 2,
       [](const BulkCodecs& c, Buffers& b) {
         c.encode_bf16(b.floats.data(), b.halves.data(), kValues);
       },
       nothing},
      {"decode_bf16", kF32 + 2,
       [](const BulkCodecs& c, Buffers& b) {
         c.decode_bf16(b.halves.data(), b.floats_out.data(), kValues);
       },
       nothing},
      {"encode_e4m3", kF32 + 1,
       [](const BulkCodecs& c, Buffers& b) {
         c.encode_e4m3(b.floats.data(), b.bytes.data(), kValues);
       },
       nothing},
      {"decode_e4m3", kF32 + 1,
       [](const BulkCodecs& c, Buffers& b) {
         c.decode_e4m3(b.bytes.data(), b.floats_out.data(), kValues);
       },
       mxfp8},
      {"quantize_nvfp4_cache", kF32 + kNvfp4,
       [](const BulkCodecs& c, Buffers& b) {
         c.quantize_nvfp4_cache(b.floats.data(), b.bytes.data(), b.scales.data(), kValues);
       },
       nothing},
      {"dequantize_nvfp4_exact", kF32 + kNvfp4,
       [](const BulkCodecs& c, Buffers& b) {
         c.dequantize_nvfp4_exact(b.bytes.data(), b.scales.data(), b.floats_out.data(), kValues);
       },
       nvfp4},
      {"dequantize_nvfp4_e4m3", 1 + kNvfp4,
       [](const BulkCodecs& c, Buffers& b) {
         c.dequantize_nvfp4_e4m3(b.bytes.data(), b.scales.data(), b.bytes_out.data(), kValues);
       },
       nvfp4},
      {"dequantize_nvfp4_e4m3_to_float", kF32 + kNvfp4,
       [](const BulkCodecs& c, Buffers& b) {
         c.dequantize_nvfp4_e4m3_to_float(b.bytes.data(), b.scales.data(), b.floats_out.data(),
                                          kValues);
       },
       nvfp4},
      {"quantize_nvfp4_weight", kF32 + kNvfp4,
       [](const BulkCodecs& c, Buffers& b) {
         c.quantize_nvfp4_weight(b.floats.data(), 1344.F, b.bytes.data(), b.scales.data(), kValues);
       },
       nothing},
      {"dequantize_nvfp4_weight", kF32 + kNvfp4,
       [](const BulkCodecs& c, Buffers& b) {
         c.dequantize_nvfp4_weight(b.bytes.data(), b.scales.data(), 1.F / 1344.F,
                                   b.floats_out.data(), kValues);
       },
       nvfp4},
      {"quantize_mxfp8", kF32 + kMxfp8,
       [](const BulkCodecs& c, Buffers& b) {
         c.quantize_mxfp8(b.floats.data(), b.bytes.data(), b.scales.data(), kValues);
       },
       nothing},
      {"dequantize_mxfp8", kF32 + kMxfp8,
       [](const BulkCodecs& c, Buffers& b) {
         c.dequantize_mxfp8(b.bytes.data(), b.scales.data(), b.floats_out.data(), kValues);
       },
       mxfp8},
  };
  return all;
}

void run_case(benchmark::State& state, const Case& one, CpuIsa isa) {
  const BulkCodecs& codecs = bulk_codecs(isa);
  const double copy = memcpy_bytes_per_second();
  one.prepare(buffers());
  for (auto _ : state) {
    one.run(codecs, buffers());
    benchmark::ClobberMemory();
  }
  const double bytes = one.bytes_per_value * kValues * static_cast<double>(state.iterations());
  state.counters["GB/s"] = benchmark::Counter(bytes / 1e9, benchmark::Counter::kIsRate);
  state.counters["of_memcpy"] = benchmark::Counter(bytes / copy, benchmark::Counter::kIsRate);
}

const bool kRegistered = [] {
  for (const Case& one : cases()) {
    for (const CpuIsa isa : {CpuIsa::kPortable, CpuIsa::kAvx2, CpuIsa::kAvx512}) {
      if (isa > detect_machine().best_isa) continue;
      benchmark::RegisterBenchmark(
          fmt::format("{}/{}", one.name, cpu_isa_name(isa)).c_str(),
          [&one, isa](benchmark::State& state) { run_case(state, one, isa); })
          ->Unit(benchmark::kMillisecond);
    }
  }
  return true;
}();

}  // namespace
}  // namespace winnow
