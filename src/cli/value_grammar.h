// How flag values are written. Source: spec/serving-fields.md 1.3.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace winnow::cli {

/// Integers with k m g t (powers of 1000, may be decimal: 25.6k) or K M G T (powers of 1024, whole
/// numbers only: 256K). Throws UsageError naming the flag.
std::int64_t parse_human_integer(const std::string& flag, std::string_view text);

/// Such integers with commas between, each at least 1.
std::vector<std::int64_t> parse_integer_list(const std::string& flag, const std::string& text);

/// Plain integers and reals, and "true"/"false".
std::int64_t parse_integer(const std::string& flag, std::string_view text);
double parse_real(const std::string& flag, std::string_view text);
bool parse_boolean(const std::string& flag, std::string_view text);

/// The value of a flag, or `fallback`, which may be anything. Throws UsageError unless a given
/// value is in [low, high].
std::int64_t bounded(const std::string& flag, const std::optional<std::int64_t>& value,
                     std::int64_t fallback, std::int64_t low, std::int64_t high);

/// Throws UsageError listing the choices unless `text` is one of them.
void check_choice(const std::string& flag, std::string_view text,
                  const std::vector<std::string>& choices);

/// The candidates closest to `word`, best first, at most `count`, none that is far.
std::vector<std::string> suggestions(std::string_view word,
                                     const std::vector<std::string>& candidates,
                                     std::size_t count = 3);

}  // namespace winnow::cli
