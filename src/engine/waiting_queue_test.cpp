#include "engine/waiting_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace winnow {
namespace {

/// Requests with one sequence each, whose cost is the length of the prompt.
class WaitingQueueTest : public ::testing::Test {
 protected:
  static WaitingQueue::Options options(bool use_priority, bool is_fair) {
    return {.order = {.use_priority = use_priority},
            .is_fair = is_fair,
            .quantum = 100,
            .cost = [](Sequence& sequence) { return sequence.num_tokens(); }};
  }

  Sequence& make(std::string key, std::int32_t cost, std::int32_t priority = 0) {
    requests_.push_back(std::make_unique<RequestState>());
    RequestState& request = *requests_.back();
    request.id = requests_.size();
    request.request.fairness_key = std::move(key);
    request.request.priority = priority;
    request.sequences.push_back(std::make_unique<Sequence>());
    request.lead().request = &request;
    request.lead().tokens.resize(static_cast<std::size_t>(cost));
    return request.lead();
  }

  static std::vector<RequestId> pop_all(WaitingQueue& queue) {
    std::vector<RequestId> order;
    while (!queue.empty()) {
      const Sequence& next = queue.peek();
      EXPECT_EQ(&next, &queue.peek());
      EXPECT_EQ(&next, &queue.pop());
      order.push_back(next.request->id);
    }
    return order;
  }

  std::vector<std::unique_ptr<RequestState>> requests_;
};

TEST_F(WaitingQueueTest, WithoutFairnessOrPriorityIsFirstComeFirstServed) {
  WaitingQueue queue(options(false, false));
  for (const char* key : {"a", "b", "a", "c"}) queue.push(make(key, 10, 5 - (key[0] - 'a')));
  EXPECT_EQ(pop_all(queue), (std::vector<RequestId>{1, 2, 3, 4}));
}

TEST_F(WaitingQueueTest, LowerPriorityValuesComeFirst) {
  WaitingQueue queue(options(true, true));
  for (const std::int32_t priority : {3, -1, 3, 0, -1}) queue.push(make("a", 10, priority));
  EXPECT_EQ(pop_all(queue), (std::vector<RequestId>{2, 5, 4, 1, 3}));
}

TEST_F(WaitingQueueTest, ResumedOnesComeBeforeNewOnesByArrival) {
  WaitingQueue queue(options(false, true));
  Sequence& first = make("a", 10);
  Sequence& second = make("a", 10);
  queue.push(make("a", 10));
  queue.push_resumed(second);
  queue.push_resumed(first);
  EXPECT_EQ(pop_all(queue), (std::vector<RequestId>{1, 2, 3}));
}

TEST_F(WaitingQueueTest, FiveHundredRequestsOfOneClientDoNotBlockAnother) {
  WaitingQueue queue(options(false, true));
  for (int i = 0; i < 500; ++i) queue.push(make("flood", 50));
  queue.push(make("other", 50));
  const std::vector<RequestId> order = pop_all(queue);
  const auto at = std::ranges::find(order, RequestId{501}) - order.begin();
  EXPECT_LE(at, 3);
}

TEST_F(WaitingQueueTest, OneHugePromptWaitsUntilItsClientHasPaidForIt) {
  WaitingQueue queue(options(false, true));
  queue.push(make("huge", 900'000));
  for (int i = 0; i < 1000; ++i) queue.push(make("small", 100));
  const std::vector<RequestId> order = pop_all(queue);
  EXPECT_EQ(order.back(), 1U);  // 1,000 small ones cost less than the huge one
}

TEST_F(WaitingQueueTest, ClientsGetEqualSharesOfTokens) {
  WaitingQueue queue(options(false, true));
  std::mt19937_64 random(1);
  for (int i = 0; i < 300; ++i) {
    queue.push(make("long", 400));
    for (int j = 0; j < 10; ++j) queue.push(make("short", 40));
    queue.push(make("mixed", 1 + static_cast<std::int32_t>(random() % 799)));
  }
  std::map<std::string, std::int64_t> served;
  for (int i = 0; i < 1200; ++i) {
    const Sequence& next = queue.pop();
    served[next.request->request.fairness_key] += next.num_tokens();
  }
  for (const auto& [key, tokens] : served) {
    EXPECT_NEAR(static_cast<double>(tokens), static_cast<double>(served["long"]), 1000.0) << key;
  }
}

TEST_F(WaitingQueueTest, SurvivesRandomPushesPopsAndRemovals) {
  std::mt19937_64 random(2);
  WaitingQueue queue(options(true, true));
  std::vector<Sequence*> inside;
  for (int round = 0; round < 20000; ++round) {
    const auto choice = random() % 4;
    if (choice <= 1) {
      Sequence& sequence = make(std::string(1, static_cast<char>('a' + random() % 5)),
                                1 + static_cast<std::int32_t>(random() % 1000),
                                static_cast<std::int32_t>(random() % 3));
      random() % 4 == 0 ? queue.push_resumed(sequence) : queue.push(sequence);
      inside.push_back(&sequence);
    } else if (!inside.empty()) {
      if (choice == 2) {
        const Sequence& next = queue.pop();
        for (const Sequence* other : inside) {
          EXPECT_LE(next.request->request.priority, other->request->request.priority);
        }
        std::erase(inside, &next);
      } else {
        Sequence* sequence = inside[random() % inside.size()];
        queue.remove(*sequence);
        std::erase(inside, sequence);
      }
    }
    ASSERT_EQ(static_cast<std::size_t>(queue.size()), inside.size());
  }
  EXPECT_EQ(pop_all(queue).size(), inside.size());
}

}  // namespace
}  // namespace winnow
