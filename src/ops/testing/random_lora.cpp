#include "ops/testing/random_lora.h"

#include <algorithm>

namespace winnow::ops::testing {

RandomLoraSite::RandomLoraSite(std::int64_t inputs, std::vector<Part> list, RandomInputs& random)
    : parts(std::move(list)) {
  for (const Part& part : parts) {
    a.emplace_back(part.scheme, part.rank, inputs, random);
    b.emplace_back(part.scheme, part.num_rows, part.rank, random);
    scales.insert(scales.end(), static_cast<std::size_t>(part.rank), random.uniform(0.1F, 3.0F));
  }
}

std::vector<double> RandomLoraSite::formula(std::size_t index, const float* x,
                                            std::int64_t inputs) const {
  const Part& part = parts[index];
  std::size_t first_scale = 0;
  for (std::size_t i = 0; i < index; ++i) first_scale += static_cast<std::size_t>(parts[i].rank);
  std::vector<double> sums(static_cast<std::size_t>(part.num_rows));
  for (std::int64_t j = 0; j < part.rank; ++j) {
    double u = 0.0;
    for (std::int64_t k = 0; k < inputs; ++k) u += x[k] * a[index].value(j, k);
    u *= scales[first_scale + static_cast<std::size_t>(j)];
    for (std::int64_t n = 0; n < part.num_rows; ++n) {
      sums[static_cast<std::size_t>(n)] += u * b[index].value(n, j);
    }
  }
  return sums;
}

RandomLoraSite random_lora_site(std::int64_t inputs, std::int64_t outputs, RandomInputs& random) {
  constexpr std::int64_t kRanks[] = {1, 2, 3, 8, 15, 16, 17, 31, 32, 33, 64};
  const auto part = [&](std::int64_t first_row, std::int64_t num_rows) {
    return RandomLoraSite::Part{
        .first_row = first_row,
        .num_rows = num_rows,
        .rank = kRanks[random.below(std::ssize(kRanks))],
        .scheme = random.below(2) == 0 ? QuantScheme::kF32 : QuantScheme::kBF16};
  };
  const std::int64_t first = 1 + random.below(outputs / 2);
  const std::int64_t gap = random.below(2);
  return {inputs, {part(0, first), part(first + gap, outputs - first - gap)}, random};
}

PackedLoraSite::PackedLoraSite(const Backend& backend, const RandomLoraSite& source)
    : scales(source.scales) {
  std::vector<MatrixSource> stack;
  std::int64_t first_rank = 0;
  for (std::size_t i = 0; i < source.parts.size(); ++i) {
    const RandomLoraSite::Part& part = source.parts[i];
    stack.push_back(source.a[i].source());
    b.push_back(backend.pack(std::vector{source.b[i].source()}));
    parts.push_back({.b = b.back().get(), .first_rank = first_rank, .first_row = part.first_row});
    first_rank += part.rank;
  }
  a = backend.pack(stack);
}

std::vector<std::int32_t> adapters_of_rows(Spread spread, std::int64_t num_rows,
                                           std::int32_t num_adapters, RandomInputs& random) {
  std::vector<std::int32_t> adapters(static_cast<std::size_t>(num_rows), -1);
  std::int32_t current = static_cast<std::int32_t>(random.below(num_adapters));
  for (std::size_t row = 0; row < adapters.size(); ++row) {
    switch (spread) {
      case Spread::kNone:
        break;
      case Spread::kOne:
        adapters[row] = current;
        break;
      case Spread::kRuns:
        if (random.below(8) == 0) {
          current = static_cast<std::int32_t>(random.below(num_adapters + 1)) - 1;
        }
        adapters[row] = current;
        break;
      case Spread::kAlternating:
        adapters[row] = static_cast<std::int32_t>(row) % (num_adapters + 1) - 1;
        break;
      case Spread::kRandom:
        adapters[row] = static_cast<std::int32_t>(random.below(num_adapters + 1)) - 1;
        break;
    }
  }
  return adapters;
}

}  // namespace winnow::ops::testing
