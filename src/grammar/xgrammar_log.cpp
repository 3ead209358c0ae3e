// XGrammar's two ways to report, which its headers leave to the program that embeds it. Compiled
// into the library xgrammar (cmake/xgrammar.cmake).
#include "support/logging.h"

namespace xgrammar {

void LogFatalImpl(const std::string& file, int line, const std::string& message) {
  throw LogFatalError(file, line, message);
}

// It warns of schema keywords that it does not apply: such schemas are refused before it sees them.
void LogMessageImpl(const std::string&, int, int, const std::string&) {}

}  // namespace xgrammar
