#include <sched.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory_resource>
#include <string>
#include <thread>
#include <vector>

#include "base/buffer.hpp"
#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/huge_pages.hpp"
#include "base/noise.hpp"
#include "base/thread.hpp"
#include "check.hpp"

using weft::Buffer;
using weft::Clock;

TEST(clock_agrees_with_the_raw_clock_within_its_error) {
  const Clock& clock = Clock::shared();
  const int64_t raw_before = weft::raw_ns();
  const uint64_t start = weft::ticks();
  usleep(50'000);
  const uint64_t end = weft::ticks();
  const int64_t raw_after = weft::raw_ns();
  // The ticks were read inside the raw interval; each end may be late by a preemption.
  CHECK(clock.ps(end - start) <= (raw_after - raw_before) * 1001);
  CHECK(clock.ps(end - start) >= 50'000'000'000 / 1001 * 1000);
}

TEST(clock_calibrations_agree_within_their_errors) {
  const Clock first = Clock::calibrate(0.02), second = Clock::calibrate(0.02);
  const double ppm = (first.hz() / second.hz() - 1) * 1e6;
  CHECK(std::abs(ppm) <= first.error_ppm() + second.error_ppm());
}

TEST(clock_converts_ticks_to_time_and_back) {
  const Clock& clock = Clock::shared();
  CHECK(clock.hz() > 1e6);
  CHECK(clock.error_ppm() > 0);
  CHECK(clock.step_ps() > 0);
  CHECK(clock.read_ps() > 0);
  for (const int64_t ns : {1'000ll, 1'000'000ll, 3'600'000'000'000ll}) {
    const int64_t back = clock.ps(clock.ticks_of_ns(ns));
    CHECK(back <= ns * 1000 + ns / 1000 + 1000);
    CHECK(back >= ns * 1000 - ns / 1000 - static_cast<int64_t>(2e12 / clock.hz()));
  }
}

TEST(clock_says_why_it_is_or_is_not_invariant) {
  std::string reason;
  (void)Clock::invariant(&reason);
  CHECK(!reason.empty());
  CHECK(!Clock::source().empty());
}

TEST(clock_refuses_a_calibration_time_that_makes_no_sense) {
  CHECK_THROWS(weft::Error, Clock::calibrate(0));
  CHECK_THROWS(weft::Error, Clock::calibrate(-1));
  CHECK_THROWS(weft::Error, Clock::calibrate(1e9));
}

TEST(buffer_is_zeroed_writable_and_of_the_kind_it_says) {
  for (const char* pages : {"auto", "4K"}) {
    for (const size_t bytes : {size_t{1}, size_t{4096}, size_t{5'000'000}}) {
      Buffer buffer(bytes, pages);
      CHECK_EQ(buffer.size(), bytes);
      CHECK(buffer.pages() == "2M" || buffer.pages() == "thp" || buffer.pages() == "4K");
      if (std::string(pages) == "4K") CHECK_EQ(buffer.pages(), std::string("4K"));
      for (size_t i = 0; i < bytes; ++i) {
        if (buffer.data()[i] == std::byte{0}) continue;
        CHECK(!"a byte that is not zero");
        break;
      }
      std::memset(buffer.data(), 0xA5, bytes);
    }
  }
}

TEST(buffer_moves_without_copying_and_frees_once) {
  Buffer first(100'000);
  std::byte* data = first.data();
  Buffer second(std::move(first));
  CHECK(second.data() == data);
  CHECK(first.data() == nullptr);
  Buffer third(10);
  third = std::move(second);
  CHECK(third.data() == data);
  CHECK_EQ(third.size(), size_t{100'000});
}

TEST(buffer_on_node_zero_is_given_and_on_a_missing_node_refused) {
  CHECK_EQ(Buffer(100'000, "4K", 0).size(), size_t{100'000});
  CHECK_THROWS(weft::Error, Buffer(4096, "4K", 1023));
  CHECK_THROWS(weft::Error, Buffer(4096, "4K", 100'000));
}

TEST(buffer_refuses_unknown_pages_and_impossible_sizes) {
  CHECK_THROWS(weft::Error, Buffer(4096, "1G"));
  CHECK_THROWS(weft::Error, Buffer(~size_t{0} >> 8));
  CHECK_THROWS(weft::Error, Buffer(~size_t{0}));
}

TEST(thread_is_pinned_where_asked_and_refused_where_it_cannot_be) {
  std::thread([] {
    weft::pin_thread(-1);
    weft::pin_thread(sched_getcpu());
    CHECK_THROWS(weft::Error, (weft::pin_thread(9'999), 0));
    CHECK_THROWS(weft::Error, (weft::pin_thread(1 << 20), 0));
  }).join();
}

TEST(pinned_thread_gets_its_cpus_back) {
  std::thread([] {
    cpu_set_t before, during, after;
    CHECK_EQ(sched_getaffinity(0, sizeof before, &before), 0);
    const int cpu = sched_getcpu();
    {
      weft::PinnedThread pinned(cpu);
      CHECK_EQ(sched_getaffinity(0, sizeof during, &during), 0);
      CHECK_EQ(CPU_COUNT(&during), 1);
      CHECK(CPU_ISSET(static_cast<size_t>(cpu), &during) != 0);
    }
    CHECK_EQ(sched_getaffinity(0, sizeof after, &after), 0);
    CHECK(CPU_EQUAL(&before, &after) != 0);
    CHECK_THROWS(weft::Error, weft::PinnedThread(9'999));
  }).join();
}

TEST(thread_cpu_time_grows_with_work) {
  const weft::CpuTime before = weft::thread_cpu_time();
  weft::CpuTime after = before;
  const int64_t start = weft::raw_ns();
  while (after.user_ns + after.system_ns == before.user_ns + before.system_ns &&
         weft::raw_ns() - start < 10'000'000'000)
    after = weft::thread_cpu_time();
  CHECK(after.user_ns + after.system_ns > before.user_ns + before.system_ns);
}

TEST(hiccups_are_at_least_the_threshold_and_within_the_time) {
  const weft::Hiccups seen = weft::hiccups(0.02, -1, 500);
  CHECK(seen.readings > 0);
  CHECK(seen.elapsed_ns >= 19'990'000);
  if (!seen.gaps.empty()) {
    CHECK(seen.gaps.min() >= 499'000);
    CHECK(seen.gaps.sum() <= static_cast<weft::stats::int128>(seen.elapsed_ns + 1) * 1000);
  }
}

TEST(hiccups_refuse_times_and_cpus_that_cannot_be) {
  CHECK_THROWS(weft::Error, weft::hiccups(0, -1));
  CHECK_THROWS(weft::Error, weft::hiccups(1e6, -1));
  CHECK_THROWS(weft::Error, weft::hiccups(0.01, 9'999));
  CHECK_THROWS(weft::Error, weft::hiccups(0.01, -1, 0));
}

TEST(core_distance_ends_in_time_and_refuses_one_cpu_twice) {
  CHECK_THROWS(weft::Error, weft::core_distance(0, 0, 100));
  CHECK_THROWS(weft::Error, weft::core_distance(-1, 0, 100));
  CHECK_THROWS(weft::Error, weft::core_distance(0, 9'999, 100));
  CHECK_THROWS(weft::Error, weft::core_distance(9'999, 0, 100));
  if (std::thread::hardware_concurrency() < 2) return;
  const int64_t start = weft::raw_ns();
  const auto halves = weft::core_distance(0, 1, ~uint64_t{0} / 4, 0.05);
  CHECK(weft::raw_ns() - start < 5'000'000'000);
  if (!halves.empty()) CHECK(halves.min() >= 0);
}

// Each array is filled with its number once all are there: none lies in another, or outside.
TEST(arrays_in_huge_pages_are_aligned_and_apart) {
  struct alignas(128) Line {
    uint64_t values[16];
  };
  weft::HugePages pages;
  std::vector<std::pmr::vector<Line>> lines;
  std::vector<std::pmr::vector<char>> bytes;
  for (const size_t size : {1, 3, 1000, 16'384, 16'385, 40'000, 7, 100}) {
    lines.emplace_back(size, &pages);
    bytes.emplace_back(size + 1, &pages);
  }
  for (size_t i = 0; i < lines.size(); ++i) {
    CHECK_EQ(reinterpret_cast<uintptr_t>(lines[i].data()) % 128, 0u);
    std::memset(lines[i].data(), static_cast<int>(i + 1), lines[i].size() * sizeof(Line));
    std::memset(bytes[i].data(), static_cast<int>(i + 101), bytes[i].size());
  }
  for (size_t i = 0; i < lines.size(); ++i) {
    for (const Line& line : lines[i]) {
      for (const uint64_t value : line.values) CHECK_EQ(value, (i + 1) * 0x0101010101010101u);
    }
    for (const char byte : bytes[i]) CHECK_EQ(byte, static_cast<char>(i + 101));
  }
}

TEST(arrays_of_two_threads_grow_in_the_same_huge_pages) {
  weft::HugePages pages;
  const auto grow = [&](std::pmr::vector<uint64_t>& values) {
    for (uint64_t i = 0; i < 300'000; ++i) values.push_back(i);
  };
  std::pmr::vector<uint64_t> a(&pages), b(&pages);
  std::thread other([&] { grow(b); });
  grow(a);
  other.join();
  for (uint64_t i = 0; i < a.size(); ++i) {
    CHECK_EQ(a[i], i);
    CHECK_EQ(b[i], i);
  }
}
