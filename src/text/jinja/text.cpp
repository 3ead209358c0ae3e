#include "text/jinja/text.h"

#include <algorithm>
#include <utility>

namespace winnow::jinja {

Text::Text(std::string bytes, Origin origin) : bytes_(std::move(bytes)) {
  if (!bytes_.empty()) runs_.push_back({bytes_.size(), origin});
}

Origin Text::origin() const {
  const bool has_value = std::any_of(runs_.begin(), runs_.end(),
                                     [](const Run& run) { return run.origin == Origin::kValue; });
  return has_value ? Origin::kValue : Origin::kTemplate;
}

void Text::append(std::string_view bytes, Origin origin) {
  if (bytes.empty()) return;
  bytes_.append(bytes);
  if (!runs_.empty() && runs_.back().origin == origin) {
    runs_.back().end = bytes_.size();
  } else {
    runs_.push_back({bytes_.size(), origin});
  }
}

void Text::append(const Text& other) {
  std::size_t begin = 0;
  for (const Run& run : other.runs_) {
    append(std::string_view(other.bytes_).substr(begin, run.end - begin), run.origin);
    begin = run.end;
  }
}

Text Text::part(std::size_t begin, std::size_t end) const {
  Text out;
  auto run = std::upper_bound(runs_.begin(), runs_.end(), begin,
                              [](std::size_t at, const Run& r) { return at < r.end; });
  for (; begin < end && run != runs_.end(); ++run) {
    const std::size_t stop = std::min(end, run->end);
    out.append(std::string_view(bytes_).substr(begin, stop - begin), run->origin);
    begin = stop;
  }
  return out;
}

}  // namespace winnow::jinja
