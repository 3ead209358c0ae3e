#include "server/update_inbox.h"

#include <utility>

namespace winnow::server {
namespace {

std::int64_t size_of(const OutputUpdate& update) {
  std::size_t size = sizeof(update) + update.error.size();
  for (const SampledToken& token : update.tokens) {
    size += sizeof(token) + token.kept_blocks.size() * sizeof(std::int32_t);
    if (token.logprobs) {
      size += (token.logprobs->top.size() + token.logprobs->listed.size()) * sizeof(TokenLogprob);
    }
  }
  for (const auto& position : update.prompt_logprobs) {
    size += sizeof(position);
    if (position) size += position->top.size() * sizeof(TokenLogprob);
  }
  return static_cast<std::int64_t>(size);
}

}  // namespace

UpdateInbox::UpdateInbox(std::int32_t num_prompts, InboxLimits limits)
    : limits_(limits), stats_(static_cast<std::size_t>(num_prompts)), num_running_(num_prompts) {}

void UpdateInbox::push(std::int32_t prompt, OutputUpdate&& update) {
  std::unique_lock lock(mutex_);
  if (is_closed_ || has_overflown_) return;
  const std::int64_t num_bytes = size_of(update);
  queued_bytes_ += num_bytes;
  updates_.push_back({prompt, num_bytes, std::move(update)});
  if (queued_bytes_ > limits_.soft_bytes) {
    const auto now = Clock::now();
    if (!over_since_) over_since_ = now;
    if (queued_bytes_ > limits_.hard_bytes || now - *over_since_ > limits_.patience) {
      has_overflown_ = true;
      updates_.clear();
      is_wake_pending_ = false;  // a wake that was not answered yet does not know of this
    }
  }
  notify(lock);
}

void UpdateInbox::done(std::int32_t prompt, const RequestStats& stats) {
  std::unique_lock lock(mutex_);
  stats_[static_cast<std::size_t>(prompt)] = stats;
  --num_running_;
  if (!is_closed_) notify(lock);
}

void UpdateInbox::notify(std::unique_lock<std::mutex>& lock) {
  if (!wake_ || is_wake_pending_) return;
  is_wake_pending_ = true;
  const std::function<void()> wake = wake_;  // may be replaced while it runs
  lock.unlock();
  wake();
}

void UpdateInbox::set_wake(std::function<void()> wake) {
  const std::lock_guard lock(mutex_);
  wake_ = std::move(wake);
}

UpdateInbox::News UpdateInbox::take(std::int64_t max_bytes) {
  const std::lock_guard lock(mutex_);
  is_wake_pending_ = false;
  News news;
  std::int64_t taken = 0;
  while (!updates_.empty() && (taken == 0 || taken < max_bytes)) {
    Queued& oldest = updates_.front();
    taken += oldest.num_bytes;
    news.updates.emplace_back(oldest.prompt, std::move(oldest.update));
    updates_.pop_front();
  }
  queued_bytes_ -= taken;
  if (queued_bytes_ <= limits_.soft_bytes) over_since_.reset();
  news.has_more = !updates_.empty();
  news.all_done = num_running_ == 0 && !news.has_more;
  return news;
}

void UpdateInbox::close() {
  const std::lock_guard lock(mutex_);
  is_closed_ = true;
  wake_ = nullptr;
  updates_.clear();
}

}  // namespace winnow::server
