#include "server/responses/response_store.h"

#include <utility>
#include <vector>

namespace winnow::server {
namespace {

constexpr std::int64_t kEntryBytes = 512;  // of list, map and the strings' heads, roughly

std::int64_t size_of(const ResponseStore::Record& record) {
  return kEntryBytes + static_cast<std::int64_t>(2 * record.id.size() + record.caller.size() +
                                                 record.body.size());
}

void append_list(Json& out, const std::string& list) {
  for (Json& item : Json::parse(list)) out.push_back(std::move(item));
}

}  // namespace

ConversationTurn::ConversationTurn(std::shared_ptr<const ConversationTurn> before,
                                   std::string input, std::string output, Total total_bytes)
    : before_(std::move(before)),
      input_(std::move(input)),
      output_(std::move(output)),
      total_bytes_(std::move(total_bytes)) {
  *total_bytes_ += static_cast<std::int64_t>(input_.size() + output_.size()) + kEntryBytes;
}

ConversationTurn::~ConversationTurn() {
  *total_bytes_ -= static_cast<std::int64_t>(input_.size() + output_.size()) + kEntryBytes;
  // One by one: a chain of thousands would otherwise end in as many nested destructors.
  std::shared_ptr<const ConversationTurn> next = std::move(before_);
  while (next && next.use_count() == 1) {
    std::shared_ptr<const ConversationTurn> further = std::move(next->before_);
    next = std::move(further);
  }
}

Json ConversationTurn::items() const {
  std::vector<const ConversationTurn*> chain;
  for (const ConversationTurn* turn = this; turn != nullptr; turn = turn->before_.get()) {
    chain.push_back(turn);
  }
  Json out = Json::array();
  for (auto turn = chain.rbegin(); turn != chain.rend(); ++turn) {
    append_list(out, (*turn)->input_);
    append_list(out, (*turn)->output_);
  }
  return out;
}

Json ConversationTurn::input_items() const { return Json::parse(input_); }

void ResponseStore::begin(Record running) {
  const std::lock_guard lock(mutex_);
  if (const auto old = lookup(running.id); old != entries_.end()) remove(old);
  body_bytes_ += size_of(running);
  entries_.push_front({std::move(running), Clock::now()});
  by_id_[entries_.front().record.id] = entries_.begin();
  shrink();
}

void ResponseStore::finish(const std::string& id, std::string body,
                           std::shared_ptr<const ConversationTurn> turn) {
  const std::lock_guard lock(mutex_);
  const auto entry = lookup(id);
  if (entry == entries_.end()) return;
  Record& record = entry->record;
  body_bytes_ -= size_of(record);
  record.body = std::move(body);
  record.turn = std::move(turn);
  record.stop = nullptr;
  body_bytes_ += size_of(record);
  shrink();
}

void ResponseStore::forget(const std::string& id) {
  const std::lock_guard lock(mutex_);
  if (const auto entry = lookup(id); entry != entries_.end()) remove(entry);
}

std::optional<ResponseStore::Record> ResponseStore::find(const std::string& id,
                                                         std::string_view caller) {
  const std::lock_guard lock(mutex_);
  shrink();
  const auto entry = lookup(id);
  if (entry == entries_.end() || entry->record.caller != caller) return std::nullopt;
  entries_.splice(entries_.begin(), entries_, entry);
  return entry->record;
}

bool ResponseStore::erase(const std::string& id, std::string_view caller) {
  const std::lock_guard lock(mutex_);
  const auto entry = lookup(id);
  if (entry == entries_.end() || entry->record.caller != caller) return false;
  remove(entry);
  return true;
}

std::int64_t ResponseStore::num_bytes() const {
  const std::lock_guard lock(mutex_);
  return body_bytes_ + *turn_bytes_;
}

std::int64_t ResponseStore::num_responses() const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::int64_t>(entries_.size());
}

ResponseStore::Entries::iterator ResponseStore::lookup(const std::string& id) {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? entries_.end() : found->second;
}

void ResponseStore::remove(Entries::iterator entry) {
  body_bytes_ -= size_of(entry->record);
  by_id_.erase(entry->record.id);
  entries_.erase(entry);
}

void ResponseStore::shrink() {
  const auto oldest_allowed = Clock::now() - limits_.max_age;
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const auto next = std::next(entry);
    if (entry->made < oldest_allowed) remove(entry);
    entry = next;
  }
  while (!entries_.empty() && (static_cast<std::int64_t>(entries_.size()) > limits_.max_responses ||
                               body_bytes_ + *turn_bytes_ > limits_.max_bytes)) {
    remove(std::prev(entries_.end()));
  }
}

}  // namespace winnow::server
