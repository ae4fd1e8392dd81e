// The calling thread: where it runs and what CPU time it has used. Units: ns.
#pragma once

#include <cstdint>
#include <vector>

namespace weft {

struct CpuTime {
  int64_t user_ns = 0;
  int64_t system_ns = 0;
};

// Runs the calling thread on this CPU only; throws weft::Error when that cannot be. cpu < 0: as is.
void pin_thread(int cpu);

// The same for as long as this lives, then back to the CPUs that the thread had before: a loop must
// not leave its caller's thread (and all threads that one starts later) on one CPU.
class PinnedThread {
 public:
  explicit PinnedThread(int cpu);
  ~PinnedThread();
  PinnedThread(const PinnedThread&) = delete;
  PinnedThread& operator=(const PinnedThread&) = delete;

 private:
  std::vector<uint64_t> before_;  // a CPU mask; empty: nothing to restore
};

// Of the calling thread.
CpuTime thread_cpu_time();

}  // namespace weft
