// Filters that walk a sequence, one function each; filters.cpp lists them by name.
#pragma once

#include "text/jinja/interpreter.h"
#include "text/jinja/value.h"

namespace winnow::jinja {

#define WINNOW_FILTER(name) \
  Value name(Interpreter& interpreter, const Value& input, Arguments& arguments)
WINNOW_FILTER(batch);
WINNOW_FILTER(dictsort);
WINNOW_FILTER(first);
WINNOW_FILTER(groupby);
WINNOW_FILTER(items);
WINNOW_FILTER(join);
WINNOW_FILTER(last);
WINNOW_FILTER(length);
WINNOW_FILTER(list);
WINNOW_FILTER(map);
WINNOW_FILTER(maximum);
WINNOW_FILTER(minimum);
WINNOW_FILTER(reject);
WINNOW_FILTER(rejectattr);
WINNOW_FILTER(reverse);
WINNOW_FILTER(select);
WINNOW_FILTER(selectattr);
WINNOW_FILTER(slice);
WINNOW_FILTER(sort);
WINNOW_FILTER(sum);
WINNOW_FILTER(unique);
#undef WINNOW_FILTER

/// str.splitlines.
std::vector<Text> split_lines(const Text& text, bool keeps_ends);

}  // namespace winnow::jinja
