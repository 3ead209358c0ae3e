#include "cli/value_grammar.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <utility>

#include "cli/usage_error.h"

namespace winnow::cli {
namespace {

/// 0 when the letter is no size suffix.
double suffix_factor(char letter) {
  switch (letter) {
    case 'k':
      return 1e3;
    case 'm':
      return 1e6;
    case 'g':
      return 1e9;
    case 't':
      return 1e12;
    case 'K':
      return 1024.0;
    case 'M':
      return 1024.0 * 1024;
    case 'G':
      return 1024.0 * 1024 * 1024;
    case 'T':
      return 1024.0 * 1024 * 1024 * 1024;
    default:
      return 0;
  }
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::vector<std::int64_t> parse_integer_list(const std::string& flag, const std::string& text) {
  std::vector<std::int64_t> values;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    values.push_back(parse_human_integer(flag, text.substr(begin, end - begin)));
    if (values.back() < 1) throw UsageError(fmt::format("{}: {} is below 1", flag, values.back()));
    begin = end + 1;
  }
  return values;
}

std::int64_t parse_integer(const std::string& flag, std::string_view text) {
  std::int64_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || parsed.ec != std::errc() || parsed.ptr != text.data() + text.size()) {
    throw UsageError(fmt::format("{}: '{}' is not an integer", flag, text));
  }
  return value;
}

double parse_real(const std::string& flag, std::string_view text) {
  double value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || parsed.ec != std::errc() || parsed.ptr != text.data() + text.size() ||
      !std::isfinite(value)) {
    throw UsageError(fmt::format("{}: '{}' is not a number", flag, text));
  }
  return value;
}

std::int64_t parse_human_integer(const std::string& flag, std::string_view text) {
  const double factor = text.empty() ? 0 : suffix_factor(text.back());
  if (factor == 0) return parse_integer(flag, text);
  const std::string_view digits = text.substr(0, text.size() - 1);
  const bool is_binary = text.back() >= 'A' && text.back() <= 'Z';
  if (is_binary && digits.find('.') != std::string_view::npos) {
    throw UsageError(
        fmt::format("{}: '{}': {} takes whole numbers (powers of 1024)", flag, text, text.back()),
        fmt::format("use a small {} for powers of 1000",
                    static_cast<char>(text.back() - 'A' + 'a')));
  }
  const double value = parse_real(flag, digits) * factor;
  if (std::abs(value) > 9e18) throw UsageError(fmt::format("{}: '{}' is too large", flag, text));
  return std::llround(value);
}

bool parse_boolean(const std::string& flag, std::string_view text) {
  if (text == "true" || text == "True" || text == "1") return true;
  if (text == "false" || text == "False" || text == "0") return false;
  throw UsageError(fmt::format("{}: '{}' is not true or false", flag, text));
}

std::int64_t bounded(const std::string& flag, const std::optional<std::int64_t>& value,
                     std::int64_t fallback, std::int64_t low, std::int64_t high) {
  if (value && (*value < low || *value > high)) {
    throw UsageError(fmt::format("{}: {} is not between {} and {}", flag, *value, low, high));
  }
  return value.value_or(fallback);
}

void check_choice(const std::string& flag, std::string_view text,
                  const std::vector<std::string>& choices) {
  if (std::find(choices.begin(), choices.end(), text) == choices.end()) {
    throw UsageError(
        fmt::format("{}: '{}' is not one of {}", flag, text, fmt::join(choices, ", ")));
  }
}

std::vector<std::string> suggestions(std::string_view word,
                                     const std::vector<std::string>& candidates,
                                     std::size_t count) {
  std::vector<std::pair<std::size_t, std::string>> ranked;
  const std::size_t limit = std::max<std::size_t>(2, word.size() / 3);
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(word, candidate);
    if (distance <= limit) ranked.emplace_back(distance, candidate);
  }
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> out;
  for (std::size_t i = 0; i < std::min(count, ranked.size()); ++i) out.push_back(ranked[i].second);
  return out;
}

}  // namespace winnow::cli
