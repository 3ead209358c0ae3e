// A look over a JSON text before it is parsed: bounds its depth and the work of parsing it, and
// names the field when a number is none (NaN, Infinity, 1e999), which a JSON parser reports by byte
// offset only.
#pragma once

#include <cstdint>
#include <string_view>

namespace winnow::server {

inline constexpr int kMaxJsonDepth = 64;
// Each member of an object is compared with those before it when the text is parsed: some seconds
// for 100,000. All objects together: half a second, or one of 30,000.
inline constexpr std::int64_t kMaxJsonComparisons = 450'000'000;

/// Throws Error{kInvalidArgument} with the field as param, or Error{kInvalidJson} when nested too
/// deep or with more members in its objects than are parsed in reasonable time. Other faults are
/// left to the parser. Time is linear, no allocation per value.
void check_json_text(std::string_view text, int max_depth = kMaxJsonDepth,
                     std::int64_t max_comparisons = kMaxJsonComparisons);

}  // namespace winnow::server
