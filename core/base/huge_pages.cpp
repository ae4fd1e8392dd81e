#include "base/huge_pages.hpp"

#include <sys/mman.h>

#include <cstdint>
#include <new>

namespace weft {

namespace {

size_t round_up(size_t value, size_t unit) {
  return (value + unit - 1) / unit * unit;
}

std::byte* align(std::byte* at, size_t unit) {
  const auto address = reinterpret_cast<uintptr_t>(at);
  return at + (round_up(address, unit) - address);
}

}  // namespace

HugePages::~HugePages() {
  for (const Region& region : regions_) munmap(region.start, region.size);
}

void* HugePages::do_allocate(size_t size, size_t alignment) {
  const std::lock_guard lock(mutex_);
  if (std::byte* at = align(next_, alignment); next_ && at <= limit_) {
    if (size <= static_cast<size_t>(limit_ - at)) {
      next_ = at + size;
      return at;
    }
  }
  const size_t room = round_up(size, kPage);
  std::byte* const at = map(room);
  if (room - size > static_cast<size_t>(limit_ - next_)) {  // the larger rest is used up next
    next_ = at + size;
    limit_ = at + room;
  }
  return at;
}

// Whole huge pages: the system gives any address, so one more is asked for and what lies around
// them goes back.
std::byte* HugePages::map(size_t size) {
  void* const mapped =
      mmap(nullptr, size + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  auto* const first = static_cast<std::byte*>(mapped);
  std::byte* const start = align(first, kPage);
  if (start != first) munmap(first, static_cast<size_t>(start - first));
  if (start != first + kPage) munmap(start + size, static_cast<size_t>(first + kPage - start));
  regions_.push_back({start, size});
#ifdef MADV_HUGEPAGE
  madvise(start, size, MADV_HUGEPAGE);
#endif
  return start;
}

}  // namespace weft
