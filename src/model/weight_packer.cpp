#include "model/weight_packer.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/thread_pool.h"

namespace winnow {

ops::MatrixSource source_of(const WeightMatrix& matrix) {
  return {.scheme = matrix.scheme,
          .rows = matrix.rows,
          .cols = matrix.cols,
          .data = matrix.data.data,
          .scales = reinterpret_cast<const std::uint8_t*>(matrix.scales.data),
          .matrix_scale = matrix.global_scale};
}

ops::Array<float> place_weights(const ops::Backend& backend, const std::vector<float>& values) {
  return {backend.memory, std::span(values), "weights"};
}

std::uint64_t weights_fingerprint(const Checkpoint& checkpoint) {
  constexpr std::size_t kSampleBytes = 64;
  std::uint64_t hash = 0xCBF29CE484222325U;
  const auto mix = [&](std::span<const std::byte> bytes) {
    for (const std::byte byte : bytes) {
      hash = (hash ^ std::to_integer<std::uint64_t>(byte)) * 0x100000001B3U;
    }
  };
  for (const std::string_view name : checkpoint.names()) {
    const TensorView view = checkpoint.view(name);
    mix(std::as_bytes(std::span(name)));
    const std::span bytes(view.data, static_cast<std::size_t>(view.num_bytes()));
    const std::size_t sample = std::min(kSampleBytes, bytes.size());
    mix(bytes.first(sample));
    mix(bytes.last(sample));
  }
  return hash;
}

void WeightPacker::add(std::vector<const WeightMatrix*> stack,
                       std::unique_ptr<ops::PackedMatrix>& target) {
  for (const WeightMatrix* matrix : stack) total_bytes_ += matrix->num_bytes();
  jobs_.push_back({.stack = std::move(stack), .target = &target});
}

void WeightPacker::add_mlp(const GatedMlp& mlp, PackedMlp& packed) {
  add({&mlp.gate, &mlp.up}, packed.gate_up);
  add({&mlp.down}, packed.down);
}

/// Before hours of reading, rather than at the tensor that happens to be one too many.
void WeightPacker::check_room(const ops::Memory& memory) const {
  const std::int64_t free_bytes = memory.available_bytes();
  if (total_bytes_ <= free_bytes) return;
  std::int64_t quantised_bytes = 0;
  for (const Job& job : jobs_) {
    for (const WeightMatrix* matrix : job.stack) {
      const std::int64_t mxfp8_bytes = matrix->rows * matrix->cols / 32 * 33;
      quantised_bytes += std::min(matrix->num_bytes(), mxfp8_bytes);
    }
  }
  const auto gigabytes = [](std::int64_t bytes) { return static_cast<double>(bytes) / 1e9; };
  const char* const where = memory.is_host() ? "this machine" : "the device";
  std::string hint =
      fmt::format("{:.2f} GB more memory would do", gigabytes(total_bytes_ - free_bytes));
  if (quantised_bytes < total_bytes_ * 9 / 10) {
    hint += fmt::format("; `winnow quantize IN OUT` makes at most {:.2f} GB of these weights, {}",
                        gigabytes(quantised_bytes),
                        quantised_bytes <= free_bytes ? "which fits" : "still too many");
  }
  throw Error(ErrorCode::kOutOfMemory,
              fmt::format("the weights take {:.2f} GB, and {} has {:.2f} GB free",
                          gigabytes(total_bytes_), where, gigabytes(free_bytes)),
              hint);
}

void WeightPacker::run(const Checkpoint& checkpoint, const ops::Backend& backend,
                       const PackingProgress& progress) {
  check_room(*backend.memory);
  std::mutex mutex;  // of the following
  std::int64_t done_bytes = 0;
  std::exception_ptr failure;
  std::atomic<bool> has_failed{false};
  ThreadPool pool;
  pool.parallel_for(std::ssize(jobs_), [&](std::int64_t i, int) {
    if (has_failed.load()) return;
    const Job& job = jobs_[static_cast<std::size_t>(i)];
    try {
      std::vector<ops::MatrixSource> sources;
      for (const WeightMatrix* matrix : job.stack) sources.push_back(source_of(*matrix));
      *job.target = backend.pack(sources);
      for (const WeightMatrix* matrix : job.stack) drop_pages(checkpoint, *matrix);
      const std::lock_guard lock(mutex);
      for (const WeightMatrix* matrix : job.stack) done_bytes += matrix->num_bytes();
      if (progress) progress(done_bytes, total_bytes_);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!has_failed.exchange(true)) failure = std::current_exception();
    }
  });
  if (failure) std::rethrow_exception(failure);
}

}  // namespace winnow
