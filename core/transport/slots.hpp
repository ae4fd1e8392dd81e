// The message slots of an endpoint in one piece of memory.
//
// Large messages start on a page, small ones on a cache line, or one behind the other where a byte
// stream can then move several at once; `offset` shifts each from there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/buffer.hpp"

namespace weft::transport {

class Slots {
 public:
  static constexpr size_t kPage = 4096, kLine = 64;

  Slots() = default;
  // one: all slots are the same memory. packed: no gap between slots.
  Slots(uint32_t count, uint32_t bytes, uint32_t offset, bool one, bool packed,
        const std::string& pages, int node)
      : stride_(one ? 0 : stride(bytes, offset, packed)), offset_(offset) {
    const size_t per_slot = stride(bytes, offset, packed);
    size_ = one ? per_slot : per_slot * count;
    buffer_ = Buffer(size_ > 0 ? size_ : 1, pages, node);
  }

  std::byte* at(uint64_t slot) const { return buffer_.data() + slot * stride_ + offset_; }
  const Buffer& buffer() const { return buffer_; }
  size_t size() const { return size_; }

 private:
  static size_t stride(size_t bytes, size_t offset, bool packed) {
    const size_t used = bytes + offset;
    if (packed && offset == 0) return used;
    const size_t unit = used >= kPage ? kPage : kLine;
    return (used + unit - 1) / unit * unit;
  }

  Buffer buffer_;
  size_t stride_ = 0, offset_ = 0, size_ = 0;
};

}  // namespace weft::transport
