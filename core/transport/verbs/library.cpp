#include "transport/verbs/library.hpp"

#ifdef WEFT_HAVE_VERBS
#include <dlfcn.h>
#if __has_include(<infiniband/efadv.h>)
#define WEFT_HAVE_EFA 1
#include <infiniband/efadv.h>
#endif

#include <cerrno>
#include <cstring>

namespace weft::transport::verbs {

namespace {

struct Opened {
  Library library;
  std::string problem, remedy;
};

template <typename Function>
void bind(void* handle, const char* name, const char* version, Function& target, Opened& opened) {
  void* symbol = dlvsym(handle, name, version);
  if (symbol == nullptr && opened.problem.empty()) {
    opened.problem = std::string("libibverbs.so.1 lacks ") + name + "@" + version;
    opened.remedy = "install a current rdma-core (apt-get install libibverbs1)";
  }
  std::memcpy(&target, &symbol, sizeof target);
}

Opened open_library() {
  Opened opened;
  // Never closed: its providers keep state of their own.
  void* handle = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = dlerror();
    opened.problem = std::string("libibverbs cannot be opened: ") + (why ? why : "unknown reason");
    opened.remedy = "apt-get install libibverbs1 ibverbs-providers";
    return opened;
  }
#define WEFT_VERBS_BIND(name, version) \
  bind(handle, "ibv_" #name, "IBVERBS_" #version, opened.library.name, opened);
  WEFT_VERBS_SYMBOLS(WEFT_VERBS_BIND)
#undef WEFT_VERBS_BIND
  void* symbol = dlvsym(handle, "ibv_reg_dmabuf_mr", "IBVERBS_1.12");
  std::memcpy(&opened.library.reg_dmabuf_mr, &symbol, sizeof symbol);
  return opened;
}

}  // namespace

const Library& library() {
  static const Opened opened = open_library();
  if (!opened.problem.empty()) throw Error("verbs", opened.problem, opened.remedy);
  return opened.library;
}

#ifdef WEFT_HAVE_EFA
ibv_qp* create_srd_qp(ibv_context* context, ibv_qp_init_attr_ex& init) {
  static void* const handle = dlopen("libefa.so.1", RTLD_NOW | RTLD_LOCAL);
  void* symbol = handle ? dlvsym(handle, "efadv_create_qp_ex", "EFA_1.1") : nullptr;
  if (symbol == nullptr)
    throw Error("verbs srd", "libefa.so.1 with efadv_create_qp_ex is not there",
                "apt-get install ibverbs-providers, or use --endpoint ud");
  decltype(&::efadv_create_qp_ex) create;
  std::memcpy(&create, &symbol, sizeof create);
  efadv_qp_init_attr efa{};
  efa.driver_qp_type = EFADV_QP_DRIVER_TYPE_SRD;
  init.qp_type = IBV_QPT_DRIVER;
  return create(context, &init, &efa, sizeof efa);
}
#else
ibv_qp* create_srd_qp(ibv_context*, ibv_qp_init_attr_ex&) {
  throw Error("verbs srd", "weft was built without infiniband/efadv.h",
              "install libibverbs-dev and build again, or use --endpoint ud");
}
#endif

}  // namespace weft::transport::verbs

#undef ibv_query_port
extern "C" {
__attribute__((visibility("hidden"))) int ibv_query_port(ibv_context* context, uint8_t port,
                                                         _compat_ibv_port_attr* attributes) {
  return weft::transport::verbs::library().query_port(context, port, attributes);
}
// Called where the compiler does not see that it is never: without optimisation.
__attribute__((visibility("hidden"))) ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* init) {
  return weft::transport::verbs::library().create_qp(pd, init);
}
__attribute__((visibility("hidden"))) int ibv_query_device(ibv_context* context,
                                                           ibv_device_attr* attributes) {
  return weft::transport::verbs::library().query_device(context, attributes);
}
}
#endif
