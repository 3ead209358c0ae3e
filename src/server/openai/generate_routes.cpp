// /v1/chat/completions and /v1/completions.
#include "server/openai/completion_request.h"
#include "server/openai/prepare.h"
#include "server/openai/routes.h"
#include "server/openai/translated_chat.h"

namespace winnow::server {

HttpReply chat_completions(const HttpRequest& request, const RouteContext& context) {
  const Json body = parse_body(request.body);
  GenerationPlan plan =
      plan_chat(read_chat_request(body, context.policy, context.model.defaults), request, context);
  plan.format = make_chat_format(make_header(plan.fields, context.model, context.policy,
                                             make_response_id("chatcmpl-", plan.fields, request)),
                                 plan.fields.sampling.n);
  return start_generation(std::move(plan), context.reply);
}

HttpReply completions(const HttpRequest& request, const RouteContext& context) {
  const Json body = parse_body(request.body);
  CompletionRequest completion =
      read_completion_request(body, context.policy, context.model.defaults);
  check_model_name(completion.generation.model, context.model);
  GenerationPlan plan;
  for (const RawPrompt& prompt : completion.prompts) {
    plan.prompts.push_back(prepare_raw_prompt(prompt, completion.generation, context.model));
    if (completion.echo) plan.prompts.back().echoed = plan.prompts.back().text;
  }
  plan.fields = std::move(completion.generation);
  complete_plan(plan, context.model, context.policy, request);
  const auto num_choices = static_cast<std::int32_t>(plan.prompts.size()) * plan.fields.sampling.n;
  plan.format = make_completion_format(make_header(plan.fields, context.model, context.policy,
                                                   make_response_id("cmpl-", plan.fields, request)),
                                       num_choices, completion.echo);
  return start_generation(std::move(plan), context.reply);
}

}  // namespace winnow::server
