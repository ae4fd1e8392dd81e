// libibverbs, opened at run time: weft links against no RDMA library and starts without one.
//
// Symbols are bound by version (dlvsym), as the static linker would bind them. Two of the header's
// inline functions fall back on real symbols; hidden forwarders in verbs_library.cpp stand in.
#pragma once

#if __has_include(<infiniband/verbs.h>)
#define WEFT_HAVE_VERBS 1
#include <infiniband/verbs.h>

#include <memory>
#include <string>

#include "base/error.hpp"

namespace weft::transport::verbs {

#define WEFT_VERBS_SYMBOLS(X)  \
  X(get_device_list, 1.1)      \
  X(free_device_list, 1.1)     \
  X(get_device_name, 1.1)      \
  X(open_device, 1.1)          \
  X(close_device, 1.1)         \
  X(query_device, 1.1)         \
  X(query_port, 1.1)           \
  X(query_gid, 1.1)            \
  X(query_pkey, 1.1)           \
  X(get_async_event, 1.1)      \
  X(ack_async_event, 1.1)      \
  X(event_type_str, 1.1)       \
  X(alloc_pd, 1.1)             \
  X(dealloc_pd, 1.1)           \
  X(reg_mr_iova2, 1.8)         \
  X(dereg_mr, 1.1)             \
  X(create_comp_channel, 1.0)  \
  X(destroy_comp_channel, 1.0) \
  X(create_cq, 1.1)            \
  X(destroy_cq, 1.1)           \
  X(get_cq_event, 1.1)         \
  X(ack_cq_events, 1.1)        \
  X(create_qp, 1.1)            \
  X(modify_qp, 1.1)            \
  X(qp_to_qp_ex, 1.6)          \
  X(destroy_qp, 1.1)           \
  X(create_ah, 1.1)            \
  X(destroy_ah, 1.1)           \
  X(wc_status_str, 1.1)

struct Library {
#define WEFT_VERBS_MEMBER(name, version) decltype(&::ibv_##name) name = nullptr;
  WEFT_VERBS_SYMBOLS(WEFT_VERBS_MEMBER)
#undef WEFT_VERBS_MEMBER
  decltype(&::ibv_reg_dmabuf_mr) reg_dmabuf_mr = nullptr;  // since rdma-core 34
};

// Throws weft::Error with reason and remedy when it cannot be opened.
const Library& library();

// A driver QP of an Elastic Fabric Adapter (SRD), through libefa opened likewise. Never ran on its
// hardware.
ibv_qp* create_srd_qp(ibv_context* context, ibv_qp_init_attr_ex& init);

template <auto Member>
struct Free {
  template <typename T>
  void operator()(T* handle) const {
    (library().*Member)(handle);
  }
};
using Context = std::unique_ptr<ibv_context, Free<&Library::close_device>>;
using ProtectionDomain = std::unique_ptr<ibv_pd, Free<&Library::dealloc_pd>>;
using MemoryRegion = std::unique_ptr<ibv_mr, Free<&Library::dereg_mr>>;
using Channel = std::unique_ptr<ibv_comp_channel, Free<&Library::destroy_comp_channel>>;
using CompletionQueue = std::unique_ptr<ibv_cq, Free<&Library::destroy_cq>>;
using QueuePair = std::unique_ptr<ibv_qp, Free<&Library::destroy_qp>>;
using AddressHandle = std::unique_ptr<ibv_ah, Free<&Library::destroy_ah>>;

}  // namespace weft::transport::verbs
#endif
