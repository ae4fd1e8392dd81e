// Messages in a GPU's memory, over a transport that reaches the host's memory alone.
//
// Each message is copied: from the GPU to the transport's slot before it is sent, from there to the
// GPU when it has come. Loops see the first 8 B of a message; with Config::contents they see all,
// by way of the GPU in both directions.
#pragma once

#include <memory>

#include "transport/endpoint.hpp"

namespace weft::transport {

// `reason`: why the transport does not reach the GPU's memory itself.
std::unique_ptr<Endpoint> open_staged(std::unique_ptr<Endpoint> transport, const Config& config,
                                      const std::string& reason);

}  // namespace weft::transport
