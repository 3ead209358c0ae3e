#include "ops/lora/cuda_table.h"

#include <fmt/format.h>

#include <cstring>

#include "base/error.h"
#include "ops/cuda/context.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/lora/cuda_exact.h"

namespace winnow::cuda {
namespace {

const CudaMatrix& matrix_of(const ops::PackedMatrix* matrix) {
  return *static_cast<const CudaMatrix*>(matrix);
}

std::int32_t tiles_of(std::span<const MatrixPart> parts) {
  std::int64_t tiles = 0;
  for (const MatrixPart& part : parts) tiles += part.num_tiles;
  return static_cast<std::int32_t>(tiles);
}

void check_site(const ops::LoraSite& site) {
  if (site.a->rows() > exact::kMaxLoraRank) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("an adapter has rank {} at one projection, at most {} fit the kernels",
                            site.a->rows(), exact::kMaxLoraRank));
  }
  const auto check = [](const ops::PackedMatrix* matrix) {
    for (const MatrixPart& part : matrix_of(matrix).parts()) {
      if (part.scheme == QuantScheme::kF32 || part.scheme == QuantScheme::kBF16) continue;
      throw Error(ErrorCode::kUnsupported, "an adapter's matrices are to be F32 or BF16");
    }
  };
  check(site.a);
  for (const ops::LoraPart& part : site.parts) check(part.b);
}

/// The sites, and behind them the lists that they point to: first by their places in the lists.
struct HostTable {
  std::vector<DeviceLoraSite> sites;
  std::vector<MatrixPart> a;
  std::vector<DeviceLoraPart> parts;
  CudaLoraTable::Extents extents;

  void add(const ops::LoraSite& site) {
    DeviceLoraSite& device = sites.emplace_back();
    if (site.a == nullptr) return;
    check_site(site);
    const std::span<const MatrixPart> stack = matrix_of(site.a).parts();
    a.insert(a.end(), stack.begin(), stack.end());
    std::int32_t b_tiles = 0;
    for (const ops::LoraPart& part : site.parts) {
      const MatrixPart& b = matrix_of(part.b).parts().front();
      parts.push_back({.b = b,
                       .first_row = part.first_row,
                       .first_rank = static_cast<std::int32_t>(part.first_rank),
                       .rank = static_cast<std::int32_t>(part.b->cols())});
      b_tiles += static_cast<std::int32_t>(b.num_tiles);
    }
    device.scales = site.scales;
    device.num_a = static_cast<std::int32_t>(stack.size());
    device.num_parts = static_cast<std::int32_t>(site.parts.size());
    device.rank = static_cast<std::int32_t>(site.a->rows());
    extents = {.inputs = site.a->cols(),
               .rank = std::max(extents.rank, device.rank),
               .a_tiles = std::max(extents.a_tiles, tiles_of(stack)),
               .b_tiles = std::max(extents.b_tiles, b_tiles)};
  }
};

template <typename T>
std::int64_t bytes_of(const std::vector<T>& values) {
  return std::ssize(values) * static_cast<std::int64_t>(sizeof(T));
}

}  // namespace

std::unique_ptr<ops::LoraTable> bind_lora(Context& context,
                                          std::span<const ops::LoraSite* const> sites) {
  HostTable host;
  for (const ops::LoraSite* const site : sites) host.add(*site);
  static_assert(sizeof(DeviceLoraSite) % alignof(MatrixPart) == 0 &&
                sizeof(MatrixPart) % alignof(DeviceLoraPart) == 0);
  const std::int64_t a_at = bytes_of(host.sites);
  const std::int64_t parts_at = a_at + bytes_of(host.a);
  ops::Array<std::byte> block(context.memory(), parts_at + bytes_of(host.parts), "adapters");
  const auto* a = reinterpret_cast<const MatrixPart*>(block.data() + a_at);
  const auto* parts = reinterpret_cast<const DeviceLoraPart*>(block.data() + parts_at);
  for (DeviceLoraSite& site : host.sites) {
    site.a = a;
    site.parts = parts;
    a += site.num_a;
    parts += site.num_parts;
  }
  std::vector<std::byte> bytes(static_cast<std::size_t>(block.size()));
  std::memcpy(bytes.data(), host.sites.data(), static_cast<std::size_t>(a_at));
  std::memcpy(bytes.data() + a_at, host.a.data(), static_cast<std::size_t>(parts_at - a_at));
  std::memcpy(bytes.data() + parts_at, host.parts.data(),
              static_cast<std::size_t>(block.size() - parts_at));
  context.memory()->upload(block.data(), bytes.data(), block.size());
  return std::make_unique<CudaLoraTable>(std::move(block), host.extents);
}

}  // namespace winnow::cuda
