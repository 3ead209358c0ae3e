// /v1/load_lora_adapter and /v1/unload_lora_adapter, with the words and codes that clients of vLLM
// know. Source: spec/serving-fields.md 2.10.
#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"
#include "server/adapters/adapter_loads.h"
#include "server/adapters/routes.h"
#include "server/openai/generation_fields.h"

namespace winnow::server {
namespace {

AdapterRegistry& registry_of(const RouteContext& context) {
  if (context.model.adapters == nullptr) {
    throw Error(ErrorCode::kNotFound, "this server has no adapters");
  }
  return *context.model.adapters;
}

}  // namespace

HttpReply load_adapter(const HttpRequest& request, const RouteContext& context) {
  try {
    const Json body = parse_body(request.body);
    Fields fields(body);
    AdapterRegistry::Load load;
    load.name = fields.string("lora_name").value_or("");
    load.path = fields.string("lora_path").value_or("");
    load.in_place = fields.boolean("load_inplace").value_or(false);
    warn_unknown_fields(fields, "/v1/load_lora_adapter");
    if (load.name.empty() || load.path.empty()) {
      throw Error(ErrorCode::kInvalidArgument, "Both 'lora_name' and 'lora_path' must be provided.",
                  {}, load.name.empty() ? "lora_name" : "lora_path");
    }
    AdapterRegistry& registry = registry_of(context);
    registry.check(load);
    return context.adapter_loads.add(registry, std::move(load));
  } catch (const Error& error) {
    return adapter_error(error);
  }
}

HttpReply unload_adapter(const HttpRequest& request, const RouteContext& context) {
  try {
    const Json body = parse_body(request.body);
    Fields fields(body);
    const std::string name = fields.string("lora_name").value_or("");
    fields.ignore("lora_int_id");  // vLLM's own number of it
    warn_unknown_fields(fields, "/v1/unload_lora_adapter");
    if (name.empty()) {
      throw Error(ErrorCode::kInvalidArgument,
                  "'lora_name' needs to be provided to unload a LoRA "
                  "adapter.",
                  {}, "lora_name");
    }
    registry_of(context).unload(name);
    const LogField logged[] = {{"name", name}};
    log_event(spdlog::level::info, "adapter unloaded", logged);
    return HttpResponse{
        .content_type = "text/plain; charset=utf-8",
        .body = fmt::format("Success: LoRA adapter '{}' removed successfully.", name)};
  } catch (const Error& error) {
    return adapter_error(error);
  }
}

}  // namespace winnow::server
