#include <gtest/gtest.h>

#include "base/error.h"
#include "ops/bench/kernel_bench.h"

namespace winnow::ops {
namespace {

KernelBenchReport example() {
  return {.machine = "A \"quoted\" CPU",
          .backend = "cpu-avx512",
          .commit = "abc123",
          .num_threads = 2,
          .read_bytes_per_second = 80e9,
          .multiply_adds_per_second = 250e9,
          .measurements = {{.name = "nvfp4_gemv",
                            .shape = "3072 x 6144, cold",
                            .best_seconds = 200e-6,
                            .median_seconds = 250e-6,
                            .floor_seconds = 150e-6,
                            .floor = "10.6 MB at 80.0 GB/s"}},
          .sparse_prefill_gain = 7.5};
}

TEST(KernelReport, TableNamesMachineFloorTimeAndRatio) {
  const std::string table = format_table(example());
  for (const char* part : {"cpu-avx512", "2 threads", "abc123", "80.0 GB/s", "200.0 us", "150.0 us",
                           "0.75", "7.5 times"}) {
    EXPECT_NE(table.find(part), std::string::npos) << part << " in\n" << table;
  }
}

TEST(KernelReport, CsvQuotesNamesWithCommas) {
  const std::string csv = format_csv(example());
  EXPECT_NE(csv.find("\"A \"\"quoted\"\" CPU\",abc123,cpu-avx512,2,80.00,250.0,nvfp4_gemv,"
                     "\"3072 x 6144, cold\",200.00,250.00,150.00,0.750\n"),
            std::string::npos)
      << csv;
}

TEST(KernelReport, JsonEscapesNames) {
  EXPECT_NE(format_json(example()).find("\"machine\": \"A \\\"quoted\\\" CPU\""),
            std::string::npos);
}

TEST(KernelBench, RefusesAnUnknownCaseByName) {
  try {
    KernelBenchOptions options;
    options.only = {"nvfp4_gemvv"};
    run_kernel_bench(options);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(error.text().find("nvfp4_gemvv"), std::string::npos);
    EXPECT_NE(error.text().find("layer_decode"), std::string::npos);
  }
}

}  // namespace
}  // namespace winnow::ops
