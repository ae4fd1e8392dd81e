// Memory in pages of 2 MiB, for arrays that are read at random.
//
// With pages of 4 KiB most reads of a large fabric also miss the processor's table of pages, and in
// a virtual machine each such miss is a walk in two dimensions. Blocks are handed out one behind
// the other, so that many small arrays share a page. What is given back stays taken until the end,
// which suits arrays that grow by doubling. Without huge pages it is ordinary memory.
// Entry point: `HugePages`. Units: bytes.
#pragma once

#include <cstddef>
#include <memory_resource>
#include <mutex>
#include <vector>

namespace weft {

class HugePages final : public std::pmr::memory_resource {
 public:
  HugePages() = default;
  ~HugePages() override;

  static constexpr size_t kPage = size_t{2} << 20;

 private:
  struct Region {
    std::byte* start;
    size_t size;
  };

  void* do_allocate(size_t size, size_t alignment) override;
  void do_deallocate(void*, size_t, size_t) override {}
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
  std::byte* map(size_t size);

  std::mutex mutex_;  // arrays of several threads grow
  std::vector<Region> regions_;
  std::byte* next_ = nullptr;
  std::byte* limit_ = nullptr;
};

}  // namespace weft
