#include "checkpoint/name_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <array>

#include "base/error.h"
#include "checkpoint/problem_list.h"

namespace winnow {

namespace {

constexpr std::size_t kMaxExpressionBytes = 1000;

/// Names have some ten segments, which is what the search for a dot tries; a match that takes more
/// steps than this is nested repetition.
constexpr std::uint32_t kMatchLimit = 20'000;
constexpr std::uint32_t kHeapLimitKiB = 1024;

[[noreturn]] void refuse(const std::string& expression, std::string_view reason) {
  throw Error(ErrorCode::kInvalidCheckpoint,
              fmt::format("pattern \"{}\": {}", printable(expression), reason));
}

}  // namespace

struct NamePattern::Code {
  ~Code() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_code_free(code);
  }
  pcre2_code* code = nullptr;
  pcre2_match_data* data = nullptr;
  pcre2_match_context* context = nullptr;
};

NamePattern::NamePattern(const std::string& expression)
    : code_(std::make_unique<Code>()), expression_(expression) {
  if (expression.size() > kMaxExpressionBytes) {
    refuse(expression, fmt::format("longer than {} bytes", kMaxExpressionBytes));
  }
  const std::string whole = "(.*\\.)?(" + expression + ")$";
  int error = 0;
  PCRE2_SIZE offset = 0;
  code_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(whole.data()), whole.size(),
                              PCRE2_ANCHORED | PCRE2_DOLLAR_ENDONLY | PCRE2_NEVER_BACKSLASH_C,
                              &error, &offset, nullptr);
  if (code_->code == nullptr) {
    std::array<unsigned char, 256> text{};
    pcre2_get_error_message(error, text.data(), text.size());
    refuse(expression, reinterpret_cast<const char*>(text.data()));
  }
  code_->data = pcre2_match_data_create(1, nullptr);
  code_->context = pcre2_match_context_create(nullptr);
  pcre2_set_match_limit(code_->context, kMatchLimit);
  pcre2_set_heap_limit(code_->context, kHeapLimitKiB);
}

NamePattern::~NamePattern() = default;
NamePattern::NamePattern(NamePattern&&) noexcept = default;
NamePattern& NamePattern::operator=(NamePattern&&) noexcept = default;

bool NamePattern::matches(std::string_view name) const {
  const int result = pcre2_match(code_->code, reinterpret_cast<PCRE2_SPTR>(name.data()),
                                 name.size(), 0, 0, code_->data, code_->context);
  if (result >= 0) return true;
  if (result == PCRE2_ERROR_NOMATCH) return false;
  refuse(expression_, fmt::format("takes too many steps on {}", printable(name)));
}

}  // namespace winnow
