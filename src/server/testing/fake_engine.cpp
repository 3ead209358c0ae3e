#include "server/testing/fake_engine.h"

#include <cmath>
#include <limits>
#include <utility>

namespace winnow::server::testing {

struct FakeEngine::Running {
  RequestId id = 0;
  GenerationRequest request;
  struct Choice {
    std::size_t position = 0;
    FinishReason end = FinishReason::kNone;  // asked for from outside
    bool is_finished = false;
  };
  std::vector<Choice> choices;
  RequestStats stats;
  bool is_started = false;
};

FakeEngine::FakeEngine(FakeEngineOptions options) : options_(std::move(options)) {
  stats_.num_blocks = stats_.num_free_blocks = 64;
  thread_ = std::thread([this] { work(); });
}

FakeEngine::~FakeEngine() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

Engine::Submitted FakeEngine::submit(GenerationRequest request) {
  const std::lock_guard lock(mutex_);
  if (static_cast<std::int32_t>(running_.size()) >= options_.max_queued) {
    return {.refusal = SubmitRefusal::kQueueFullRequests, .id = 0};
  }
  Running running;
  running.id = next_id_++;
  running.choices.resize(static_cast<std::size_t>(request.sampling.n));
  running.stats.arrival = Clock::now();
  running.stats.num_prompt_tokens = static_cast<std::int32_t>(request.prompt.size());
  stats_.prompt_tokens += running.stats.num_prompt_tokens;
  last_ = request;
  last_.on_update = nullptr;
  last_.on_done = nullptr;
  running.request = std::move(request);
  running_.push_back(std::move(running));
  ++stats_.num_running;
  --stats_.num_free_blocks;
  changed_.notify_all();
  return {.refusal = SubmitRefusal::kNone, .id = next_id_ - 1};
}

void FakeEngine::abort(RequestId id) {
  const std::lock_guard lock(mutex_);
  for (Running& running : running_) {
    if (running.id != id) continue;
    ++num_aborted_;
    for (auto& choice : running.choices) choice.end = FinishReason::kAbort;
  }
  changed_.notify_all();
}

void FakeEngine::abort_all() {
  const std::lock_guard lock(mutex_);
  for (Running& running : running_) {
    for (auto& choice : running.choices) choice.end = FinishReason::kAbort;
  }
  changed_.notify_all();
}

void FakeEngine::stop_choice(RequestId id, std::int32_t choice) {
  const std::lock_guard lock(mutex_);
  for (Running& running : running_) {
    if (running.id == id) {
      running.choices[static_cast<std::size_t>(choice)].end = FinishReason::kStop;
    }
  }
  changed_.notify_all();
}

EngineStats FakeEngine::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void FakeEngine::release() {
  const std::lock_guard lock(mutex_);
  options_.hold = false;
  changed_.notify_all();
}

void FakeEngine::break_down() {
  const std::lock_guard lock(mutex_);
  stats_.is_broken = true;
}

int FakeEngine::num_aborted() const {
  const std::lock_guard lock(mutex_);
  return num_aborted_;
}

GenerationRequest FakeEngine::last_request() const {
  const std::lock_guard lock(mutex_);
  return last_;
}

void FakeEngine::work() {
  std::unique_lock lock(mutex_);
  while (!is_stopping_) {
    if (running_.empty()) {
      changed_.wait(lock);
      continue;
    }
    changed_.wait_for(lock, options_.step, [this] { return is_stopping_; });
    for (auto it = running_.begin(); it != running_.end();) {
      step(*it);
      bool is_done = true;
      for (const auto& choice : it->choices) is_done = is_done && choice.is_finished;
      if (!is_done) {
        ++it;
        continue;
      }
      it->stats.finished = Clock::now();
      it->request.on_done(it->stats);
      it = running_.erase(it);
      --stats_.num_running;
      ++stats_.num_free_blocks;
    }
  }
}

void FakeEngine::step(Running& running) {
  const auto now = Clock::now();
  for (std::size_t c = 0; c < running.choices.size(); ++c) {
    auto& choice = running.choices[c];
    if (choice.is_finished) continue;
    OutputUpdate update;
    update.choice = static_cast<std::int32_t>(c);
    if (options_.fail_steps) {
      update.finish_reason = FinishReason::kError;
      update.error = "the step failed";
    } else if (choice.end != FinishReason::kNone) {
      update.finish_reason = choice.end;
    } else if (options_.hold) {
      continue;
    } else {
      if (!std::exchange(running.is_started, true)) {
        running.stats.first_scheduled = running.stats.first_token = now;
        if (running.request.sampling.prompt_logprobs) {
          for (const TokenId token : running.request.prompt) {
            update.prompt_logprobs.emplace_back(PositionLogprobs{
                .chosen = {token, -0.5F, 1}, .top = {{token, -0.5F, 1}}, .listed = {}});
          }
          update.prompt_logprobs.front().reset();
        }
      }
      const SamplingParams& sampling = running.request.sampling;
      const auto limit = static_cast<std::size_t>(sampling.max_tokens);
      if (choice.position < limit) {
        const bool is_end = choice.position >= options_.answer.size();
        SampledToken sampled;
        sampled.token = is_end && !sampling.ignore_eos
                            ? options_.eos
                            : options_.answer[choice.position % options_.answer.size()];
        if (sampling.logprobs) {
          sampled.logprobs =
              PositionLogprobs{.chosen = {sampled.token, -0.25F, 1}, .top = {}, .listed = {}};
          for (std::int32_t i = 0; i < *sampling.logprobs; ++i) {
            const float value = i == 0 ? -0.25F : -std::numeric_limits<float>::infinity();
            sampled.logprobs->top.push_back({(sampled.token + i) % options_.vocab_size, value, i});
          }
        }
        if (static_cast<std::int32_t>(choice.position) < running.request.num_block_selections) {
          sampled.kept_blocks = {0, static_cast<std::int32_t>(choice.position), 1, -1};
        }
        if (is_end && !sampling.ignore_eos) update.finish_reason = FinishReason::kStop;
        for (const TokenId stop : sampling.stop_token_ids) {
          if (stop == sampled.token) {
            update.finish_reason = FinishReason::kStop;
            update.stop_token = stop;
          }
        }
        update.tokens.push_back(std::move(sampled));
        ++running.stats.num_output_tokens;
        ++stats_.generation_tokens;
      }
      ++choice.position;
      if (update.finish_reason == FinishReason::kNone && choice.position >= limit) {
        update.finish_reason = FinishReason::kLength;
      }
    }
    choice.is_finished = update.finish_reason != FinishReason::kNone;
    running.request.on_update(std::move(update));
  }
}

}  // namespace winnow::server::testing
