// The traffic class of a libfabric endpoint.
//
// libfabric has a setting for it (fi_tx_attr::tclass), and few providers take it: an offer that was
// asked for it and does not show it ignores it. Providers over sockets leave that byte to whoever
// holds the descriptors, which is this process.
#pragma once

#include "transport/ofi/library.hpp"

#ifdef WEFT_HAVE_OFI
#include <rdma/fabric.h>

#include <string>

#include "transport/endpoint.hpp"

namespace weft::transport {

enum class Marks { none, by_provider, by_sockets, left_out };

// What to ask for; 0 where there is nothing to ask for.
uint32_t wanted_class(const Config& config);
// How this offer's packets get the class. Where they cannot: left_out if it is optional, or a
// weft::Error.
Marks marks_of(const Config& config, const fi_info& info);
// For people.
std::string class_text(int traffic_class, Marks marks);
// Sets the byte of the process's sockets with one of these addresses at this or the other end
// (sockaddr as libfabric gives them; "": none); how many there were.
uint32_t mark_sockets(const std::string& own, const std::string& peer, int traffic_class);

}  // namespace weft::transport
#endif
