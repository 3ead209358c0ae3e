#include "text/split_regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <array>

#include "base/assert.h"
#include "base/error.h"
#include "text/unicode.h"

namespace winnow {

namespace {

// Backtracking steps one search may take; the public families need a handful per character even
// on a megabyte of spaces.
constexpr std::uint32_t kMatchLimit = 20'000'000;
constexpr std::uint32_t kHeapLimitKiB = 64 * 1024;
constexpr std::size_t kGiveUpBytes = std::size_t{64} * 1024;

// White_Space, spelled out: PCRE2's \s also has U+180E.
constexpr std::string_view kSpaceRanges =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kNotSpaceRanges =
    R"(\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff})"
    R"(\x{200b}-\x{2027}\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff})";

[[noreturn]] void refuse(std::string_view expression, std::string_view reason) {
  throw Error(ErrorCode::kInvalidCheckpoint,
              fmt::format("split expression {}: {}", expression, reason),
              "only expressions that PCRE2 and Oniguruma read alike are accepted");
}

// Rewrites \s and \S, and refuses what the two engines read differently.
std::string translate(std::string_view expression) {
  std::string out;
  bool in_class = false;
  for (std::size_t i = 0; i < expression.size(); ++i) {
    const char c = expression[i];
    const char next = i + 1 < expression.size() ? expression[i + 1] : '\0';
    if (c == '\\') {
      if (next == '\0') refuse(expression, "ends in a backslash");
      if (next == 's' || next == 'S') {
        if (!in_class) out += '[';
        out += next == 's' ? kSpaceRanges : kNotSpaceRanges;
        if (!in_class) out += ']';
      } else if (next == 'h' || next == 'H' || next == 'R' || next == 'X' || next == 'K') {
        refuse(expression, fmt::format("\\{} is not accepted", next));
      } else {
        out += c;
        out += next;
        const bool has_braces = next == 'p' || next == 'P' || next == 'x';
        const std::size_t close = expression.find('}', i);
        if (has_braces && expression.substr(i + 2).starts_with('{') &&
            close != std::string_view::npos) {
          out += expression.substr(i + 2, close - i - 1);
          i = close - 1;
        }
      }
      ++i;
      continue;
    }
    if (in_class && c == '&' && next == '&')
      refuse(expression, "class intersection && is not accepted");
    if (in_class && c == '[' && next != ':') refuse(expression, "nested classes are not accepted");
    if (!in_class && c == '}' && next == '+') {
      refuse(expression, "}+ is possessive in one engine and a repeat in the other");
    }
    if (!in_class && c == '[') {
      in_class = true;
      out += c;
      if (next == '^') {
        out += next;
        ++i;
      }
      if (i + 1 < expression.size() && expression[i + 1] == ']') {
        refuse(expression, "an empty class is not accepted");
      }
      continue;
    }
    if (in_class && c == ']') in_class = false;
    out += c;
  }
  return out;
}

std::string pcre2_message(int code) {
  std::array<unsigned char, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

// Per thread: what a match writes to. One pair of offsets is enough for every expression.
struct MatchSpace {
  MatchSpace()
      : data(pcre2_match_data_create(1, nullptr)),
        context(pcre2_match_context_create(nullptr)),
        stack(pcre2_jit_stack_create(std::size_t{32} << 10, std::size_t{4} << 20, nullptr)) {
    pcre2_set_match_limit(context, kMatchLimit);
    pcre2_set_heap_limit(context, kHeapLimitKiB);
    pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~MatchSpace() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
  MatchSpace(const MatchSpace&) = delete;
  MatchSpace& operator=(const MatchSpace&) = delete;

  pcre2_match_data* data;
  pcre2_match_context* context;
  pcre2_jit_stack* stack;
};

MatchSpace& match_space() {
  thread_local MatchSpace space;
  return space;
}

std::size_t character_boundary_after(std::string_view text, std::size_t position) {
  while (position < text.size() && (static_cast<unsigned char>(text[position]) & 0xC0) == 0x80) {
    ++position;
  }
  return position;
}

}  // namespace

struct SplitRegex::Code {
  pcre2_code* compiled = nullptr;
  ~Code() { pcre2_code_free(compiled); }
};

SplitRegex::SplitRegex(std::string_view expression) : code_(std::make_unique<Code>()) {
  if (expression.size() > std::size_t{16} * 1024)
    refuse(expression.substr(0, 80), "longer than 16 KiB");
  const std::string pattern = translate(expression);
  int error = 0;
  PCRE2_SIZE offset = 0;
  code_->compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                  PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                                  &error, &offset, nullptr);
  if (code_->compiled == nullptr) refuse(expression, pcre2_message(error));
  pcre2_jit_compile(code_->compiled, PCRE2_JIT_COMPLETE);  // without it, matching is only slower
}

SplitRegex::~SplitRegex() = default;
SplitRegex::SplitRegex(SplitRegex&&) noexcept = default;
SplitRegex& SplitRegex::operator=(SplitRegex&&) noexcept = default;

void SplitRegex::split(std::string_view text, std::vector<SplitMatch>& out) const {
  MatchSpace& space = match_space();
  std::size_t previous = 0;  // end of what has been appended
  std::size_t search = 0;
  bool has_match = false;
  while (search <= text.size()) {
    const int result =
        pcre2_match(code_->compiled, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), search,
                    PCRE2_NO_UTF_CHECK, space.data, space.context);
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result < 0) {  // a limit
      const std::size_t end =
          character_boundary_after(text, std::min(text.size(), search + kGiveUpBytes));
      out.push_back({previous, end, false});
      previous = end;
      if (search == end) break;
      search = end;
      has_match = false;
      continue;
    }
    const PCRE2_SIZE* ovector = pcre2_get_ovector_pointer(space.data);
    const std::size_t begin = ovector[0];
    const std::size_t end = ovector[1];
    if (begin >= end) {
      // An empty match splits, unless it touches the match before; \K is refused above.
      if (has_match && end == previous) {
        search = character_boundary_after(text, search + 1);
        continue;
      }
    }
    if (begin > previous) out.push_back({previous, begin, false});
    out.push_back({begin, end, true});
    previous = search = end;
    has_match = true;
  }
  if (previous < text.size()) out.push_back({previous, text.size(), false});
}

}  // namespace winnow
