#include "grammar/grammar_compiler.h"

#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <future>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "grammar/compiled_grammar_impl.h"
#include "text/tokenizer.h"

namespace winnow {
namespace {

using Compiled = std::shared_ptr<const CompiledGrammar>;

using Clock = std::chrono::steady_clock;

// How long the end of a server may take.
constexpr std::chrono::seconds kMaxStop{10};

// Of a kept grammar beside its text: nodes of map and list, shared state, roughly.
constexpr std::int64_t kEntryBytes = 512;

// Nested deeper, a grammar would not fit a thread's stack.
constexpr int kMaxRecursion = 1000;

std::string key_of(const GrammarSource& source) {
  std::string key;
  key.push_back(static_cast<char>('0' + static_cast<int>(source.kind)));
  key.push_back(source.any_whitespace ? 'w' : '-');
  key.push_back(source.allows_markers ? 'm' : '-');
  return key + source.text;
}

/// XGrammar's reasons start with a time, a file and a line of its own.
std::string reason_of(const std::exception& error) {
  std::string text = error.what();
  if (text.starts_with('[')) {
    const std::size_t file = text.find(".cc:");
    const std::size_t colon = file == std::string::npos ? file : text.find(": ", file);
    if (colon != std::string::npos) text.erase(0, colon + 2);
  }
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  constexpr std::size_t kMaxReason = 500;
  if (text.size() > kMaxReason) text = text.substr(0, kMaxReason) + "…";
  return text.empty() ? "it cannot be compiled" : text;
}

}  // namespace

class GrammarCompiler::Impl : public std::enable_shared_from_this<GrammarCompiler::Impl> {
 public:
  Impl(const Tokenizer& tokenizer, std::int32_t vocab_size, std::vector<TokenId> stop_ids,
       const GrammarLimits& limits)
      : limits_(limits),
        tokenizer_(tokenizer),
        vocab_size_(vocab_size),
        stop_ids_(std::move(stop_ids)) {}

  /// Once, by the owner.
  void stop() {
    std::unique_lock lock(mutex_);
    is_stopping_ = true;
    wake_.notify_all();
    ended_.wait_for(lock, kMaxStop, [this] { return num_live_ == 0; });
    for (const Running& running : running_) {
      spdlog::error("a grammar has been compiling for {:.0f} s and is left behind",
                    running.seconds());
    }
    join_ended();
    // The end of the process must not wait for a grammar. Each thread keeps this object alive.
    for (std::thread& thread : threads_) thread.detach();
    threads_.clear();
  }

  Compiled compile(const GrammarSource& source) {
    if (source.text.size() > limits_.max_source_bytes) {
      throw Error(ErrorCode::kInvalidArgument, "it has " + std::to_string(source.text.size()) +
                                                   " bytes, at most " +
                                                   std::to_string(limits_.max_source_bytes));
    }
    const std::shared_future<Compiled> done = find_or_queue(source);
    if (done.wait_for(limits_.max_wait) != std::future_status::ready) {
      const std::lock_guard lock(mutex_);
      note_overdue();
      fail_overdue();
    }
    return done.get();
  }

  Counts counts() {
    const std::lock_guard lock(mutex_);
    note_overdue();
    Counts counts = counts_;
    counts.num_cached = static_cast<std::int64_t>(entries_.size());
    counts.num_overdue = num_overdue_;
    counts.num_threads = std::ssize(threads_) + std::ssize(ended_threads_);
    return counts;
  }

 private:
  struct Entry {
    std::shared_future<Compiled> done;
    std::int64_t num_bytes = 0;              // 0 while being compiled
    std::list<std::string>::iterator usage;  // in usage_
  };
  struct Job {
    GrammarSource source;
    std::promise<Compiled> promise;
  };
  struct Running {
    std::string key;
    Clock::time_point begun;
    bool is_overdue = false;

    double seconds() const { return std::chrono::duration<double>(Clock::now() - begun).count(); }
  };

  [[noreturn]] void fail_overdue() const {
    throw Error(ErrorCode::kInvalidArgument,
                "it was not compiled within " + std::to_string(limits_.max_wait.count()) + " ms",
                "make it simpler");
  }

  /// Under mutex_, as all below up to work().
  void note_overdue() {
    for (Running& running : running_) {
      if (running.is_overdue || Clock::now() - running.begun < limits_.max_wait) continue;
      running.is_overdue = true;
      ++num_overdue_;
      // The key is the client's text: its size says enough.
      spdlog::warn(
          "a grammar of {} bytes has been compiling for {:.1f} s: {} of {} threads overdue",
          running.key.size(), running.seconds(), num_overdue_, max_threads());
    }
  }

  int max_threads() const { return 2 * limits_.num_threads; }

  /// A thread that nobody joined keeps its stack. Those here need mutex_ no more.
  void join_ended() {
    for (std::thread& thread : ended_threads_) thread.join();
    ended_threads_.clear();
  }

  void add_threads() {
    join_ended();
    while (num_live_ - num_overdue_ < limits_.num_threads && num_live_ < max_threads()) {
      threads_.emplace_back([self = shared_from_this()] { self->work(); });
      ++num_live_;
    }
    if (num_live_ == num_overdue_) {
      throw Error(ErrorCode::kQueueFull, "grammars that take too long hold up all others",
                  "retry later");
    }
  }

  bool is_overdue(const std::string& key) const {
    return std::ranges::any_of(
        running_, [&](const Running& one) { return one.is_overdue && one.key == key; });
  }

  std::shared_future<Compiled> find_or_queue(const GrammarSource& source) {
    const std::string key = key_of(source);
    const std::lock_guard lock(mutex_);
    note_overdue();
    if (const auto found = entries_.find(key); found != entries_.end()) {
      if (is_overdue(key)) fail_overdue();
      ++counts_.num_hits;
      usage_.splice(usage_.begin(), usage_, found->second.usage);
      return found->second.done;
    }
    if (std::ssize(jobs_) >= limits_.max_queued) {
      throw Error(ErrorCode::kQueueFull, "too many grammars wait to be compiled", "retry later");
    }
    add_threads();
    jobs_.push_back({source, {}});
    usage_.push_front(key);
    Entry& entry = entries_[key];
    entry = {.done = jobs_.back().promise.get_future().share(), .usage = usage_.begin()};
    wake_.notify_one();
    return entry.done;
  }

  void work() {
    std::unique_lock lock(mutex_);
    // Ends also when it was replaced.
    while (!is_stopping_ && num_live_ - num_overdue_ <= limits_.num_threads) {
      if (jobs_.empty()) {
        wake_.wait(lock);
        continue;
      }
      Job job = std::move(jobs_.front());
      jobs_.pop_front();
      running_.push_front({.key = key_of(job.source), .begun = Clock::now()});
      const auto running = running_.begin();
      lock.unlock();
      run(job);
      lock.lock();
      if (running->is_overdue) {
        --num_overdue_;
        spdlog::warn("the grammar of {} bytes is done after {:.1f} s", running->key.size(),
                     running->seconds());
      }
      running_.erase(running);
    }
    --num_live_;
    const auto own = std::ranges::find(threads_, std::this_thread::get_id(), &std::thread::get_id);
    if (own != threads_.end()) ended_threads_.splice(ended_threads_.end(), threads_, own);
    ended_.notify_all();
  }

  void run(Job& job) {
    const std::string key = key_of(job.source);
    try {
      Compiled compiled = compile_now(job.source);
      keep(key, compiled->num_bytes());
      job.promise.set_value(std::move(compiled));
    } catch (const std::exception& error) {
      forget(key);
      job.promise.set_exception(
          std::make_exception_ptr(Error(ErrorCode::kInvalidArgument, reason_of(error))));
    }
  }

  Compiled compile_now(const GrammarSource& source) {
    xgrammar::GrammarCompiler& compiler = compiler_for(source.allows_markers);
    auto impl = std::make_unique<CompiledGrammar::Impl>(CompiledGrammar::Impl{
        .grammar = compile_with(compiler, source), .vocabulary = vocabulary_});
    return std::make_shared<const CompiledGrammar>(std::move(impl));
  }

  static xgrammar::CompiledGrammar compile_with(xgrammar::GrammarCompiler& compiler,
                                                const GrammarSource& source) {
    switch (source.kind) {
      case GrammarKind::kRegex:
        return compiler.CompileRegex(source.text);
      case GrammarKind::kEbnf:
        return compiler.CompileGrammar(source.text);
      case GrammarKind::kLark:
        return compiler.CompileLark(source.text);
      case GrammarKind::kStructuralTag:
        return compiler.CompileStructuralTag(source.text);
      case GrammarKind::kJsonSchema:
        break;
    }
    return compiler.CompileJSONSchema(
        source.text, source.any_whitespace, /*indent=*/std::nullopt, /*separators=*/std::nullopt,
        /*strict_mode=*/true, source.any_whitespace ? std::optional(kMaxJsonBlanks) : std::nullopt);
  }

  /// Two, as the marker tokens are text in one and nothing in the other; made when first needed.
  xgrammar::GrammarCompiler& compiler_for(bool with_markers) {
    const std::lock_guard lock(compilers_mutex_);
    if (!vocabulary_) {
      xgrammar::SetMaxRecursionDepth(kMaxRecursion);
      vocabulary_ = std::make_shared<const GrammarVocabulary>(tokenizer_, vocab_size_, stop_ids_);
    }
    std::optional<xgrammar::GrammarCompiler>& compiler = compilers_[with_markers ? 1 : 0];
    if (!compiler) {
      const xgrammar::TokenizerInfo info(vocabulary_->texts(with_markers), xgrammar::VocabType::RAW,
                                         vocab_size_, stop_ids_);
      const int num_threads =
          std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 2, 1, 8);
      compiler.emplace(info, num_threads, /*cache_enabled=*/false);
    }
    return *compiler;
  }

  void keep(const std::string& key, std::int64_t grammar_bytes) {
    // The text is kept twice, and may be much larger than what it compiles to.
    const std::int64_t num_bytes = grammar_bytes + 2 * std::ssize(key) + kEntryBytes;
    const std::lock_guard lock(mutex_);
    ++counts_.num_compiled;
    entries_.at(key).num_bytes = num_bytes;
    counts_.cached_bytes += num_bytes;
    for (auto oldest = usage_.end(); counts_.cached_bytes > limits_.max_cache_bytes;) {
      if (oldest == usage_.begin()) break;
      --oldest;
      const auto entry = entries_.find(*oldest);
      if (entry->second.num_bytes == 0 || *oldest == key) continue;
      counts_.cached_bytes -= entry->second.num_bytes;
      entries_.erase(entry);
      oldest = usage_.erase(oldest);
    }
  }

  void forget(const std::string& key) {
    const std::lock_guard lock(mutex_);
    usage_.erase(entries_.at(key).usage);
    entries_.erase(key);
  }

  const GrammarLimits limits_;
  const Tokenizer& tokenizer_;
  const std::int32_t vocab_size_;
  const std::vector<TokenId> stop_ids_;

  std::mutex compilers_mutex_;
  std::shared_ptr<const GrammarVocabulary> vocabulary_;
  std::optional<xgrammar::GrammarCompiler> compilers_[2];

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job> jobs_;
  std::map<std::string, Entry, std::less<>> entries_;
  std::list<std::string> usage_;  // keys, the last used first
  Counts counts_;
  bool is_stopping_ = false;
  std::list<Running> running_;
  std::list<std::thread> threads_;
  std::list<std::thread> ended_threads_;  // replaced ones, until they are joined
  int num_live_ = 0;                      // of threads_
  int num_overdue_ = 0;                   // of running_
  std::condition_variable ended_;
};

GrammarCompiler::GrammarCompiler(const Tokenizer& tokenizer, std::int32_t vocab_size,
                                 std::vector<TokenId> stop_ids, const GrammarLimits& limits)
    : impl_(std::make_shared<Impl>(tokenizer, vocab_size, std::move(stop_ids), limits)) {}

GrammarCompiler::~GrammarCompiler() { impl_->stop(); }

std::shared_ptr<const CompiledGrammar> GrammarCompiler::compile(const GrammarSource& source) {
  return impl_->compile(source);
}

GrammarCompiler::Counts GrammarCompiler::counts() const { return impl_->counts(); }

}  // namespace winnow
