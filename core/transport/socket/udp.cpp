// One datagram per message; what is lost or reordered on the way is for the loops to see.
//
// A send completes when the kernel has taken it. Lists go out by one sendmmsg, and a poll with room
// for several completions takes several datagrams by one recvmmsg. A stream gathers in the kernel's
// buffer: a receiver that sleeps on the socket makes the sender wake it, for every few datagrams.
#if defined(__linux__)
#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/error.hpp"
#include "transport/slots.hpp"
#include "transport/socket/socket.hpp"

namespace weft::transport {

namespace {

constexpr uint32_t kMostBytes = 65507;  // 64 KiB less the IPv4 and UDP headers
constexpr size_t kBatch = 64;
constexpr int kBufferBytes = 8 << 20;
constexpr int64_t kGatherNs = 50'000;
constexpr int kLeastGathered = 4 << 20;  // of buffer: of what comes meanwhile nothing may be lost

class UdpEndpoint final : public Endpoint {
 public:
  explicit UdpEndpoint(const Config& config)
      : config_(config),
        slots_(receive_slots(config)),
        sends_(config.depth, config.send_bytes, config.offset, config.one_buffer, false,
               config.pages, config.node),
        receives_(slots_, config.receive_bytes, 0, false, false, config.pages, config.node),
        sent_(config.depth) {
    const auto local =
        SocketAddress::of(config.address.empty() ? "127.0.0.1" : config.address, 0, "udp");
    socket_ = Descriptor(::socket(local.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (socket_.get() < 0) throw_errno("udp", "no socket");
    is_marked_ = set_options(socket_.get(), config, local.is_v6());
    grow(SO_RCVBUF, SO_RCVBUFFORCE);
    grow(SO_SNDBUF, SO_SNDBUFFORCE);
    int granted = 0;
    socklen_t length = sizeof(granted);
    getsockopt(socket_.get(), SOL_SOCKET, SO_RCVBUF, &granted, &length);
    gathers_ = config.events && granted >= kLeastGathered;
    if (::bind(socket_.get(), local.get(), local.length) != 0)
      throw_errno("udp", "cannot bind to " + local.host());
  }

  std::string address() override {
    return join_address(SocketAddress::local_of(socket_.get()), "");
  }

  void connect(const std::string& peer, int) override {
    const auto to = split_address(peer, "udp");
    const auto remote = SocketAddress::of(to.host, to.port, "udp");
    if (::connect(socket_.get(), remote.get(), remote.length) != 0)
      throw_errno("udp", "cannot reach " + to.host, "is there a route to it?");
  }

  uint32_t post(std::span<const Work> works) override {
    const size_t n = std::min<size_t>({works.size(), kBatch, sent_.size() - (posted_ - done_)});
    if (n == 0) return 0;
    const uint32_t accepted = n == 1 ? send_one(works[0]) : send_many(works.first(n));
    for (uint32_t i = 0; i < accepted; ++i)
      sent_[posted_++ % sent_.size()] = {works[i].id, works[i].signaled};
    return accepted;
  }

  uint32_t poll(std::span<Completion> out) override {
    if (const uint32_t n = take_sent(out); n > 0) return n;
    return out.size() == 1 ? receive_one(out, MSG_DONTWAIT) : receive_many(out, MSG_DONTWAIT);
  }

  uint32_t wait(std::span<Completion> out, int64_t timeout_ns) override {
    if (!config_.events) return poll(out);
    if (const uint32_t n = take_sent(out); n > 0) return n;
    if (refused_ || timeout_ns < kLongWaitNs) {
      sleep_until_ready(socket_.get(), refused_ ? POLLIN | POLLOUT : POLLIN, timeout_ns);
      refused_ = false;
      return poll(out);
    }
    set_timeout(socket_.get(), SO_RCVTIMEO, timeout_ns, timeout_ns_);
    return receive_one(out, 0);
  }

  uint32_t gather(std::span<Completion> out, int64_t timeout_ns, bool sleeps) override {
    if (sleeps && !gathers_) return wait(out, timeout_ns);
    uint32_t n = poll(out);
    if (!sleeps) {
      if (n == 0) pause_between_looks(kShortPauseNs);
      return n;
    }
    bool is_stream = n > 0;
    if (n == 0 && is_stream_) {
      const timespec time{0, kGatherNs};
      nanosleep(&time, nullptr);
      n = poll(out);
      is_stream = n > 1;
    }
    is_stream_ = is_stream;
    return n > 0 ? n : wait(out, timeout_ns);
  }

  void release(uint64_t) override { ++released_; }

  std::byte* send_slot(uint32_t slot) override { return sends_.at(slot); }
  const std::byte* receive_slot(uint64_t slot) override { return receives_.at(slot); }

  std::map<std::string, std::string> describe() override {
    auto facts = describe_socket(socket_.get());
    facts["pages"] = sends_.buffer().pages();
    return facts;
  }

  bool is_reliable() const override { return false; }

 private:
  struct Sent {
    uint64_t id;
    bool signaled;
  };

  void grow(int name, int force) {
    if (setsockopt(socket_.get(), SOL_SOCKET, force, &kBufferBytes, sizeof(int)) != 0)
      setsockopt(socket_.get(), SOL_SOCKET, name, &kBufferBytes, sizeof(int));
  }

  static void require_send(const Work& work) {
    if (work.op != Op::send) throw Error("udp", "has no one-sided operations", "use --op send");
  }

  // A full queue, or what an earlier datagram met on its way (nobody listening there: that is
  // loss).
  bool is_passing() {
    refused_ = errno == EAGAIN || errno == ENOBUFS;
    return refused_ || errno == EINTR || errno == ECONNREFUSED;
  }

  uint32_t send_one(const Work& work) {
    require_send(work);
    if (::send(socket_.get(), sends_.at(work.slot), work.bytes, MSG_DONTWAIT) >= 0) return 1;
    if (is_passing()) return errno == ECONNREFUSED ? 1 : 0;
    throw_errno("udp", "cannot send a datagram of " + std::to_string(work.bytes) + " B");
  }

  uint32_t send_many(std::span<const Work> works) {
    std::array<mmsghdr, kBatch> headers;
    std::array<iovec, kBatch> pieces;
    for (size_t i = 0; i < works.size(); ++i) {
      require_send(works[i]);
      pieces[i] = {sends_.at(works[i].slot), works[i].bytes};
      headers[i] = {};
      headers[i].msg_hdr.msg_iov = &pieces[i];
      headers[i].msg_hdr.msg_iovlen = 1;
    }
    const int n =
        sendmmsg(socket_.get(), headers.data(), static_cast<unsigned>(works.size()), MSG_DONTWAIT);
    if (n >= 0) return static_cast<uint32_t>(n);
    if (is_passing()) return errno == ECONNREFUSED ? 1 : 0;
    throw_errno("udp", "cannot send datagrams of " + std::to_string(works[0].bytes) + " B");
  }

  uint32_t take_sent(std::span<Completion> out) {
    uint32_t n = 0;
    while (done_ < posted_ && n < out.size()) {
      const Sent& datagram = sent_[done_++ % sent_.size()];
      if (!datagram.signaled) continue;
      out[n] = {};
      out[n++].id = datagram.id;
    }
    return n;
  }

  void received(Completion& completion, uint32_t bytes) {
    completion = {};
    completion.kind = Completion::received;
    completion.bytes = bytes;
    completion.id = handed_++ % slots_;
  }

  uint32_t receive_one(std::span<Completion> out, int flags) {
    if (handed_ - released_ == slots_) return 0;
    const ssize_t got =
        ::recv(socket_.get(), receives_.at(handed_ % slots_), config_.receive_bytes, flags);
    if (got >= 0) {
      received(out[0], static_cast<uint32_t>(got));
      return 1;
    }
    if (errno == EAGAIN || errno == EINTR || errno == ECONNREFUSED) return 0;
    throw_errno("udp", "cannot receive");
  }

  uint32_t receive_many(std::span<Completion> out, int flags) {
    const size_t n = std::min<size_t>({out.size(), kBatch, slots_ - (handed_ - released_)});
    if (n <= 1) return n == 0 ? 0 : receive_one(out, flags);
    std::array<mmsghdr, kBatch> headers;
    std::array<iovec, kBatch> pieces;
    for (size_t i = 0; i < n; ++i) {
      pieces[i] = {receives_.at((handed_ + i) % slots_), config_.receive_bytes};
      headers[i] = {};
      headers[i].msg_hdr.msg_iov = &pieces[i];
      headers[i].msg_hdr.msg_iovlen = 1;
    }
    const int got =
        recvmmsg(socket_.get(), headers.data(), static_cast<unsigned>(n), flags, nullptr);
    if (got < 0) {
      if (errno == EAGAIN || errno == EINTR || errno == ECONNREFUSED) return 0;
      throw_errno("udp", "cannot receive");
    }
    for (int i = 0; i < got; ++i)
      received(out[static_cast<size_t>(i)], headers[static_cast<size_t>(i)].msg_len);
    return static_cast<uint32_t>(got);
  }

  Config config_;
  uint64_t slots_;
  Slots sends_, receives_;
  std::vector<Sent> sent_;
  uint64_t posted_ = 0, done_ = 0, handed_ = 0, released_ = 0;
  bool refused_ = false;
  bool gathers_ = false, is_stream_ = false;  // datagrams came without a sleep for them
  Descriptor socket_;
  int64_t timeout_ns_ = -1;
};

}  // namespace

std::unique_ptr<Endpoint> open_udp(const Config& config) {
  const uint32_t bytes = std::max(config.send_bytes, config.receive_bytes);
  if (bytes > kMostBytes)
    throw Error("udp",
                "a message of " + std::to_string(bytes) + " B does not fit a datagram of at most " +
                    std::to_string(kMostBytes) + " B",
                "lower --size, or use tcp");
  return std::make_unique<UdpEndpoint>(config);
}

std::vector<Availability> udp_availability() {
  Availability udp;
  udp.transport = "udp";
  udp.available = true;
  udp.endpoints = {"datagram"};
  udp.operations = {"send"};
  udp.max_bytes = kMostBytes;
  return {udp};
}

}  // namespace weft::transport
#endif
