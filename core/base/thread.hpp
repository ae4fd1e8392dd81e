// The calling thread: where it runs and what CPU time it has used. Units: ns.
#pragma once

#include <cstdint>

namespace weft {

struct CpuTime {
  int64_t user_ns = 0;
  int64_t system_ns = 0;
};

// Runs the calling thread on this CPU only; throws weft::Error when that cannot be. cpu < 0: as is.
void pin_thread(int cpu);
// Of the calling thread.
CpuTime thread_cpu_time();

}  // namespace weft
