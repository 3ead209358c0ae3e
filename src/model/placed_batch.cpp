#include "model/placed_batch.h"

#include <algorithm>
#include <cstring>

namespace winnow {
namespace {

constexpr std::size_t kAlignment = 256;

/// Offsets of arrays in one block. Those whose length is fixed by the counts of tokens and
/// sequences come first, so that two steps with the same counts find them at the same addresses.
class BlockWriter {
 public:
  BlockWriter(std::vector<std::byte>& bytes, const std::byte* base) : bytes_(bytes), base_(base) {
    bytes_.clear();
  }
  /// The address at which `values` will lie on the device.
  template <typename T>
  const T* add(std::span<const T> values) {
    const std::size_t offset = (bytes_.size() + kAlignment - 1) / kAlignment * kAlignment;
    bytes_.resize(offset + values.size_bytes());
    if (!values.empty()) std::memcpy(bytes_.data() + offset, values.data(), values.size_bytes());
    return reinterpret_cast<const T*>(base_ + offset);
  }

 private:
  std::vector<std::byte>& bytes_;
  const std::byte* base_;
};

/// The same slices with block tables at the addresses that they have on the device.
std::vector<ops::SequenceSlice> moved(std::span<const ops::SequenceSlice> slices,
                                      std::span<const std::int32_t* const> tables) {
  std::vector<ops::SequenceSlice> out(slices.begin(), slices.end());
  for (std::size_t s = 0; s < out.size(); ++s) out[s].block_table = tables[s];
  return out;
}

}  // namespace

ops::BatchView PlacedBatch::view_of(const FlatBatch& flat, std::int32_t bound_positions) const {
  ops::BatchView view = flat.view();
  view.num_positions = bound_positions;
  return view;
}

void PlacedBatch::place(const Batch& batch, const FlatBatch& all, const FlatBatch& last,
                        std::int32_t bound_positions, std::span<const ops::Draw> draws) {
  all_ = view_of(all, bound_positions);
  last_ = view_of(last, bound_positions);
  adapter_of_ = all.adapter_of().data();
  last_adapter_of_ = last.adapter_of().data();
  tokens_ = batch.tokens.data();
  kept_tokens_ = last.kept_tokens().data();
  logit_rows_ = last.logit_rows().data();
  draws_ = draws.data();
  if (!memory_->is_host()) upload(batch, all, last, draws);
}

void PlacedBatch::upload(const Batch& batch, const FlatBatch& all, const FlatBatch& last,
                         std::span<const ops::Draw> draws) {
  std::size_t bound = 13 * kAlignment + batch.tokens.size() * 10 * sizeof(std::int32_t) +
                      2 * batch.sequences.size() * sizeof(ops::SequenceSlice) + draws.size_bytes();
  for (const BatchSequence& sequence : batch.sequences) {
    bound += sequence.block_table.size() * sizeof(std::int32_t) + kAlignment;
  }
  if (static_cast<std::int64_t>(bound) > device_.size()) {
    device_ = {};
    device_ =
        ops::Array<std::byte>(memory_, static_cast<std::int64_t>(2 * bound), "the batch of a step");
    ++generation_;
  }

  // Written twice: block tables come last, and slices hold their addresses.
  std::vector<const std::int32_t*> tables(batch.sequences.size(), nullptr);
  for (int pass = 0; pass < 2; ++pass) {
    BlockWriter block(staging_, device_.data());
    const auto place_view = [&](const FlatBatch& flat, ops::BatchView& view) {
      const ops::BatchView host = flat.view();
      const std::vector<ops::SequenceSlice> slices = moved(host.sequences, tables);
      view.sequences = {block.add(std::span(slices)), slices.size()};
      const auto count = static_cast<std::size_t>(host.num_tokens);
      view.positions = block.add(std::span(host.positions, count));
      view.sequence_of = block.add(std::span(host.sequence_of, count));
    };
    place_view(all, all_);
    place_view(last, last_);
    adapter_of_ = block.add(all.adapter_of());
    last_adapter_of_ = block.add(last.adapter_of());
    tokens_ = block.add(std::span(batch.tokens.data(), batch.tokens.size()));
    kept_tokens_ = block.add(last.kept_tokens());
    logit_rows_ = block.add(last.logit_rows());
    draws_ = block.add(draws);
    for (std::size_t s = 0; s < batch.sequences.size(); ++s) {
      const auto& table = batch.sequences[s].block_table;
      tables[s] =
          block.add(std::span(reinterpret_cast<const std::int32_t*>(table.data()), table.size()));
    }
  }
  memory_->upload(device_.data(), staging_.data(), std::ssize(staging_));
}

}  // namespace winnow
