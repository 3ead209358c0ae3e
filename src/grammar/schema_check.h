// A look over a JSON schema before it is compiled: says which member is wrong, and refuses what
// would be let pass without being applied. Source: JSON Schema 2020-12.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace winnow {

/// Throws Error{kInvalidArgument} whose param is the path of the member at fault, which starts with
/// `path` ("response_format.json_schema.schema.properties.age.type").
void check_schema(const nlohmann::ordered_json& schema, const std::string& path);

/// The text of a checked schema as GrammarCompiler takes it.
std::string compilable_schema(const nlohmann::ordered_json& schema);

}  // namespace winnow
