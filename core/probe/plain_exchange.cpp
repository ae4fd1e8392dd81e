#include "probe/plain_exchange.hpp"

#include <sys/socket.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.hpp"
#include "transport/ofi/info.hpp"

#ifdef WEFT_HAVE_OFI
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#endif

namespace weft::probe {

namespace {

constexpr size_t kBytes = 64;

int64_t now_ns() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

void sleep_ns(int64_t ns) {
  const timespec time{ns / 1'000'000'000, ns % 1'000'000'000};
  nanosleep(&time, nullptr);
}

void idle(const PlainExchange& exchange) {
  const int64_t end_ns = now_ns() + exchange.idle_ns;
  if (const int64_t ns = exchange.idle_ns - exchange.awake_ns; !exchange.spins && ns > 0)
    sleep_ns(ns);
  while (now_ns() < end_ns) continue;
}

// `send` and `receive` say whether they did.
template <typename Send, typename Receive>
std::vector<int64_t> exchange_by(const PlainExchange& exchange, Send send, Receive receive) {
  std::vector<int64_t> times_ns;
  for (uint32_t i = 0; i < exchange.messages; ++i) {
    if (exchange.idle_ns > 0) idle(exchange);
    const int64_t sent_ns = now_ns();
    if (!send()) return times_ns;
    while (!receive()) {
      if (now_ns() - sent_ns >= exchange.timeout_ns) return times_ns;
    }
    times_ns.push_back(now_ns() - sent_ns);
  }
  return times_ns;
}

}  // namespace

std::vector<int64_t> exchange_plainly(int socket, const PlainExchange& exchange) {
  std::array<std::byte, kBytes> message{exchange.first};
  return exchange_by(
      exchange, [&] { return send(socket, message.data(), message.size(), 0) >= 0; },
      [&] { return recv(socket, message.data(), message.size(), 0) >= 0; });
}

#ifdef WEFT_HAVE_OFI

namespace {

using transport::Fid;
using transport::InfoPtr;
using transport::OfiLibrary;
using transport::open_into;

constexpr int64_t kSpinNs = 50'000'000;  // after a message
constexpr int64_t kNapNs = 1'000'000;    // between looks, after that
constexpr int kSleepMs = 1000;

void check(const char* what, long rc) {
  if (rc != 0)
    throw Error("ofi",
                std::string(what) + ": " + OfiLibrary::get().strerror(static_cast<int>(-rc)));
}

}  // namespace

struct PlainFabric::Objects {
  // An echo sends its answers to the name in a message.
  struct Message {
    std::byte first{};
    uint8_t name_bytes = 0;
    std::array<char, kBytes - 2> name{};
  };
  static_assert(sizeof(Message) == kBytes);

  bool spins = false;
  InfoPtr info;
  Message in, out;
  std::array<fi_context2, 2> contexts{};  // of the receive, of the send
  // Closed from the last to the first.
  Fid<fid_fabric> fabric;
  Fid<fid_domain> domain;
  Fid<fid_cq> queue;
  Fid<fid_av> peers;
  Fid<fid_ep> endpoint;
  fi_addr_t peer = FI_ADDR_UNSPEC;
  bool is_injected = false;

  void open() {
    check("fabric", transport::open_fabric(*info, fabric));
    check("domain", transport::open_domain(*info, fabric, domain));
    fi_cq_attr queue_attr{};
    queue_attr.format = FI_CQ_FORMAT_CONTEXT;
    queue_attr.wait_obj = spins ? FI_WAIT_NONE : FI_WAIT_FD;
    check("queue", open_into(queue, [&](fid_cq** object) {
            return fi_cq_open(domain.get(), &queue_attr, object, nullptr);
          }));
    fi_av_attr peers_attr{};
    peers_attr.type = FI_AV_TABLE;
    check("addresses", open_into(peers, [&](fid_av** object) {
            return fi_av_open(domain.get(), &peers_attr, object, nullptr);
          }));
    check("endpoint", open_into(endpoint, [&](fid_ep** object) {
            return fi_endpoint(domain.get(), info.get(), object, nullptr);
          }));
    check("endpoint", fi_ep_bind(endpoint.get(), &queue->fid, FI_TRANSMIT | FI_RECV));
    check("endpoint", fi_ep_bind(endpoint.get(), &peers->fid, 0));
    check("endpoint", fi_enable(endpoint.get()));
    is_injected = info->tx_attr->inject_size >= kBytes;
    post_receive();
  }

  void post_receive() {
    long rc = 0;
    do rc = fi_recv(endpoint.get(), &in, kBytes, nullptr, FI_ADDR_UNSPEC, &contexts[0]);
    while (rc == -FI_EAGAIN);
    check("receive", rc);
  }

  void send() {
    long rc = 0;
    do {
      rc = is_injected ? fi_inject(endpoint.get(), &out, kBytes, peer)
                       : fi_send(endpoint.get(), &out, kBytes, nullptr, peer, &contexts[1]);
      if (rc == -FI_EAGAIN) fi_cq_read(queue.get(), nullptr, 0);  // a connection is made by looking
    } while (rc == -FI_EAGAIN);
    check("send", rc);
  }

  // Whether a message came; the next one has no place before post_receive().
  bool receive() {
    fi_cq_entry entry{};
    const ssize_t count = spins ? fi_cq_read(queue.get(), &entry, 1)
                                : fi_cq_sread(queue.get(), &entry, 1, nullptr, kSleepMs);
    if (count == -FI_EAVAIL) throw Error("ofi", "a plain exchange failed", "try again");
    return count == 1 && entry.op_context == &contexts[0];
  }

  void know(const char* name) {
    if (fi_av_insert(peers.get(), name, 1, &peer, 0, nullptr) != 1)
      throw Error("ofi", "the peer's address cannot be used");
  }
};

PlainFabric::PlainFabric(const std::string& provider, const std::string& address, bool spins)
    : objects_(std::make_unique<Objects>()) {
  const transport::KeepSignals keep(false);
  transport::Config config;
  config.device = provider;
  config.endpoint = "rdm";
  config.address = address;
  objects_->spins = spins;
  objects_->info = transport::choose(config);
  if (objects_->info->domain_attr->mr_mode & FI_MR_LOCAL)
    throw Error("ofi:" + provider, "wants registered memory, which a plain exchange has not",
                "use tcp");
  objects_->open();
}

std::string PlainFabric::name() const {
  std::string name(kBytes, '\0');
  size_t bytes = name.size();
  check("address", fi_getname(&objects_->endpoint->fid, name.data(), &bytes));
  name.resize(bytes);
  return name;
}

std::vector<int64_t> PlainFabric::exchange(const std::string& peer, const PlainExchange& exchange) {
  const std::string local = name();
  Objects::Message& out = objects_->out;
  if (local.size() > out.name.size()) throw Error("ofi", "addresses are too long for a message");
  objects_->know(peer.c_str());
  out.first = exchange.first;
  out.name_bytes = static_cast<uint8_t>(local.size());
  std::ranges::copy(local, out.name.begin());
  bool is_posted = true;
  // The place of the answer is prepared while the message is on its way.
  const auto send = [&] {
    objects_->send();
    if (!is_posted) objects_->post_receive();
    is_posted = false;
    return true;
  };
  const auto receive = [&] { return objects_->receive(); };
  PlainExchange first = exchange;
  first.messages = 1;
  first.idle_ns = 0;
  if (exchange_by(first, send, receive).empty()) return {};
  return exchange_by(exchange, send, receive);
}

void PlainFabric::echo() {
  Objects& objects = *objects_;
  std::string name;
  int64_t answered_ns = now_ns();
  while (true) {
    if (!objects.receive()) {
      if (objects.spins && now_ns() - answered_ns > kSpinNs) sleep_ns(kNapNs);
      continue;
    }
    objects.out = objects.in;
    const size_t bytes = std::min<size_t>(objects.in.name_bytes, objects.in.name.size());
    if (const std::string from(objects.in.name.data(), bytes); from != name) {
      objects.know(from.c_str());
      name = from;
    }
    objects.send();
    objects.post_receive();
    answered_ns = now_ns();
  }
}

#else

struct PlainFabric::Objects {};

PlainFabric::PlainFabric(const std::string&, const std::string&, bool) {
  throw Error("ofi", "this weft was built without libfabric's headers",
              "install libfabric-dev and build weft again");
}
std::string PlainFabric::name() const {
  return "";
}
std::vector<int64_t> PlainFabric::exchange(const std::string&, const PlainExchange&) {
  return {};
}
void PlainFabric::echo() {
  while (true) sleep_ns(1'000'000'000);
}

#endif

PlainFabric::~PlainFabric() = default;

}  // namespace weft::probe
