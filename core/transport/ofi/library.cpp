#include "transport/ofi/library.hpp"

#ifdef WEFT_HAVE_OFI
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "base/error.hpp"

namespace weft::transport {

namespace {

// The layout of fi_info, as the headers have it, is a version of these symbols; a newer library
// keeps the older ones.
#if FI_MAJOR_VERSION == 1 && FI_MINOR_VERSION < 9
#error "libfabric headers older than 1.9 are not supported; remove them to build without"
#elif FI_MAJOR_VERSION == 1 && FI_MINOR_VERSION < 20
constexpr const char* kInfoAbi = "FABRIC_1.3";
#elif FI_MAJOR_VERSION == 1
constexpr const char* kInfoAbi = "FABRIC_1.7";
#else
constexpr const char* kInfoAbi = nullptr;  // not known to us: the library's own default
#endif

constexpr const char* kRemedy =
    "install libfabric1 (Debian, Ubuntu) or libfabric (Fedora), or set WEFT_LIBFABRIC to a "
    "libfabric.so.1, such as that of the PyPI package mpich";

void* symbol(void* library, const std::string& path, const char* name, const char* abi) {
#ifdef __GLIBC__
  void* symbol = abi ? dlvsym(library, name, abi) : dlsym(library, name);
#else
  void* symbol = dlsym(library, name);
#endif
  if (!symbol)
    throw Error("ofi",
                path + " has no " + name + (abi ? std::string("@") + abi : "") +
                    ", which the headers of libfabric " +
                    version_text(FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION)) + " ask for",
                "use a newer libfabric, or build weft with the headers of this one");
  return symbol;
}

template <typename Function>
void bind(Function*& function, void* library, const std::string& path, const char* name,
          const char* abi) {
  function = reinterpret_cast<Function*>(symbol(library, path, name, abi));
}

OfiLibrary load() {
  const char* chosen = std::getenv("WEFT_LIBFABRIC");
  OfiLibrary library;
  library.path = chosen && *chosen ? chosen : "libfabric.so.1";
  const KeepSignals keep(true);
  // Addresses are exchanged by us; its server for them keeps the process from ending.
  setenv("FI_VERBS_DGRAM_USE_NAME_SERVER", "0", 0);
  // Never closed: providers leave threads and exit handlers behind.
  void* handle = dlopen(library.path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) throw Error("ofi", dlerror(), kRemedy);
  bind(library.getinfo, handle, library.path, "fi_getinfo", kInfoAbi);
  bind(library.freeinfo, handle, library.path, "fi_freeinfo", kInfoAbi);
  bind(library.dupinfo, handle, library.path, "fi_dupinfo", kInfoAbi);
  bind(library.fabric, handle, library.path, "fi_fabric", "FABRIC_1.1");
  bind(library.version, handle, library.path, "fi_version", "FABRIC_1.0");
  bind(library.strerror, handle, library.path, "fi_strerror", "FABRIC_1.0");
  bind(library.tostr_r, handle, library.path, "fi_tostr_r", "FABRIC_1.4");
  library.api =
      std::min<uint32_t>(library.version(), FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION));
  // Providers load their own libraries when first asked.
  fi_info* all = nullptr;
  if (library.getinfo(library.api, nullptr, nullptr, FI_PROV_ATTR_ONLY, nullptr, &all) == 0)
    library.freeinfo(all);
  Dl_info where;
  if (dladdr(reinterpret_cast<void*>(library.version), &where) && where.dli_fname)
    library.path = where.dli_fname;
  return library;
}

}  // namespace

const OfiLibrary& OfiLibrary::get() {
  static const OfiLibrary library = load();
  return library;
}

std::string OfiLibrary::text(const void* data, enum fi_type type) const {
  std::array<char, 4096> buffer{};
  tostr_r(buffer.data(), buffer.size(), data, type);
  return buffer.data();
}

KeepSignals::KeepSignals(bool defaults) : defaults_(defaults) {
  for (int signal = 1; signal < kSignals; ++signal)
    sigaction(signal, nullptr, &actions_[static_cast<size_t>(signal)]);
}

KeepSignals::~KeepSignals() {
  for (int signal = 1; signal < kSignals; ++signal) {
    const auto& action = actions_[static_cast<size_t>(signal)];
    if (defaults_ || action.sa_handler != SIG_DFL) sigaction(signal, &action, nullptr);
  }
}

std::string version_text(uint32_t version) {
  return std::to_string(FI_MAJOR(version)) + "." + std::to_string(FI_MINOR(version));
}

}  // namespace weft::transport
#endif
