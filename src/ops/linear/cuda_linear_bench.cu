// The fast linear kernels at MiniMax-M3's shapes. `check` compares results with sums in double
// precision and, bit by bit, with the same token in another batch, and exits with 1 at the first
// fault; `time` prints times beside their floors: the larger of the weights' bytes and the flops of
// bf16.
#include "ops/linear/cuda_linear_bench.cuh"

namespace winnow::cuda {
namespace bench {

const Shape kCheckedShapes[] = {{"odd 1000x576", QuantScheme::kMxfp8, 1000, 576},
                                {"bf16 1024x2048", QuantScheme::kBF16, 1024, 2048},
                                {"nvfp4 6144x3072", QuantScheme::kNvfp4, 6144, 3072},
                                {"qkv 9856x6144", QuantScheme::kMxfp8, 9856, 6144},
                                {"bf16 20480x1024", QuantScheme::kBF16, 20480, 1024},
                                {"gate_up 24576x6144", QuantScheme::kMxfp8, 24576, 6144}};

bool check_shape(cudaStream_t stream, const Shape& shape) {
  const int most = shape.rows == 9856 ? 2048 : 600;
  Bench bench(stream, shape, most);
  if (bench.has_prefill()) {
    for (const int m : {most, 512, 300, 129, 64}) {
      for (const int block : {256, 128}) {
        for (const bool cut : {false, true}) {
          const std::string name =
              "prefill of " + std::to_string(block) + (cut ? ", cut" : ", whole");
          if (!bench.is_right([&](float* y) { bench.run_prefill(0, m, y, block, cut); }, m,
                              name.c_str())) {
            return false;
          }
        }
      }
    }
  }
  for (const int m : {64, 33, 32, 17, 16, 13, 8, 7, 5, 4, 3, 2, 1}) {
    for (const bool packed : {true, false}) {
      if (!packed && !bench.is_direct(m)) continue;
      if (!bench.is_right([&](float* y) { bench.run(0, m, y, packed); }, m,
                          packed ? "decode" : "decode, direct")) {
        return false;
      }
    }
  }
  std::printf("%s: right, worst error %.3g of sum |x w|\n", shape.name, bench.worst());
  return true;
}

int check_all(cudaStream_t stream) {
  for (const Shape& shape : kCheckedShapes) {
    if (!check_shape(stream, shape)) return 1;
  }
  std::printf("cuda_linear_bench: all right\n");
  return 0;
}

void time_decode(cudaStream_t stream, const Bench& bench, int calls) {
  for (const int m : {1, 2, 4, 8, 16, 32, 64}) {
    for (const bool packed : {false, true}) {
      if (packed ? m > 2 && bench.is_direct(m) : !bench.is_direct(m)) continue;
      bench.print(packed ? "decode p" : "decode", m, time_graph(stream, calls, 30, [&](int i) {
                    bench.run(i % bench.copies(), m, bench.y(), packed);
                  }));
    }
  }
}

void time_prefill(cudaStream_t stream, const Bench& bench, int most) {
  for (const int m : {128, 512, 1024, 2048, 8192}) {
    if (m > most) continue;
    const int block = bench.block_tokens(m);
    bench.print(block == 128 ? "n128" : "n256", m, time_graph(stream, 4, 12, [&](int i) {
                  bench.run_prefill(i % bench.copies(), m, bench.y(), block, true);
                }));
  }
}

int time_all(cudaStream_t stream) {
  const Shape shapes[] = {{"qkv 9856x6144", QuantScheme::kMxfp8, 9856, 6144},
                          {"out 6144x8192", QuantScheme::kMxfp8, 6144, 8192},
                          {"down 6144x12288", QuantScheme::kMxfp8, 6144, 12288},
                          {"gate_up 24576x6144", QuantScheme::kMxfp8, 24576, 6144},
                          {"head bf16 200064x6144", QuantScheme::kBF16, 200064, 6144}};
  for (const Shape& shape : shapes) {
    const bool is_head = shape.rows > 100000;
    const int most = is_head ? 128 : 8192;
    const Bench bench(stream, shape, most);
    time_decode(stream, bench, is_head ? 4 : 16);
    time_prefill(stream, bench, most);
  }
  std::printf("cuda_linear_bench: timed\n");
  return 0;
}

/// The fused QKV's projection three times, for a profiler to look at.
void run_once(cudaStream_t stream, int num_tokens) {
  const Bench bench(stream, {"qkv 9856x6144", QuantScheme::kMxfp8, 9856, 6144}, num_tokens);
  for (int copy : {0, 1, 0}) {
    if (num_tokens <= kMaxDecodeTokens) {
      bench.run(copy, num_tokens, bench.y(), true);
    } else {
      bench.run_prefill(copy, num_tokens, bench.y(), bench.block_tokens(num_tokens), true);
    }
  }
  wait(stream, "profile");
}

}  // namespace bench
}  // namespace winnow::cuda

int main(int argc, char** argv) {
  using namespace winnow::cuda;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  const std::string verb = argc > 1 ? argv[1] : "";
  if (verb == "check") return bench::check_all(stream);
  if (verb == "time") return bench::time_all(stream);
  if (verb == "profile" && argc > 2) {
    bench::run_once(stream, std::atoi(argv[2]));
    return 0;
  }
  std::printf("usage: cuda_linear_bench check|time|profile TOKENS\n");
  return 2;
}
