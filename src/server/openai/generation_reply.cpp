#include "server/openai/generation_reply.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "server/error_body.h"
#include "server/openai/request_times.h"
#include "server/sse.h"
#include "server/update_inbox.h"

namespace winnow::server {
namespace {

constexpr std::int64_t kMaxTakenBytes = 64 << 10;  // of updates; some 500 KB of JSON

/// Lives on the engine thread's side: notes times for the metrics on the way to the inbox.
class EngineSide {
 public:
  EngineSide(std::shared_ptr<UpdateInbox> inbox, ServerMetrics* metrics, std::int32_t prompt,
             RequestShape shape)
      : inbox_(std::move(inbox)),
        metrics_(metrics),
        prompt_(prompt),
        shape_(shape),
        choices_(static_cast<std::size_t>(shape.n)) {}

  void on_update(OutputUpdate&& update) {
    Choice& choice = choices_[static_cast<std::size_t>(update.choice)];
    if (metrics_ != nullptr) {
      const auto now = Clock::now();
      if (!update.tokens.empty()) {
        if (choice.num_tokens > 0) {
          metrics_->on_inter_token_latency(
              std::chrono::duration<double>(now - choice.last_token).count());
        }
        choice.last_token = now;
        choice.num_tokens += static_cast<std::int32_t>(update.tokens.size());
        shape_.max_generated = std::max(shape_.max_generated, choice.num_tokens);
      }
      metrics_->on_choice_finished(update.finish_reason);
    }
    inbox_->push(prompt_, std::move(update));
  }

  void on_done(const RequestStats& stats) {
    if (metrics_ != nullptr) metrics_->on_request_done(stats, shape_);
    inbox_->done(prompt_, stats);
  }

 private:
  struct Choice {
    Clock::time_point last_token;
    std::int32_t num_tokens = 0;
  };
  std::shared_ptr<UpdateInbox> inbox_;
  ServerMetrics* metrics_;
  std::int32_t prompt_;
  RequestShape shape_;
  std::vector<Choice> choices_;
};

[[noreturn]] void throw_refusal(SubmitRefusal refusal) {
  switch (refusal) {
    case SubmitRefusal::kQueueFullRequests:
      throw Error(ErrorCode::kQueueFull, "the server's queue is full (--max-num-queued-reqs)",
                  "retry later");
    case SubmitRefusal::kQueueFullTokens:
      throw Error(ErrorCode::kQueueFull, "the server's queue is full (--max-num-queued-tokens)",
                  "retry later");
    case SubmitRefusal::kDraining:
      throw Error(ErrorCode::kUnavailable, "the server is shutting down", "retry elsewhere");
    case SubmitRefusal::kBroken:
    case SubmitRefusal::kNone:
      break;
  }
  throw Error(ErrorCode::kUnavailable, "the engine has failed", "restart the server");
}

class GenerationReply final : public PendingReply {
 public:
  GenerationReply(GenerationPlan plan, const ReplyContext& context)
      : plan_(std::move(plan)),
        context_(context),
        inbox_(std::make_shared<UpdateInbox>(static_cast<std::int32_t>(plan_.prompts.size()))) {
    ++*context_.num_in_flight;
  }
  ~GenerationReply() override {
    cancel();
    --*context_.num_in_flight;
  }

  void submit() {
    const SamplingParams& sampling = plan_.fields.sampling;
    const TextOptions options = text_options(plan_.fields);
    for (std::size_t p = 0; p < plan_.prompts.size(); ++p) {
      for (std::int32_t c = 0; c < sampling.n; ++c) {
        choices_.emplace_back(*context_.model->tokenizer, options,
                              static_cast<std::int32_t>(p) * sampling.n + c);
      }
      usage_.prompt_tokens += static_cast<std::int64_t>(plan_.prompts[p].tokens.size());
      submit_prompt(static_cast<std::int32_t>(p));
    }
    are_prompts_set_ = !sampling.prompt_logprobs;
    if (are_prompts_set_) set_prompts();
  }

  void start(std::function<void()> wake) override { inbox_->set_wake(std::move(wake)); }

  Output take() override {
    Output output;
    if (is_finished_) return output;
    UpdateInbox::News news = inbox_->take(kMaxTakenBytes);
    if (inbox_->has_overflown()) return overflow();
    for (auto& [prompt, update] : news.updates) {
      if (!accept(prompt, std::move(update))) return fail();
    }
    if (plan_.fields.stream) {
      if (!std::exchange(is_head_sent_, true)) {
        output.head =
            HttpResponse{.content_type = std::string(kSseContentType),
                         .headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}}};
        output.is_stream = true;
        plan_.format->stream_open(output.stream_bytes, usage_);
      }
      write_deltas(output.stream_bytes);
    }
    output.has_more = news.has_more;
    if (news.all_done) finish(output);
    return output;
  }

  void cancel() override {
    inbox_->close();
    if (is_finished_) return;
    is_finished_ = true;
    for (const RequestId id : ids_) context_.model->engine->abort(id);
  }

  void end_early() override {
    for (const RequestId id : ids_) context_.model->engine->abort(id);  // set once, by submit()
  }

  std::string keep_alive_bytes() const override {
    return plan_.fields.stream ? plan_.format->keep_alive() : std::string();
  }
  bool has_overflown() const override { return inbox_->has_overflown(); }

  std::vector<LogField> log_fields() const override {
    std::vector<LogField> fields;
    if (!plan_.trace_id.empty()) fields.push_back({"trace_id", plan_.trace_id});
    fields.push_back({"prompt_tokens", usage_.prompt_tokens});
    fields.push_back({"output_tokens", usage_so_far().completion_tokens});
    if (choices_.size() != 1) return fields;
    const FinishReason reason = choices_.front().finish_reason();
    fields.push_back({"finish_reason", std::string(reason == FinishReason::kNone
                                                       ? finish_reason_name(FinishReason::kAbort)
                                                       : finish_reason_name(reason))});
    if (is_done_) add_log_fields(inbox_->stats().front(), fields);
    return fields;
  }

 private:
  void submit_prompt(std::int32_t prompt) {
    const SamplingParams& sampling = plan_.fields.sampling;
    auto side = std::make_shared<EngineSide>(
        inbox_, context_.metrics, prompt,
        RequestShape{.n = sampling.n, .max_tokens = sampling.max_tokens});
    GenerationRequest request = engine_request(plan_, static_cast<std::size_t>(prompt));
    request.on_update = [side](OutputUpdate&& update) { side->on_update(std::move(update)); };
    request.on_done = [side](const RequestStats& stats) { side->on_done(stats); };
    const Engine::Submitted submitted = context_.model->engine->submit(std::move(request));
    if (submitted.refusal != SubmitRefusal::kNone) {
      if (context_.metrics != nullptr) context_.metrics->on_rejected(submitted.refusal);
      throw_refusal(submitted.refusal);  // the destructor aborts what was submitted before
    }
    if (context_.metrics != nullptr) context_.metrics->on_submitted();
    ids_.push_back(submitted.id);
  }

  void set_prompts() {
    for (std::size_t p = 0; p < plan_.prompts.size(); ++p) {
      PreparedPrompt& prompt = plan_.prompts[p];
      plan_.format->set_prompt(
          static_cast<std::int32_t>(p),
          {.tokens = prompt.tokens, .text = prompt.text, .echoed = prompt.echoed, .logprobs = {}});
    }
  }

  /// False when the whole reply has to fail (failure_ says how).
  bool accept(std::int32_t prompt, OutputUpdate&& update) {
    if (update.finish_reason == FinishReason::kError) {
      failure_ = error_response(Error(update.error_code, update.error));
      return false;
    }
    if (update.finish_reason == FinishReason::kAbort && *context_.is_stopping) {
      failure_ = error_response(503, "the server is shutting down");
      return false;
    }
    if (!update.prompt_logprobs.empty()) {
      PreparedPrompt& prepared = plan_.prompts[static_cast<std::size_t>(prompt)];
      plan_.format->set_prompt(prompt, {.tokens = prepared.tokens,
                                        .text = prepared.text,
                                        .echoed = prepared.echoed,
                                        .logprobs = std::move(update.prompt_logprobs)});
    }
    const std::int32_t choice_of_prompt = update.choice;
    ChoiceOutput& choice = choices_[static_cast<std::size_t>(prompt) *
                                        static_cast<std::size_t>(plan_.fields.sampling.n) +
                                    static_cast<std::size_t>(choice_of_prompt)];
    if (choice.add(std::move(update))) {
      context_.model->engine->stop_choice(ids_[static_cast<std::size_t>(prompt)], choice_of_prompt);
    }
    return true;
  }

  Usage usage_so_far() const {
    Usage usage = usage_;
    if (plan_.fields.reasoning) usage.reasoning_tokens = 0;
    for (const ChoiceOutput& choice : choices_) {
      usage.completion_tokens += choice.num_tokens();
      if (usage.reasoning_tokens) *usage.reasoning_tokens += choice.num_reasoning_tokens();
    }
    return usage;
  }

  Usage final_usage() const {
    Usage usage = usage_so_far();
    if (plan_.cached_tokens_in_usage) {
      usage.cached_tokens = 0;
      for (const RequestStats& stats : inbox_->stats()) {
        *usage.cached_tokens += stats.num_cached_tokens;
      }
    }
    return usage;
  }

  void write_deltas(std::string& out) {
    is_written_.resize(choices_.size(), false);
    for (std::size_t i = 0; i < choices_.size(); ++i) {
      ChoiceOutput& choice = choices_[i];
      if (is_written_[i] || !choice.is_ready(plan_.fields.stream_interval)) continue;
      is_written_[i] = choice.is_finished();
      std::optional<Usage> usage;
      if (plan_.fields.continuous_usage) usage = usage_so_far();
      plan_.format->stream_delta(out, choice.take(), usage);
    }
  }

  void finish(Output& output) {
    is_finished_ = true;
    is_done_ = true;
    output.finished = true;
    if (plan_.fields.stream) {
      Json metrics = metrics_of_request();
      if (!metrics.is_null()) plan_.format->set_metrics(std::move(metrics));
      plan_.format->stream_end(output.stream_bytes, final_usage());
      return;
    }
    for (ChoiceOutput& choice : choices_) plan_.format->collect(choice.take());
    output.head = HttpResponse{.body = plan_.format->body(final_usage(), metrics_of_request())};
    if (!plan_.fields.return_metrics) return;
    const std::string timing = server_timing(inbox_->stats().front());
    if (!timing.empty()) output.head->headers.emplace_back("Server-Timing", timing);
  }

  /// Null where they are not wanted, and for several choices: whose would they be?
  Json metrics_of_request() const {
    Json metrics;
    if (choices_.size() != 1) return metrics;
    const RequestStats& stats = inbox_->stats().front();
    if (plan_.fields.return_metrics) metrics = metrics_json(stats);
    Json drafts =
        speculation_json(stats, context_.model->num_speculative_tokens, plan_.fields.draft_report);
    if (!drafts.is_null()) metrics["speculative_decoding"] = std::move(drafts);
    return metrics;
  }

  /// Ends with failure_: as the response when nothing was sent, else as an event.
  Output fail() {
    cancel();
    Output output;
    output.finished = true;
    if (!is_head_sent_) {
      output.head = plan_.format->failure(*failure_);
      return output;
    }
    plan_.format->stream_failure(output.stream_bytes, *failure_);
    return output;
  }

  Output overflow() {
    failure_ = error_response(503, "the client reads too slowly; its request was ended");
    return fail();
  }

  GenerationPlan plan_;
  ReplyContext context_;
  std::shared_ptr<UpdateInbox> inbox_;
  std::vector<RequestId> ids_;
  std::vector<ChoiceOutput> choices_;
  std::vector<bool> is_written_;
  Usage usage_;
  std::optional<HttpResponse> failure_;
  bool are_prompts_set_ = false;
  bool is_head_sent_ = false;
  bool is_finished_ = false;
  bool is_done_ = false;  // every choice has ended, the times are known
};

}  // namespace

GenerationRequest engine_request(const GenerationPlan& plan, std::size_t prompt) {
  GenerationRequest request;
  request.prompt = plan.prompts[prompt].tokens;
  request.sampling = plan.fields.sampling;
  request.sampling.bad_words = plan.bad_words;
  request.num_block_selections = plan.fields.num_block_selections;
  request.priority = plan.fields.priority;
  request.cache_salt = plan.fields.cache_salt;
  if (plan.adapter != nullptr) {
    request.adapter = plan.adapter->weights;
    request.adapter_name = plan.adapter->name;
  }
  request.fairness_key = plan.fairness_key;
  request.deadline = plan.deadline;
  request.token_filter = plan.token_filter;
  return request;
}

std::shared_ptr<PendingReply> start_generation(GenerationPlan plan, const ReplyContext& context) {
  auto reply = std::make_shared<GenerationReply>(std::move(plan), context);
  reply->submit();
  return reply;
}

}  // namespace winnow::server
