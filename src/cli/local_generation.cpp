#include "cli/local_generation.h"

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>

#include "base/error.h"
#include "server/choice_output.h"
#include "server/openai/prepare.h"
#include "server/update_inbox.h"

namespace winnow::cli {
namespace {

constexpr std::chrono::milliseconds kCancelPoll{50};

server::GenerationPlan make_plan(const server::ServingModel& model, const Json& body) {
  const server::RequestPolicy policy;
  server::GenerationPlan plan;
  if (body.contains("prompt")) {
    server::CompletionRequest request =
        server::read_completion_request(body, policy, model.defaults);
    plan.prompts.push_back(
        server::prepare_raw_prompt(request.prompts.front(), request.generation, model));
    plan.fields = std::move(request.generation);
  } else {
    server::ChatRequest request = server::read_chat_request(body, policy, model.defaults);
    plan.prompts.push_back(server::prepare_chat_prompt(request, model, policy));
    plan.fields = std::move(request.generation);
  }
  if (model.adapters != nullptr) plan.fields.model = kTerminalAdapter;
  server::complete_plan(plan, model, policy, {});
  return plan;
}

GenerationRequest make_request(const server::GenerationPlan& plan) {
  GenerationRequest request = server::engine_request(plan, 0);
  request.sampling.n = 1;
  return request;
}

/// Lets the calling thread wait for the engine's news.
struct Bell {
  std::mutex mutex;
  std::condition_variable rung;
  bool is_rung = false;

  void ring() {
    {
      const std::lock_guard lock(mutex);
      is_rung = true;
    }
    rung.notify_one();
  }
  void wait() {
    std::unique_lock lock(mutex);
    rung.wait_for(lock, kCancelPoll, [this] { return is_rung; });
    is_rung = false;
  }
};

}  // namespace

GenerationRequest prepare_locally(const server::ServingModel& model, const Json& body) {
  return make_request(make_plan(model, body));
}

LocalResult generate_locally(const server::ServingModel& model, const Json& body,
                             const std::function<void(std::string_view)>& on_text,
                             const std::atomic<bool>* cancel,
                             const std::function<void(std::string_view)>& on_reasoning) {
  const server::GenerationPlan plan = make_plan(model, body);
  const auto inbox = std::make_shared<server::UpdateInbox>(1);
  const auto bell = std::make_shared<Bell>();
  inbox->set_wake([bell] { bell->ring(); });

  GenerationRequest request = make_request(plan);
  request.on_update = [inbox](OutputUpdate&& update) { inbox->push(0, std::move(update)); };
  request.on_done = [inbox](const RequestStats& stats) { inbox->done(0, stats); };
  server::ChoiceOutput output(*model.tokenizer, server::text_options(plan.fields), 0);
  const Engine::Submitted submitted = model.engine->submit(std::move(request));
  if (submitted.refusal != SubmitRefusal::kNone) {
    throw Error(ErrorCode::kUnavailable, "the engine does not take requests");
  }

  LocalResult result;
  for (bool is_cancelled = false;;) {
    bell->wait();
    if (cancel != nullptr && *cancel && !std::exchange(is_cancelled, true)) {
      model.engine->abort(submitted.id);
    }
    server::UpdateInbox::News news = inbox->take();
    for (auto& [prompt, update] : news.updates) {
      if (update.finish_reason == FinishReason::kError)
        throw Error(update.error_code, update.error);
      if (output.add(std::move(update))) model.engine->stop_choice(submitted.id, 0);
    }
    if (output.is_ready(1)) {
      const server::ChoiceDelta delta = output.take();
      if (on_reasoning && !delta.reasoning.empty()) on_reasoning(delta.reasoning);
      if (on_text && !delta.text.empty()) on_text(delta.text);
      result.reasoning += delta.reasoning;
      result.text += delta.text;
    }
    if (news.all_done) break;
  }
  result.finish_reason = output.finish_reason();
  result.stats = inbox->stats().front();
  return result;
}

}  // namespace winnow::cli
