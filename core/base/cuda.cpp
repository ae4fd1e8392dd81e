#include "base/cuda.hpp"

#include <dlfcn.h>

#include <array>
#include <cstring>
#include <utility>

#include "base/error.hpp"

namespace weft::cuda {

namespace {

constexpr const char* kLibrary = "libcuda.so.1";
constexpr const char* kRemedy = "install NVIDIA's driver, or leave out --memory";
// As the driver's manual numbers them.
constexpr int kDmaBufSupported = 124, kDmaBufDescriptor = 1;

using Result = int;
// Name, the driver's symbol, its arguments. The last is not in older drivers.
#define WEFT_CUDA_SYMBOLS(X)                                 \
  X(init, "cuInit", unsigned)                                \
  X(count, "cuDeviceGetCount", int*)                         \
  X(get, "cuDeviceGet", int*, int)                           \
  X(name_of, "cuDeviceGetName", char*, int, int)             \
  X(attribute, "cuDeviceGetAttribute", int*, int, int)       \
  X(retain, "cuDevicePrimaryCtxRetain", void**, int)         \
  X(release, "cuDevicePrimaryCtxRelease_v2", int)            \
  X(enter, "cuCtxSetCurrent", void*)                         \
  X(allocate, "cuMemAlloc_v2", Pointer*, size_t)             \
  X(free, "cuMemFree_v2", Pointer)                           \
  X(to_gpu, "cuMemcpyHtoD_v2", Pointer, const void*, size_t) \
  X(to_host, "cuMemcpyDtoH_v2", void*, Pointer, size_t)      \
  X(describe, "cuGetErrorString", Result, const char**)      \
  X(export_range, "cuMemGetHandleForAddressRange", void*, Pointer, size_t, int, unsigned long long)

// Calls the function its first argument names, with the others.
template <class... Arguments>
using Function = Result (*)(Arguments...);

struct Driver {
#define WEFT_CUDA_MEMBER(name, symbol, ...) Function<__VA_ARGS__> name = nullptr;
  WEFT_CUDA_SYMBOLS(WEFT_CUDA_MEMBER)
#undef WEFT_CUDA_MEMBER
  std::string problem;
};

Driver open_driver() {
  Driver driver;
  void* handle = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = dlerror();
    driver.problem = std::string("the driver cannot be opened: ") + (why ? why : kLibrary);
    return driver;
  }
#define WEFT_CUDA_BIND(name, symbol, ...)                                                \
  {                                                                                      \
    void* address = dlsym(handle, symbol);                                               \
    std::memcpy(&driver.name, &address, sizeof address);                                 \
    if (address == nullptr && std::strcmp(symbol, "cuMemGetHandleForAddressRange") != 0) \
      driver.problem = std::string(kLibrary) + " lacks " + symbol;                       \
  }
  WEFT_CUDA_SYMBOLS(WEFT_CUDA_BIND)
#undef WEFT_CUDA_BIND
  if (!driver.problem.empty()) return driver;
  if (const Result code = driver.init(0); code != 0) {
    const char* text = nullptr;
    driver.describe(code, &text);
    driver.problem = std::string("the driver finds no GPU: ") + (text ? text : "unknown reason");
  }
  return driver;
}

const Driver& driver() {
  static const Driver opened = open_driver();
  if (!opened.problem.empty()) throw Error("cuda", opened.problem, kRemedy);
  return opened;
}

void check(const std::string& what, Result code) {
  if (code == 0) return;
  const char* text = nullptr;
  driver().describe(code, &text);
  throw Error("cuda", what + ": " + (text ? text : "error " + std::to_string(code)),
              "see nvidia-smi, and dmesg");
}

}  // namespace

int device_number(const std::string& memory) {
  const std::string digits = memory == "cuda"                 ? "0"
                             : memory.substr(0, 5) == "cuda:" ? memory.substr(5)
                                                              : "";
  if (digits.empty() || digits.size() > 4 ||
      digits.find_first_not_of("0123456789") != std::string::npos)
    throw Error("memory", "'" + memory + "' is unknown", "use host, cuda or cuda:N");
  return std::stoi(digits);
}

Device::Device(int number) : number_(number) {
  int count = 0;
  check("cannot count the GPUs", driver().count(&count));
  if (number >= count)
    throw Error("cuda", "GPU " + std::to_string(number) + " does not exist",
                count == 0 ? "this host has none: leave out --memory"
                           : "use cuda:0 to cuda:" + std::to_string(count - 1));
  check("cannot use the GPU", driver().get(&handle_, number));
  std::array<char, 256> text{};
  check("cannot use the GPU", driver().name_of(text.data(), int{text.size()} - 1, handle_));
  name_ = text.data();
  check("cannot use the GPU", driver().retain(&context_, handle_));
}

Device::~Device() {
  driver().release(handle_);
}

void Device::enter() const {
  thread_local const void* current = nullptr;
  if (current == context_) return;
  check("cannot use the GPU", driver().enter(context_));
  current = context_;
}

int Device::export_dmabuf(Pointer at, size_t bytes) const {
  enter();
  int supported = 0;
  if (driver().export_range == nullptr ||
      driver().attribute(&supported, kDmaBufSupported, handle_) != 0 || supported == 0)
    return -1;
  int descriptor = -1;
  const Result code = driver().export_range(&descriptor, at, bytes, kDmaBufDescriptor, 0);
  return code == 0 ? descriptor : -1;
}

Pointer Device::allocate(size_t bytes) const {
  enter();
  Pointer at = 0;
  check("no " + std::to_string(bytes) + " B of its memory", driver().allocate(&at, bytes));
  return at;
}

void Device::free(Pointer at) const {
  enter();
  driver().free(at);
}

void Device::to_gpu(Pointer to, const std::byte* from, size_t bytes) const {
  enter();
  check("cannot copy to the GPU", driver().to_gpu(to, from, bytes));
}

void Device::to_host(std::byte* to, Pointer from, size_t bytes) const {
  enter();
  check("cannot copy from the GPU", driver().to_host(to, from, bytes));
}

}  // namespace weft::cuda
