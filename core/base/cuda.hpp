// The memory of an NVIDIA GPU, through the driver's library: opened when asked for (dlopen), so
// that weft neither needs nor links it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace weft::cuda {

using Pointer = uint64_t;  // of the GPU: the processor must not follow it

// One GPU, with the context that all of this process share.
class Device {
 public:
  // Throws weft::Error with reason and remedy: no driver, no such GPU.
  explicit Device(int number);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  int number() const { return number_; }
  const std::string& name() const { return name_; }
  // A descriptor of the kernel for this memory, to register it with an adapter; -1: the driver has
  // none. The caller closes it.
  int export_dmabuf(Pointer at, size_t bytes) const;

  Pointer allocate(size_t bytes) const;
  void free(Pointer at) const;
  // From any thread; they return when the bytes are there.
  void to_gpu(Pointer to, const std::byte* from, size_t bytes) const;
  void to_host(std::byte* to, Pointer from, size_t bytes) const;

 private:
  void enter() const;

  int number_;
  int handle_ = 0;
  void* context_ = nullptr;
  std::string name_;
};

// Memory of a GPU, freed with this.
class Memory {
 public:
  Memory() = default;
  Memory(std::shared_ptr<const Device> device, size_t bytes)
      : device_(std::move(device)), at_(device_->allocate(bytes)), bytes_(bytes) {}
  ~Memory() {
    if (device_) device_->free(at_);
  }
  Memory(Memory&& other) noexcept
      : device_(std::move(other.device_)), at_(other.at_), bytes_(other.bytes_) {}
  Memory& operator=(Memory&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(at_, other.at_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  Pointer at() const { return at_; }
  size_t size() const { return bytes_; }

 private:
  std::shared_ptr<const Device> device_;
  Pointer at_ = 0;
  size_t bytes_ = 0;
};

// 0 of "cuda", 3 of "cuda:3"; throws for other texts.
int device_number(const std::string& memory);

}  // namespace weft::cuda
