// The event queue against its definition: a stable sort by time.
#include <map>
#include <vector>

#include "base/rng.hpp"
#include "check.hpp"
#include "packet/event_queue.hpp"

using weft::Rng;
using weft::packet::Event;
using weft::packet::EventQueue;
using weft::packet::Time;

namespace {

Event take(EventQueue& queue) {
  const Event event = queue.top();
  queue.pop();
  return event;
}

// Delays as the simulator makes them: none, within a bucket, within the wheel, past its horizon.
Time delay(Rng& rng, int width_log2, int buckets_log2) {
  const Time width = Time{1} << width_log2, horizon = width << buckets_log2;
  switch (rng.next() % 8) {
    case 0:
      return 0;
    case 1:
      return static_cast<Time>(rng.next() % 4);
    case 2:
      return static_cast<Time>(rng.next() % static_cast<uint64_t>(width));
    case 3:
      return horizon - width + static_cast<Time>(rng.next() % (2 * width));
    case 4:
      return static_cast<Time>(rng.next() % static_cast<uint64_t>(20 * horizon));
    default:
      return static_cast<Time>(rng.next() % static_cast<uint64_t>(horizon));
  }
}

// Pushes and pops at random and compares every pop with a multimap, which keeps equal keys in
// order of insertion. Returns the number of differences.
int differences(uint64_t seed, int width_log2, int buckets_log2, int steps, int crowd) {
  Rng rng(seed);
  EventQueue queue(width_log2, buckets_log2);
  std::multimap<Time, uint32_t> reference;
  Time now = 0;
  uint32_t what = 0;
  int wrong = 0;
  for (int i = 0; i < steps; ++i) {
    const bool push = reference.empty() || (rng.next() % 100 < 50 && int(reference.size()) < crowd);
    if (push) {
      const Time t = now + delay(rng, width_log2, buckets_log2);
      queue.push(t, what);
      reference.emplace(t, what++);
      continue;
    }
    // Looking at the next time must not change what a later, earlier push does.
    if (rng.next() % 2) wrong += queue.top().time != reference.begin()->first;
    if (rng.next() % 16 == 0) {
      const Time end = now + 1 + delay(rng, width_log2, buckets_log2);
      auto expected = reference.begin();
      for (const Event& event : queue.before(end)) {
        wrong += event.time >= end || event.what != expected->second;
        ++expected;
      }
      wrong += expected != reference.lower_bound(end);
    }
    if (rng.next() % 8 == 0) continue;
    const Event event = take(queue);
    wrong += event.time != reference.begin()->first || event.what != reference.begin()->second;
    wrong += queue.empty() != (reference.size() == 1);
    now = event.time;
    reference.erase(reference.begin());
  }
  while (!reference.empty()) {
    const Event event = take(queue);
    wrong += event.time != reference.begin()->first || event.what != reference.begin()->second;
    reference.erase(reference.begin());
  }
  return wrong + !queue.empty();
}

}  // namespace

TEST(events_leave_the_queue_as_a_stable_sort_by_time_for_any_width_and_number_of_buckets) {
  for (int width_log2 = 0; width_log2 <= 20; width_log2 += 4) {
    for (int buckets_log2 = 1; buckets_log2 <= 14; ++buckets_log2) {
      const auto seed = static_cast<uint64_t>(width_log2 * 100 + buckets_log2);
      CHECK_EQ(differences(seed, width_log2, buckets_log2, 4000, 300), 0);
    }
  }
}

TEST(few_events_in_one_endless_slice_are_a_stable_sort_too) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Rng rng(seed);
    EventQueue queue;
    std::multimap<Time, uint32_t> reference;
    Time now = 0;
    for (uint32_t what = 0; what < 20'000; ++what) {
      if (reference.size() > 40 || (what % 3 == 0 && !reference.empty())) {
        const Event event = take(queue);
        CHECK_EQ(event.time, reference.begin()->first);
        CHECK_EQ(event.what, reference.begin()->second);
        now = event.time;
        reference.erase(reference.begin());
      }
      const Time time =
          now + static_cast<Time>(rng.next() % 8 ? rng.next() % 1000 : rng.next() >> 20);
      queue.push(time, what);
      reference.emplace(time, what);
    }
  }
}

// Around the number at which the queue becomes a wheel, with events of equal times on both sides.
TEST(events_leave_in_order_while_the_queue_becomes_a_wheel) {
  const auto few = static_cast<int>(EventQueue::kFewEvents);
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    CHECK_EQ(differences(seed, 10, 6, 3'000, few + static_cast<int>(seed)), 0);
    CHECK_EQ(differences(seed, 2, 12, 3'000, 2 * few + static_cast<int>(seed)), 0);
  }
}

TEST(events_leave_in_order_from_crowded_buckets_and_from_an_almost_empty_wheel) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    CHECK_EQ(differences(seed, 15, 12, 20'000, 10'000), 0);
    CHECK_EQ(differences(seed, 7, 12, 5'000, 2), 0);
    CHECK_EQ(differences(seed, 15, 4, 20'000, 10'000), 0);
  }
}

TEST(events_of_one_time_leave_in_the_order_they_were_scheduled) {
  EventQueue queue;
  // Some wait in the far heap, some in a bucket, some join while their bucket is being emptied.
  const Time time = Time{1} << 40;
  for (uint32_t i = 0; i < 100; ++i) queue.push(time, i);
  queue.push(time - (Time{1} << 20), 1000);
  CHECK_EQ(take(queue).what, 1000u);
  for (uint32_t i = 100; i < 200; ++i) queue.push(time, i);
  for (uint32_t i = 0; i < 300; ++i) {
    CHECK_EQ(queue.top().time, time);
    CHECK_EQ(take(queue).what, i);
    if (i < 100) queue.push(time, 200 + i);
  }
  CHECK(queue.empty());
}

TEST(an_event_before_the_one_already_looked_at_leaves_first) {
  EventQueue queue;
  queue.push(Time{1} << 50, 2);
  CHECK_EQ(queue.top().time, Time{1} << 50);
  queue.push(5, 0);
  queue.push(Time{1} << 30, 1);
  for (uint32_t i = 0; i < 3; ++i) CHECK_EQ(take(queue).what, i);
}

TEST(pending_events_come_in_the_order_in_which_they_are_taken) {
  Rng rng(3);
  for (const int events : {3, 100, 1000}) {
    EventQueue queue(6, 4);
    for (int i = 0; i < events; ++i) queue.push(delay(rng, 6, 4), static_cast<uint32_t>(i));
    const std::vector<Event> pending = queue.pending();
    CHECK_EQ(pending.size(), queue.size());
    for (const Event& event : pending) CHECK_EQ(take(queue).what, event.what);
  }
}

TEST(replaced_events_keep_the_order_of_their_times_and_of_their_scheduling) {
  EventQueue queue(6, 4);
  for (uint32_t i = 0; i < 4; ++i) queue.push(10, i);
  std::vector<Event> events = queue.pending();
  events[0].time = events[2].time = 5000;
  queue.replace(events);
  for (const uint32_t what : {1u, 3u, 0u, 2u}) CHECK_EQ(take(queue).what, what);
  CHECK(queue.empty());
}
