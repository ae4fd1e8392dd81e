// libfabric, opened at run time: the few functions it exports; everything else is in tables of
// function pointers that the headers' inline functions use.
//
// WEFT_LIBFABRIC names a library to use instead of the system's libfabric.so.1.
#pragma once

#if __has_include(<rdma/fabric.h>)
#define WEFT_HAVE_OFI 1
#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

#include <array>
#include <csignal>
#include <memory>
#include <string>

namespace weft::transport {

struct OfiLibrary {
  int (*getinfo)(uint32_t version, const char* node, const char* service, uint64_t flags,
                 const fi_info* hints, fi_info** info) = nullptr;
  void (*freeinfo)(fi_info* info) = nullptr;
  fi_info* (*dupinfo)(const fi_info* info) = nullptr;
  int (*fabric)(fi_fabric_attr* attr, fid_fabric** fabric, void* context) = nullptr;
  uint32_t (*version)() = nullptr;
  const char* (*strerror)(int error) = nullptr;
  char* (*tostr_r)(char* buffer, size_t size, const void* data, enum fi_type type) = nullptr;
  std::string path;
  uint32_t api = 0;  // the older of the library's and the headers' version

  // One line of text for a value of the headers' types.
  std::string text(const void* data, enum fi_type type) const;

  // The library of this process, opened once. Throws weft::Error when there is none.
  static const OfiLibrary& get();
};

// libfabric and what it loads take over signals (libinfinipath: SIGINT, SIGTERM, SIGSEGV and
// others as soon as it is loaded; shm the same with its first endpoint, to remove its files).
// This gives back the handlers that the process had; with `defaults` also those it did not have.
class KeepSignals {
 public:
  explicit KeepSignals(bool defaults);
  ~KeepSignals();
  KeepSignals(const KeepSignals&) = delete;
  KeepSignals& operator=(const KeepSignals&) = delete;

 private:
  static constexpr int kSignals = 32;
  bool defaults_;
  std::array<struct sigaction, kSignals> actions_{};
};

struct FreeInfo {
  void operator()(fi_info* info) const { OfiLibrary::get().freeinfo(info); }
};
using InfoPtr = std::unique_ptr<fi_info, FreeInfo>;

// "1.17", from a library's or a provider's version.
std::string version_text(uint32_t version);

}  // namespace weft::transport
#endif
