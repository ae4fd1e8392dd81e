// Memory for messages: huge pages where there are any, on a chosen NUMA node, touched before use.
#pragma once

#include <cstddef>
#include <string>

namespace weft {

class Buffer {
 public:
  Buffer() = default;
  // Tries 2 MiB pages (unless pages is "4K" or "thp"), then transparent huge pages, then plain
  // ones; `pages` "auto" takes the first that works (below 64 KiB plain pages at once: there are
  // few huge ones), any other value insists. node < 0: where the calling thread runs. Every page
  // is written before this returns.
  Buffer(size_t bytes, const std::string& pages = "auto", int node = -1);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  // "2M", "thp" (asked for; the kernel decides) or "4K".
  const std::string& pages() const { return pages_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  std::string pages_;
};

}  // namespace weft
