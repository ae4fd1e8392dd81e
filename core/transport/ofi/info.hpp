// What providers offer, and which offer an endpoint takes.
#pragma once

#include "transport/ofi/library.hpp"

#ifdef WEFT_HAVE_OFI
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>

#include <string>
#include <vector>

#include "transport/endpoint.hpp"

namespace weft::transport {

template <typename T>
struct CloseFid {
  void operator()(T* object) const { fi_close(&object->fid); }
};
template <typename T>
using Fid = std::unique_ptr<T, CloseFid<T>>;

// Takes the object out of a libfabric call that ends in (..., &object, context).
template <typename T, typename Open>
long open_into(Fid<T>& holder, Open open) {
  T* object = nullptr;
  const long rc = open(&object);
  if (rc == 0) holder.reset(object);
  return rc;
}
long open_fabric(const fi_info& info, Fid<fid_fabric>& fabric);
long open_domain(fi_info& info, const Fid<fid_fabric>& fabric, Fid<fid_domain>& domain);

// "rdm", "msg" or "dgram".
const char* endpoint_name(fi_ep_type type);

// Every offer of one provider ("": of all) for one endpoint type (FI_EP_UNSPEC: all), for whatever
// an application may ask of it. Empty when there is none.
InfoPtr offers(const std::string& provider, fi_ep_type type);

// Providers that libfabric knows, whether or not they can be used here; hooks left out.
std::vector<std::string> known_providers();

// Operations of an offer. The domain is asked for 64-bit atomics: an offer with atomics need not
// have those.
std::vector<Op> operations_of(const fi_info& info, fid_domain* domain);

// "yes", or that weft's own tests have never run over this provider.
std::string verified(const std::string& provider);

// The offer for this endpoint, with the most operations. Throws weft::Error with the reason.
InfoPtr choose(const Config& config);

// "ofi:tcp", for errors.
std::string where(const Config& config);

}  // namespace weft::transport
#endif
