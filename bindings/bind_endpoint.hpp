// An endpoint as Python holds it: closed when asked, or with its last reference; never in use
// after.
#pragma once

#include <memory>
#include <utility>

#include "base/error.hpp"
#include "transport/endpoint.hpp"

namespace weft::python {

class OpenEndpoint {
 public:
  explicit OpenEndpoint(std::unique_ptr<transport::Endpoint> endpoint)
      : endpoint_(std::move(endpoint)) {}

  transport::Endpoint& use() {
    if (!endpoint_) throw Error("endpoint", "is closed", "open a new one");
    return *endpoint_;
  }
  void close() { endpoint_.reset(); }

 private:
  std::unique_ptr<transport::Endpoint> endpoint_;
};

}  // namespace weft::python
