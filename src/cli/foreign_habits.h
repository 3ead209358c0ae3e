// Flags that users of llama.cpp and Ollama type, and what they are called here.
#pragma once

#include <string>

namespace winnow::cli {

/// Empty when the word is no habit we know.
std::string foreign_habit(const std::string& word);

}  // namespace winnow::cli
