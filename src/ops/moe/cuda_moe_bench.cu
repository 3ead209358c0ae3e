// The fast MoE at M3.1's shapes: checks against float64 and for equal bits in any batch, then times
// whole layers from graphs, inputs rotated so that no replay finds its weights in L2.
// Usage: cuda_moe_bench [check|time|all] [small] [M …]
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "ops/moe/cuda_fast.h"
#include "ops/moe/cuda_fast_scratch.h"
#include "ops/moe/cuda_moe_bench_model.cuh"

namespace winnow::cuda::fast_moe {
namespace {

constexpr double kBytesPerSecond = 4.26e12;  // of a large copy, bytes read and written

/// Scratch as DeviceScratch hands it out.
class Scratch {
 public:
  Scratch(std::int64_t num_bytes)
      : data_(device_array<std::byte>(num_bytes)), num_bytes_(num_bytes) {
    check(cudaMemset(data_, 0xFF, static_cast<std::size_t>(num_bytes)), "cudaMemset");
    counters_ = device_array<std::uint32_t>(65536);
    check(cudaMemset(counters_, 0, 65536 * 4), "cudaMemset");
  }
  Workspace workspace(const Layer& layer) {
    std::int64_t used = 0;
    Workspace work = carve(layer, [&](std::int64_t bytes) {
      std::byte* const at = data_ + used;
      used += (bytes + 255) / 256 * 256;
      if (used > num_bytes_) {
        std::printf("scratch is too small\n");
        std::exit(1);
      }
      return at;
    });
    work.counters = counters_;
    return work;
  }

 private:
  std::byte* data_;
  std::int64_t num_bytes_;
  std::uint32_t* counters_ = nullptr;
};

int faults = 0;

struct Result {
  std::vector<float> y;
  std::vector<std::int32_t> chosen;
  std::vector<float> weights;
};

Result run_once(const Model& model, int l, const float* h, int num_tokens, Scratch& scratch,
                int num_sms) {
  const Shape& s = model.shape;
  auto* const y = device_array<float>(std::int64_t{num_tokens} * s.hidden);
  auto* const chosen = device_array<std::int32_t>(std::int64_t{num_tokens} * s.top_k);
  auto* const weights = device_array<float>(std::int64_t{num_tokens} * s.top_k);
  check(cudaMemset(y, 0,
                   static_cast<std::size_t>(num_tokens) * static_cast<std::size_t>(s.hidden) * 4),
        "cudaMemset");
  Layer layer = model.layer(l, h, num_tokens, y);
  layer.chosen_experts = chosen;
  layer.chosen_weights = weights;
  run(layer, scratch.workspace(layer), num_sms, nullptr);
  check(cudaDeviceSynchronize(), "moe");
  Result result{to_host(y, std::int64_t{num_tokens} * s.hidden),
                to_host(chosen, std::int64_t{num_tokens} * s.top_k),
                to_host(weights, std::int64_t{num_tokens} * s.top_k)};
  cudaFree(y);
  cudaFree(chosen);
  cudaFree(weights);
  return result;
}

/// ‖got − reference‖ / ‖reference‖ of token t, and whether its choice is the reference's.
double token_error(const Model& model, int l, const float* h, const Result& got, int t) {
  const Shape& s = model.shape;
  const std::vector<float> row = to_host(h + std::int64_t{t} * s.hidden, s.hidden);
  const std::vector<double> x(row.begin(), row.end());
  const std::vector<float> bias = to_host(model.bias, s.num_experts);
  const std::vector<double> logits =
      product(model.routers[static_cast<std::size_t>(l)], s.num_experts, s.hidden, x);
  std::vector<int> order;
  std::vector<double> scores;
  for (int e = 0; e < s.num_experts; ++e) {
    scores.push_back(1.0 / (1.0 + std::exp(-logits[static_cast<std::size_t>(e)])));
    order.push_back(e);
  }
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return scores[static_cast<std::size_t>(a)] +
               static_cast<double>(bias[static_cast<std::size_t>(a)]) >
           scores[static_cast<std::size_t>(b)] +
               static_cast<double>(bias[static_cast<std::size_t>(b)]);
  });
  order.resize(static_cast<std::size_t>(s.top_k));
  std::sort(order.begin(), order.end());
  double sum = 0.0;
  for (int e : order) sum += scores[static_cast<std::size_t>(e)];
  const auto mlp = [&](const DeviceMlp& weights, int width) {
    const std::vector<double> gate = product(weights.gate, width, s.hidden, x);
    const std::vector<double> up = product(weights.up, width, s.hidden, x);
    std::vector<double> a(gate.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      const double g = std::min(gate[i], 7.0);
      const double u = std::clamp(up[i], -7.0, 7.0);
      a[i] = (u + 1.0) * g / (1.0 + std::exp(-1.702 * g));
    }
    return product(weights.down, s.hidden, width, a);
  };
  std::vector<double> y(static_cast<std::size_t>(s.hidden), 0.0);
  for (int k = 0; k < s.top_k; ++k) {
    const int e = order[static_cast<std::size_t>(k)];
    if (got.chosen[static_cast<std::size_t>(t * s.top_k + k)] != e) {
      std::printf("token %d choice %d: expert %d, expected %d\n", t, k,
                  got.chosen[static_cast<std::size_t>(t * s.top_k + k)], e);
      ++faults;
    }
    const std::vector<double> out = mlp(model.experts[static_cast<std::size_t>(e)], s.width);
    for (std::size_t i = 0; i < y.size(); ++i) {
      y[i] += 2.0 * scores[static_cast<std::size_t>(e)] / sum * out[i];
    }
  }
  if (s.shared_width > 0) {
    const std::vector<double> out = mlp(model.shared[static_cast<std::size_t>(l)], s.shared_width);
    for (std::size_t i = 0; i < y.size(); ++i) y[i] += out[i];
  }
  double difference = 0.0;
  double norm = 0.0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    const double d = static_cast<double>(got.y[static_cast<std::size_t>(t) * y.size() + i]) - y[i];
    difference += d * d;
    norm += y[i] * y[i];
  }
  return std::sqrt(difference / norm);
}

int differing(const Result& a, int ta, const Result& b, int tb, int hidden) {
  int count = 0;
  for (int i = 0; i < hidden; ++i) {
    count += std::memcmp(&a.y[static_cast<std::size_t>(ta) * static_cast<std::size_t>(hidden) +
                              static_cast<std::size_t>(i)],
                         &b.y[static_cast<std::size_t>(tb) * static_cast<std::size_t>(hidden) +
                              static_cast<std::size_t>(i)],
                         4) != 0;
  }
  return count;
}

void check_model(const char* name, const Model& model, Scratch& scratch, int num_sms,
                 const std::vector<int>& counts) {
  const Shape& s = model.shape;
  const int most = *std::max_element(counts.begin(), counts.end());
  const float* const h = random_floats(std::int64_t{most} * s.hidden, 1.0F, 77);
  check(cudaDeviceSynchronize(), "inputs");
  std::vector<Result> alone;
  for (const int t : {0, 5})
    alone.push_back(run_once(model, 0, h + std::int64_t{t} * s.hidden, 1, scratch, num_sms));
  const double error = token_error(model, 0, h, alone[0], 0);
  std::printf("%s: error of one token %.2e\n", name, error);
  if (!(error < 1e-2)) ++faults;
  for (const int m : counts) {
    const Result batch = run_once(model, 0, h, m, scratch, num_sms);
    const int a = differing(alone[0], 0, batch, 0, s.hidden);
    const int b = m > 5 ? differing(alone[1], 0, batch, 5, s.hidden) : 0;
    const Result again = run_once(model, 0, h, m, scratch, num_sms);
    int c = 0;
    for (int t = 0; t < m; ++t) c += differing(batch, t, again, t, s.hidden);
    const double last = token_error(model, 0, h, batch, m - 1);
    const bool bad = a + b + c != 0 || !(last < 1e-2);
    std::printf(
        "%s M=%d: bits that differ from alone %d %d, from a second run %d, error of the last "
        "token %.2e%s\n",
        name, m, a, b, c, last, bad ? "  FAULT" : "");
    if (bad) ++faults;
  }
  cudaFree(const_cast<float*>(h));
}

/// Median microseconds of one layer, over graphs of several layers.
double time_layers(int num_layers, const std::function<void(int, cudaStream_t)>& submit) {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreate(&stream), "cudaStreamCreate");
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
  for (int l = 0; l < num_layers; ++l) submit(l, stream);
  check(cudaStreamEndCapture(stream, &graph), "capture");
  check(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  std::vector<float> times;
  double spent = 0.0;
  for (int i = 0; i < 35 && (i < 10 || spent < 1500.0); ++i) {
    cudaEventRecord(begin, stream);
    check(cudaGraphLaunch(exec, stream), "cudaGraphLaunch");
    cudaEventRecord(end, stream);
    check(cudaEventSynchronize(end), "replay");
    float ms = 0.0F;
    cudaEventElapsedTime(&ms, begin, end);
    spent += static_cast<double>(ms);
    if (i >= 3) times.push_back(ms);
  }
  std::sort(times.begin(), times.end());
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  return static_cast<double>(times[times.size() / 2]) * 1e3 / num_layers;
}

double mlp_bytes(const DeviceMlp& mlp) {
  double bytes = 0.0;
  for (const MatrixPart& part : {mlp.gate, mlp.up, mlp.down}) {
    bytes += static_cast<double>(part.num_tiles * part.num_chunks * chunk_bytes(part.scheme));
  }
  return bytes;
}

void time_model(const Model& model, Scratch& scratch, int num_sms, const std::vector<int>& counts) {
  const Shape& s = model.shape;
  const auto num_tables = static_cast<int>(model.tables.size());
  for (const int m : counts) {
    const int num_layers = m <= 64 ? 8 : m <= 2048 ? 2 : 1;
    std::vector<const float*> h;
    double bytes = 0.0;
    for (int l = 0; l < num_layers; ++l) {
      h.push_back(
          random_floats(std::int64_t{m} * s.hidden, 1.0F, static_cast<std::uint64_t>(100 + l + m)));
      check(cudaDeviceSynchronize(), "inputs");
      const Result result = run_once(model, l % num_tables, h.back(), m, scratch, num_sms);
      const std::set<std::int32_t> distinct(result.chosen.begin(), result.chosen.end());
      bytes += static_cast<double>(distinct.size()) * mlp_bytes(model.experts[0]) +
               mlp_bytes(model.shared[0]) + 4.0 * s.num_experts * s.hidden;
    }
    bytes /= num_layers;
    auto* const y = device_array<float>(std::int64_t{m} * s.hidden);
    check(cudaMemset(y, 0, static_cast<std::size_t>(m) * static_cast<std::size_t>(s.hidden) * 4),
          "cudaMemset");
    const auto layer_of = [&](int l) {
      return model.layer(l % num_tables, h[static_cast<std::size_t>(l)], m, y);
    };
    const double whole = time_layers(num_layers, [&](int l, cudaStream_t stream) {
      const Layer layer = layer_of(l);
      run(layer, scratch.workspace(layer), num_sms, stream);
    });
    const double routing = time_layers(num_layers, [&](int l, cudaStream_t stream) {
      const Layer layer = layer_of(l);
      const Workspace work = scratch.workspace(layer);
      if (is_decode(layer)) return route(layer, work, stream);
      route_prefill(layer, work, stream);
      sort_prefill(layer, work, stream);
    });
    const double flops =
        2.0 * 3.0 * s.hidden * (static_cast<double>(s.width) * s.top_k + s.shared_width) * m;
    const double floor = bytes / kBytesPerSecond * 1e6;
    std::printf(
        "M=%5d %9.1f us (routing %6.1f)  %7.1f MB  %5.0f GB/s  floor %7.1f us  %.3f of copy  "
        "%6.1f TFLOP/s\n",
        m, whole, routing, bytes / 1e6, bytes / whole / 1e3, floor, floor / whole,
        flops / whole / 1e6);
    std::printf("moe_%s,M = %d,%.1f,%.0f,%.0f,%.1f\n",
                is_decode(layer_of(0)) ? "decode" : "prefill", m, whole, bytes, flops, floor);
    cudaFree(y);
    for (const float* p : h) cudaFree(const_cast<float*>(p));
  }
}

}  // namespace
}  // namespace winnow::cuda::fast_moe

int main(int argc, char** argv) {
  using namespace winnow::cuda;
  using namespace winnow::cuda::fast_moe;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const std::string what = argc > 1 ? argv[1] : "all";
  std::vector<int> counts;
  bool is_small = false;
  for (int i = 2; i < argc; ++i) {
    if (std::string(argv[i]) == "small") {
      is_small = true;
    } else {
      counts.push_back(std::atoi(argv[i]));
    }
  }
  if (counts.empty()) {
    counts = what == "check" ? std::vector{1, 8, 33, 64, 65, 200, 300, 1024}
                             : std::vector{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 2048, 8192};
  }
  int num_sms = 0;
  check(cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, 0), "attribute");
  fast_moe::Scratch scratch(std::int64_t{3} << 30);
  if (what != "time") {
    {
      const Model tiny(
          {.hidden = 512, .width = 512, .shared_width = 512, .num_experts = 8, .top_k = 2}, 1);
      check_model("tiny", tiny, scratch, num_sms, {1, 2, 7, 33, 64, 65, 200, 300, 1500});
    }
    {
      const Model odd({.hidden = 320,
                       .width = 192,
                       .shared_width = 448,
                       .num_experts = 19,
                       .top_k = 3,
                       .routed = winnow::QuantScheme::kMxfp8,
                       .shared = winnow::QuantScheme::kNvfp4},
                      1);
      check_model("odd", odd, scratch, num_sms, {1, 3, 40, 64, 250, 700});
    }
  }
  if (!is_small) {
    const Model m3({}, 4);
    if (what != "time") check_model("m3", m3, scratch, num_sms, counts);
    if (what != "check") time_model(m3, scratch, num_sms, counts);
  }
  std::printf("moe: %d faults\n", fast_moe::faults);
  return fast_moe::faults == 0 ? 0 : 1;
}
