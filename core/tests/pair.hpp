// Two connected endpoints in one process, and a loop that runs beside the test.
#pragma once

#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "transport/endpoint.hpp"

namespace weft::test {

struct Pair {
  std::unique_ptr<transport::Endpoint> server, client;
};

inline Pair connected(transport::Config config) {
  Pair pair;
  config.server = false;
  pair.client = transport::open(config);
  config.server = true;
  std::swap(config.send_bytes, config.receive_bytes);
  pair.server = transport::open(config);
  const std::string server = pair.server->address(), client = pair.client->address();
  auto other = std::async(std::launch::async, [&] { pair.server->connect(client, 5000); });
  pair.client->connect(server, 5000);
  other.get();
  return pair;
}

}  // namespace weft::test
