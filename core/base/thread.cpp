#include "base/thread.hpp"

#include <sched.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <fstream>
#include <string>

#include "base/error.hpp"

namespace weft {
namespace {

#if defined(__linux__)
constexpr int kMostCpus = 1 << 16;

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

bool is_online(int cpu, const std::string& list) {
  // "0-3,8,10-11"
  for (size_t at = 0; at < list.size();) {
    size_t end = list.find(',', at);
    if (end == std::string::npos) end = list.size();
    const std::string range = list.substr(at, end - at);
    const size_t dash = range.find('-');
    const int first = std::stoi(range);
    const int last = dash == std::string::npos ? first : std::stoi(range.substr(dash + 1));
    if (cpu >= first && cpu <= last) return true;
    at = end + 1;
  }
  return false;
}

[[noreturn]] void refuse(int cpu, int error) {
  const std::string where = "CPU " + std::to_string(cpu);
  const std::string online = first_line("/sys/devices/system/cpu/online");
  if (cpu >= kMostCpus || (!online.empty() && !is_online(cpu, online)))
    throw Error(where, "there is no such CPU online; this host has " + online,
                "choose one of those");
  if (error == EINVAL || error == EPERM)
    throw Error(where, "this process may not run there (cpuset of its container or service)",
                "choose one of the allowed CPUs that `weft doctor` lists");
  throw Error(where, std::string("cannot run there: ") + std::strerror(error));
}
#endif

int64_t ns_of(const timeval& time) {
  return static_cast<int64_t>(time.tv_sec) * 1'000'000'000 +
         static_cast<int64_t>(time.tv_usec) * 1000;
}

}  // namespace

#if defined(__linux__)
void pin_thread(int cpu) {
  if (cpu < 0) return;
  if (cpu >= kMostCpus) refuse(cpu, EINVAL);
  const size_t bytes = CPU_ALLOC_SIZE(cpu + 1);
  cpu_set_t* set = CPU_ALLOC(cpu + 1);
  if (set == nullptr) refuse(cpu, ENOMEM);
  CPU_ZERO_S(bytes, set);
  CPU_SET_S(static_cast<size_t>(cpu), bytes, set);
  const int result = sched_setaffinity(0, bytes, set);
  const int error = errno;
  CPU_FREE(set);
  if (result != 0) refuse(cpu, error);
}

PinnedThread::PinnedThread(int cpu) {
  if (cpu < 0) return;
  before_.resize(kMostCpus / 64);
  const size_t bytes = before_.size() * sizeof(uint64_t);
  if (sched_getaffinity(0, bytes, reinterpret_cast<cpu_set_t*>(before_.data())) != 0)
    before_.clear();
  pin_thread(cpu);
}

PinnedThread::~PinnedThread() {
  if (before_.empty()) return;
  const size_t bytes = before_.size() * sizeof(uint64_t);
  sched_setaffinity(0, bytes, reinterpret_cast<const cpu_set_t*>(before_.data()));
}
#else
void pin_thread(int cpu) {
  if (cpu >= 0)
    throw Error("CPU " + std::to_string(cpu), "threads cannot be pinned on this system",
                "let the kernel choose");
}

PinnedThread::PinnedThread(int cpu) {
  pin_thread(cpu);
}

PinnedThread::~PinnedThread() = default;
#endif

CpuTime thread_cpu_time() {
  rusage usage{};
#if defined(RUSAGE_THREAD)
  // Linux counts what a running thread used when the scheduler last looked, up to a tick ago;
  // reading the thread's clock makes it look.
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  getrusage(RUSAGE_THREAD, &usage);
#else
  getrusage(RUSAGE_SELF, &usage);  // of all threads: the best that this system tells
#endif
  return {ns_of(usage.ru_utime), ns_of(usage.ru_stime)};
}

}  // namespace weft
