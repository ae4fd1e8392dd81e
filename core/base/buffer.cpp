#include "base/buffer.hpp"

#include <sys/mman.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <utility>
#include <vector>

#include "base/error.hpp"

#if !defined(MADV_POPULATE_WRITE)
#define MADV_POPULATE_WRITE 23
#endif
#if !defined(MAP_HUGE_SHIFT)
#define MAP_HUGE_SHIFT 26
#endif

namespace weft {
namespace {

constexpr size_t kHuge = size_t{2} << 20;
constexpr size_t kSmall = size_t{64} << 10;  // "auto" spends no huge page on less than this

size_t plain_page() {
  return static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

size_t rounded_up(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// What munmap has to be given.
size_t mapped_bytes(size_t bytes, const std::string& pages) {
  return rounded_up(bytes == 0 ? 1 : bytes, pages == "4K" ? plain_page() : kHuge);
}

std::byte* map(size_t bytes, int flags) {
  void* at =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  return at == MAP_FAILED ? nullptr : static_cast<std::byte*>(at);
}

// Starts at a multiple of 2 MiB, or the kernel would put no huge page at its start.
std::byte* map_aligned(size_t bytes) {
  std::byte* region = map(bytes + kHuge, 0);
  if (region == nullptr) return nullptr;
  const size_t before =
      rounded_up(reinterpret_cast<uintptr_t>(region), kHuge) - reinterpret_cast<uintptr_t>(region);
  if (before > 0) munmap(region, before);
  if (before < kHuge) munmap(region + before + bytes, kHuge - before);
  return region + before;
}

#if defined(__linux__)
constexpr int kMap2M = MAP_HUGETLB | (21 << MAP_HUGE_SHIFT);

// <linux/mempolicy.h>
constexpr int kPreferred = 1, kBind = 2;
constexpr unsigned long kNodeOfAddress = 1 | 2;  // MPOL_F_NODE | MPOL_F_ADDR
constexpr int kMostNodes = 1024;

// False: the kernel refused. Without NUMA in the kernel, node 0 is all there is.
bool place(std::byte* at, size_t bytes, int node, int policy) {
  if (node < 0) return true;
  if (node >= kMostNodes) return false;
  constexpr size_t kBits = 8 * sizeof(unsigned long);
  unsigned long mask[kMostNodes / kBits] = {};
  mask[static_cast<size_t>(node) / kBits] = 1ul << (static_cast<size_t>(node) % kBits);
  if (syscall(SYS_mbind, at, bytes, policy, mask, kMostNodes + 1ul, 0u) == 0) return true;
  return errno == ENOSYS && node == 0;
}

int node_of(std::byte* at) {
  int node = -1;
  if (syscall(SYS_get_mempolicy, &node, nullptr, 0ul, at, kNodeOfAddress) != 0) return -1;
  return node;
}

int populate(std::byte* at, size_t bytes) {
  return madvise(at, bytes, MADV_POPULATE_WRITE);
}

void advise(std::byte* at, size_t bytes, bool transparent) {
  madvise(at, bytes, transparent ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
}
#else
// Plain pages wherever the kernel puts them: other systems are not asked for more.
constexpr int kMap2M = -1, kPreferred = 0, kBind = 0;

bool place(std::byte*, size_t, int node, int) {
  return node <= 0;
}
int node_of(std::byte*) {
  return -1;
}
int populate(std::byte*, size_t) {
  return 0;
}
void advise(std::byte*, size_t, bool) {}
#endif

// Populating reports what touching would answer with SIGBUS: no huge page left on the node or
// within the cgroup's limit. Kernels before 5.14 do not know it: touching has to do.
bool touch(std::byte* at, size_t bytes, size_t page) {
  if (populate(at, bytes) != 0 && errno != EINVAL) return false;
  for (size_t i = 0; i < bytes; i += page) const_cast<volatile std::byte*>(at)[i] = std::byte{0};
  return true;
}

bool has_transparent_pages() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string line;
  std::getline(file, line);
  return !line.empty() && line.find("[never]") == std::string::npos;
}

std::byte* map_2m(size_t bytes, int node) {
  std::byte* at = kMap2M < 0 ? nullptr : map(bytes, kMap2M);
  if (at == nullptr) return nullptr;
  if (place(at, bytes, node, kBind) && touch(at, bytes, kHuge)) return at;
  munmap(at, bytes);
  return nullptr;
}

std::byte* map_normal(size_t bytes, bool transparent, int node) {
  std::byte* at = transparent ? map_aligned(bytes) : map(bytes, 0);
  if (at == nullptr) return nullptr;
  advise(at, bytes, transparent);
  if (place(at, bytes, node, kPreferred) && touch(at, bytes, plain_page())) {
    const int got = node < 0 ? node : node_of(at);
    if (got < 0 || got == node) return at;
  }
  munmap(at, bytes);
  return nullptr;
}

std::vector<std::string> kinds_to_try(size_t bytes, const std::string& pages) {
  if (pages == "2M" || pages == "thp" || pages == "4K") return {pages};
  if (pages != "auto")
    throw Error("pages", "\"" + pages + "\" is not a kind of page", "use auto, 2M, thp or 4K");
  if (bytes < kSmall) return {"4K"};
  return {"2M", "thp", "4K"};
}

void check_node(int node) {
  const std::string nodes = "/sys/devices/system/node/";
  if (node < 0 || access(nodes.c_str(), F_OK) != 0) return;
  if (access((nodes + "node" + std::to_string(node)).c_str(), F_OK) == 0) return;
  std::ifstream file(nodes + "online");
  std::string online;
  std::getline(file, online);
  throw Error("NUMA node " + std::to_string(node), "this host has only " + online,
              "choose one of those, or none");
}

[[noreturn]] void refuse(size_t bytes, const std::string& pages, int node) {
  const std::string where = "buffer of " + std::to_string(bytes) + " bytes";
  const std::string at = node < 0 ? "" : " on NUMA node " + std::to_string(node);
  if (pages == "2M")
    throw Error(where, "not enough free 2 MiB pages" + at,
                "reserve some as root, e.g. `sysctl vm.nr_hugepages=" +
                    std::to_string(rounded_up(bytes, kHuge) / kHuge + 64) + "`, or use pages auto");
  if (pages == "thp" && !has_transparent_pages())
    throw Error(where, "transparent huge pages are off on this host",
                "as root: `echo madvise > /sys/kernel/mm/transparent_hugepage/enabled`, "
                "or use pages auto");
  throw Error(where, "no memory" + at,
              "use smaller messages, fewer of them, or no particular node");
}

}  // namespace

Buffer::Buffer(size_t bytes, const std::string& pages, int node) : size_(bytes) {
  check_node(node);
  for (const std::string& kind : kinds_to_try(bytes, pages)) {
    if (kind == "thp" && !has_transparent_pages()) continue;
    const size_t mapped = mapped_bytes(bytes, kind);
    if (mapped < bytes) break;
    data_ = kind == "2M" ? map_2m(mapped, node) : map_normal(mapped, kind == "thp", node);
    pages_ = kind;
    if (data_ != nullptr) return;
  }
  refuse(bytes, pages, node);
}

Buffer::~Buffer() {
  if (data_ != nullptr) munmap(data_, mapped_bytes(size_, pages_));
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      pages_(std::move(other.pages_)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this == &other) return *this;
  if (data_ != nullptr) munmap(data_, mapped_bytes(size_, pages_));
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, 0);
  pages_ = std::move(other.pages_);
  return *this;
}

}  // namespace weft
