// How quiet this host is: what a spinning thread loses to others, and how far two CPUs are apart.
// Units: ps in histograms, ns elsewhere.
#pragma once

#include <cstdint>

#include "stats/histogram.hpp"

namespace weft {

struct Hiccups {
  stats::Histogram gaps;   // ps: times the thread did not run, above the threshold
  int64_t elapsed_ns = 0;  // how long it was watched
  uint64_t readings = 0;   // of the counter
};

// Reads the counter over and over on this CPU (cpu < 0: wherever the kernel puts it) in a thread of
// its own. A gap between two readings is time taken by the kernel, another process or the
// hypervisor. seconds in (0, 60].
Hiccups hiccups(double seconds, int cpu, int64_t threshold_ns = 1000);

// A thread on each CPU, handing one cache line to and fro. Half a round trip in ps, each sample the
// mean over kRoundsPerSample; fewer samples than asked for when the time ends first.
inline constexpr uint64_t kRoundsPerSample = 16;
stats::Histogram core_distance(int cpu_a, int cpu_b, uint64_t rounds, double seconds = 1.0);

}  // namespace weft
