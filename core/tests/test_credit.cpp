// Credits of one lane: conserved, advertised at intervals, acting one flight later.
#include <map>
#include <vector>

#include "base/rng.hpp"
#include "check.hpp"
#include "packet/credit.hpp"

using weft::Rng;
using weft::packet::CreditLoop;
using weft::packet::kNever;
using weft::packet::Time;

namespace {

struct Held {
  Time freed;
  int blocks;
};

}  // namespace

// available + on their way back + held by the receiver = capacity, whatever the order of events;
// nothing acts before it could, and nothing later than interval + flight after it was freed.
TEST(credits_are_conserved_and_act_between_flight_and_interval_plus_flight_after_being_freed) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Rng rng(seed);
    const Time interval = static_cast<Time>(rng.next() % 3 * 500), flight = rng.next() % 2000;
    const int capacity = 1 + static_cast<int>(rng.next() % 200);
    CreditLoop loop;
    loop.init(capacity);
    std::multimap<Time, int> acting;  // reference: when what was given back acts
    Time now = 0, freed = 0;
    int held = 0;
    for (int step = 0; step < 500; ++step) {
      now += static_cast<Time>(rng.next() % 300);
      loop.mature(now);
      while (!acting.empty() && acting.begin()->first <= now) acting.erase(acting.begin());
      int flying = 0;
      for (const auto& [time, blocks] : acting) flying += blocks;
      CHECK_EQ(loop.in_flight(), flying);
      CHECK_EQ(loop.available() + loop.in_flight() + held, capacity);
      CHECK(loop.available() >= 0);
      if (loop.available() > 0 && rng.next() % 2) {
        const int blocks = 1 + static_cast<int>(rng.next() % loop.available());
        loop.consume(blocks);
        held += blocks;
      } else if (held > 0) {
        const int blocks = 1 + static_cast<int>(rng.next() % held);
        freed = std::max(freed, now + static_cast<Time>(rng.next() % 200));
        const Time acts = loop.give_back(freed, blocks, interval, flight);
        CHECK(acts >= freed + flight);
        CHECK(acts <= freed + flight + interval);
        acting.emplace(acts, blocks);
        held -= blocks;
      }
    }
  }
}

TEST(
    two_advertisements_are_at_least_an_interval_apart_and_what_is_freed_between_rides_on_the_next) {
  CreditLoop loop;
  loop.init(100);
  loop.consume(100);
  const Time interval = 256, flight = 50;
  CHECK_EQ(loop.give_back(1000, 1, interval, flight), 1050);
  CHECK_EQ(loop.give_back(1001, 2, interval, flight), 1306);
  CHECK_EQ(loop.give_back(1256, 4, interval, flight), 1306);
  CHECK_EQ(loop.give_back(1257, 8, interval, flight), 1562);
  CHECK_EQ(loop.give_back(5000, 16, interval, flight), 5050);
  const std::vector<std::pair<Time, int>> expected = {
      {1049, 0}, {1050, 1}, {1305, 1}, {1306, 7}, {1561, 7}, {1562, 15}, {5049, 15}, {5050, 31}};
  for (const auto& [time, available] : expected) {
    loop.mature(time);
    CHECK_EQ(loop.available(), available);
  }
}

TEST(without_an_interval_each_credit_acts_one_flight_after_it_was_freed) {
  CreditLoop loop;
  loop.init(40);
  loop.consume(40);
  for (Time t = 100; t < 120; ++t) CHECK_EQ(loop.give_back(t, 1, 0, 7), t + 7);
  for (Time t = 107; t < 127; ++t) {
    loop.mature(t);
    CHECK_EQ(loop.available(), static_cast<int>(t - 106));
  }
}

TEST(when_names_the_first_time_at_which_mature_makes_that_much_available) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Rng rng(seed);
    CreditLoop loop;
    loop.init(100);
    loop.consume(100);
    Time freed = 0;
    int returned = 0;
    while (returned < 60) {
      const int blocks = 1 + static_cast<int>(rng.next() % 9);
      loop.give_back(freed += static_cast<Time>(rng.next() % 400), blocks, 300, 20);
      returned += blocks;
    }
    CHECK_EQ(loop.when(returned + 1), kNever);
    for (int blocks = 1; blocks <= returned; ++blocks) {
      if (loop.available() >= blocks) continue;  // came with the advertisement before
      const Time time = loop.when(blocks);
      loop.mature(time - 1);
      CHECK(loop.available() < blocks);
      loop.mature(time);
      CHECK(loop.available() >= blocks);
    }
  }
}

// With virtual output queues space may be freed before space that was noted earlier: it must not
// wait for it.
TEST(space_freed_early_is_advertised_early) {
  CreditLoop loop;
  loop.init(20);
  loop.consume(20);
  CHECK_EQ(loop.give_back(1000, 5, 0, 10), 1010);
  CHECK_EQ(loop.give_back(100, 3, 0, 10), 110);
  CHECK_EQ(loop.give_back(500, 2, 0, 10), 510);
  CHECK_EQ(loop.when(3), 110);
  CHECK_EQ(loop.when(5), 510);
  CHECK_EQ(loop.when(10), 1010);
  loop.mature(600);
  CHECK_EQ(loop.available(), 5);
  CHECK_EQ(loop.in_flight(), 5);
  loop.mature(2000);
  CHECK_EQ(loop.give_back(700, 1, 0, 10), 710);  // with nothing else on its way
  CHECK_EQ(loop.when(11), 710);
}
