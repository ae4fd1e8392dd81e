// Messages of one size over a TCP connection, without a header.
//
// A send completes when the kernel has taken its last byte. Sends that the kernel does not take at
// once stay in a queue that post and poll push on. Received bytes go straight into the ring of
// receive slots: one recv may fill many.
#if defined(__linux__)
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "transport/slots.hpp"
#include "transport/socket/socket.hpp"

namespace weft::transport {

namespace {

constexpr size_t kNonceBytes = 16;
constexpr size_t kMostPieces = 64;
constexpr int kGreetingMs = 300;
// Who expects no more than this back may sleep in send: two such never wait for each other to read.
constexpr uint32_t kSmall = 64;
// A spinning receiver of a stream looks again when this much should have come.
constexpr uint64_t kFewBytes = 2 << 10, kManyBytes = 8 << 10;
constexpr int64_t kLongPauseNs = 20'000;

std::string nonce() {
  std::array<unsigned char, kNonceBytes / 2> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    throw_errno("tcp", "no random numbers");
  std::string text;
  for (unsigned char byte : bytes) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

void wait_for(int descriptor, short events, int64_t until_ns, const std::string& what) {
  const int left = static_cast<int>(std::max<int64_t>(0, (until_ns - raw_ns()) / 1'000'000));
  pollfd entry{descriptor, events, 0};
  const int ready = ::poll(&entry, 1, left);
  if (ready < 0 && errno != EINTR) throw_errno("tcp", what);
  if (ready == 0)
    throw Error("tcp", what + ": the peer did not answer in time", "is it reachable?");
}

class TcpEndpoint final : public Endpoint {
 public:
  explicit TcpEndpoint(const Config& config)
      : config_(config),
        sends_(config.depth, config.send_bytes, config.offset, config.one_buffer,
               config.send_bytes < Slots::kPage, config.pages, config.node),
        slots_(receive_slots(config)),
        receives_(slots_, config.receive_bytes, 0, false, true, config.pages, config.node),
        capacity_(uint64_t{slots_} * config.receive_bytes),
        queue_(config.depth) {
    if (config.server) listen();
  }

  std::string address() override {
    if (!config_.server) return "-";
    return join_address(SocketAddress::local_of(listener_.get()), nonce_);
  }

  void connect(const std::string& peer, int timeout_ms) override {
    const int64_t until = raw_ns() + int64_t{timeout_ms} * 1'000'000;
    if (config_.server)
      accept_from(until);
    else
      connect_to(split_address(peer, "tcp"), until);
    const int at_once = config_.nagle ? 0 : 1;
    setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &at_once, sizeof(at_once));
    const std::string& control = config_.congestion;
    if (!control.empty() && setsockopt(socket_.get(), IPPROTO_TCP, TCP_CONGESTION, control.data(),
                                       static_cast<socklen_t>(control.size())) != 0)
      throw_errno("tcp", "cannot use congestion control '" + control + "'",
                  "see /proc/sys/net/ipv4/tcp_available_congestion_control");
  }

  uint32_t post(std::span<const Work> works) override {
    uint32_t accepted = 0;
    for (const Work& work : works) {
      if (queued_ - done_ == queue_.size()) break;
      if (work.op != Op::send) throw Error("tcp", "has no one-sided operations", "use --op send");
      queue_[queued_++ % queue_.size()] = {sends_.at(work.slot), work.bytes, work.id,
                                           work.signaled};
      ++accepted;
    }
    push();
    return accepted;
  }

  uint32_t poll(std::span<Completion> out) override {
    if (pushed_ < queued_) push();
    uint32_t n = take_sent(out);
    if (n > 0 && n == out.size()) return n;
    n += take_received(out.subspan(n));
    if (n > 0 || config_.receive_bytes == 0 || !pull(MSG_DONTWAIT)) return n;
    return take_received(out);
  }

  uint32_t wait(std::span<Completion> out, int64_t timeout_ns) override {
    if (!config_.events) return poll(out);
    if (pushed_ < queued_) push();
    uint32_t n = take_sent(out);
    n += take_received(out.subspan(n));
    if (n > 0) return n;
    const bool is_long = timeout_ns >= kLongWaitNs;
    if (is_long && pushed_ < queued_ && config_.receive_bytes <= kSmall) {
      set_timeout(socket_.get(), SO_SNDTIMEO, timeout_ns, send_timeout_ns_);
      push(0);
      return poll(out);
    }
    if (!is_long || pushed_ < queued_ || config_.receive_bytes == 0) {
      const short events = static_cast<short>((pushed_ < queued_ ? POLLOUT : 0) |
                                              (config_.receive_bytes > 0 ? POLLIN : 0));
      sleep_until_ready(socket_.get(), events, timeout_ns);
      return poll(out);
    }
    set_timeout(socket_.get(), SO_RCVTIMEO, timeout_ns, receive_timeout_ns_);
    return pull(0) ? take_received(out) : 0;
  }

  uint32_t gather(std::span<Completion> out, int64_t timeout_ns, bool sleeps) override {
    if (sleeps) return wait(out, timeout_ns);
    if ((handed_ + 1) * config_.receive_bytes <= pulled_) return poll(out);
    if (is_drained_) pause_between_looks(pause_ns_);
    const uint64_t before = pulled_;
    const uint32_t n = poll(out);
    const uint64_t bytes = pulled_ - before;
    if (bytes > kManyBytes)
      pause_ns_ = std::max(pause_ns_ / 2, kShortPauseNs);
    else if (is_drained_ && bytes < kFewBytes)
      pause_ns_ = std::min(2 * pause_ns_, kLongPauseNs);
    return n;
  }

  void release(uint64_t) override { ++released_; }

  std::byte* send_slot(uint32_t slot) override { return sends_.at(slot); }
  const std::byte* receive_slot(uint64_t slot) override { return receives_.at(slot); }

  std::map<std::string, std::string> describe() override {
    auto facts = describe_socket(socket_.get());
    facts["pages"] = sends_.buffer().pages();
    char name[16] = "";
    socklen_t length = sizeof(name);
    if (getsockopt(socket_.get(), IPPROTO_TCP, TCP_CONGESTION, name, &length) == 0)
      facts["congestion_control"] = name;
    int at_once = 0;
    length = sizeof(at_once);
    if (getsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &at_once, &length) == 0)
      facts["nagle"] = at_once != 0 ? "off" : "on";
    int mss = 0;
    length = sizeof(mss);
    if (getsockopt(socket_.get(), IPPROTO_TCP, TCP_MAXSEG, &mss, &length) == 0)
      facts["segment_bytes"] = std::to_string(mss);
    return facts;
  }

  bool is_reliable() const override { return true; }

 private:
  struct Sending {
    std::byte* data;
    uint32_t bytes;
    uint64_t id;
    bool signaled;
  };

  void listen() {
    nonce_ = nonce();
    const auto local =
        SocketAddress::of(config_.address.empty() ? "127.0.0.1" : config_.address, 0, "tcp");
    listener_ = Descriptor(::socket(local.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (listener_.get() < 0) throw_errno("tcp", "no socket");
    set_options(listener_.get(), config_, local.is_v6());
    if (::bind(listener_.get(), local.get(), local.length) != 0 ||
        ::listen(listener_.get(), 8) != 0)
      throw_errno("tcp", "cannot listen on " + local.host());
  }

  // Only who knows the nonce is the peer: others are let go.
  void accept_from(int64_t until) {
    for (;;) {
      wait_for(listener_.get(), POLLIN, until, "waiting for the peer to connect");
      Descriptor candidate(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (candidate.get() < 0) continue;
      std::array<char, kNonceBytes> greeting_nonce{};
      // The peer greets at once; who does not must not keep it waiting.
      pollfd greeting{candidate.get(), POLLIN, 0};
      if (::poll(&greeting, 1, kGreetingMs) != 1) continue;
      if (recv(candidate.get(), greeting_nonce.data(), greeting_nonce.size(),
               MSG_WAITALL | MSG_DONTWAIT) == static_cast<ssize_t>(greeting_nonce.size()) &&
          std::equal(greeting_nonce.begin(), greeting_nonce.end(), nonce_.begin())) {
        is_marked_ =
            set_options(candidate.get(), config_, SocketAddress::local_of(candidate.get()).is_v6());
        socket_ = std::move(candidate);
        return;
      }
    }
  }

  void connect_to(const Reachable& peer, int64_t until) {
    const auto remote = SocketAddress::of(peer.host, peer.port, "tcp");
    socket_ = Descriptor(
        ::socket(remote.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (socket_.get() < 0) throw_errno("tcp", "no socket");
    is_marked_ = set_options(socket_.get(), config_, remote.is_v6());
    const std::string where = "tcp " + peer.host + ":" + std::to_string(peer.port);
    if (!config_.address.empty()) {
      const auto local = SocketAddress::of(config_.address, 0, "tcp");
      if (::bind(socket_.get(), local.get(), local.length) != 0)
        throw_errno("tcp", "cannot bind to " + config_.address,
                    "give an address of this host, of the peer's family");
    }
    if (::connect(socket_.get(), remote.get(), remote.length) != 0) {
      if (errno != EINPROGRESS) throw_errno(where, "cannot connect");
      wait_for(socket_.get(), POLLOUT, until, "connecting to " + peer.host);
      int error = 0;
      socklen_t length = sizeof(error);
      getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
      errno = error;
      if (error != 0) throw_errno(where, "cannot connect", "a firewall between the two?");
    }
    make_blocking();
    if (send(socket_.get(), peer.rest.data(), peer.rest.size(), MSG_NOSIGNAL) !=
        static_cast<ssize_t>(peer.rest.size()))
      throw_errno(where, "cannot greet the peer");
  }

  // Calls that must not block say so themselves (MSG_DONTWAIT): wait() then needs one call, not
  // two.
  void make_blocking() {
    fcntl(socket_.get(), F_SETFL, fcntl(socket_.get(), F_GETFL) & ~O_NONBLOCK);
  }

  // Gives the kernel what it takes of the queue; without MSG_DONTWAIT sleeps until it takes some.
  void push(int flags = MSG_DONTWAIT) {
    while (pushed_ < queued_) {
      std::array<iovec, kMostPieces> pieces;
      size_t n = 0;
      for (uint64_t i = pushed_; i < queued_; ++i) {
        const Sending& next = queue_[i % queue_.size()];
        const uint32_t skip = i == pushed_ ? partial_ : 0;
        std::byte* start = next.data + skip;
        const size_t bytes = next.bytes - skip;
        if (n > 0 &&
            static_cast<std::byte*>(pieces[n - 1].iov_base) + pieces[n - 1].iov_len == start) {
          pieces[n - 1].iov_len += bytes;
        } else {
          if (n == kMostPieces) break;
          pieces[n++] = {start, bytes};
        }
      }
      ssize_t sent;
      if (n == 1) {
        sent = ::send(socket_.get(), pieces[0].iov_base, pieces[0].iov_len, flags | MSG_NOSIGNAL);
      } else {
        msghdr message{};
        message.msg_iov = pieces.data();
        message.msg_iovlen = n;
        sent = ::sendmsg(socket_.get(), &message, flags | MSG_NOSIGNAL);
      }
      if (sent < 0) {
        if (errno == EAGAIN || errno == EINTR || errno == ENOBUFS) return;
        throw_errno("tcp", "the connection broke while sending", "did the peer end?");
      }
      account(static_cast<uint64_t>(sent));
    }
  }

  void account(uint64_t sent) {
    sent += partial_;
    while (pushed_ < queued_ && sent >= queue_[pushed_ % queue_.size()].bytes)
      sent -= queue_[pushed_++ % queue_.size()].bytes;
    partial_ = static_cast<uint32_t>(sent);
  }

  uint32_t take_sent(std::span<Completion> out) {
    uint32_t n = 0;
    while (done_ < pushed_ && n < out.size()) {
      const Sending& sending = queue_[done_++ % queue_.size()];
      if (sending.signaled) {
        out[n] = {};
        out[n++].id = sending.id;
      }
    }
    return n;
  }

  uint32_t take_received(std::span<Completion> out) {
    uint32_t n = 0;
    for (; n < out.size() && (handed_ + 1) * config_.receive_bytes <= pulled_ &&
           config_.receive_bytes > 0;
         ++n) {
      out[n] = {};
      out[n].kind = Completion::received;
      out[n].bytes = config_.receive_bytes;
      out[n].id = handed_++ % slots_;
    }
    return n;
  }

  // Reads what fits between the last byte and the oldest slot not released; false: nothing came.
  bool pull(int flags) {
    const uint64_t free = capacity_ - (pulled_ - released_ * config_.receive_bytes);
    const uint64_t at = pulled_ % capacity_;
    const size_t room = std::min(free, capacity_ - at);
    if (room == 0) return false;
    const ssize_t got = ::recv(socket_.get(), receives_.at(0) + at, room, flags);
    is_drained_ = got < static_cast<ssize_t>(room);
    if (got > 0) {
      pulled_ += static_cast<uint64_t>(got);
      return true;
    }
    if (got == 0) throw Error("tcp", "the peer closed the connection", "did it end?");
    if (errno == EAGAIN || errno == EINTR) return false;
    throw_errno("tcp", "the connection broke while receiving", "did the peer end?");
  }

  Config config_;
  Slots sends_;
  uint32_t slots_;
  Slots receives_;
  uint64_t capacity_;
  std::vector<Sending> queue_;
  uint64_t queued_ = 0, pushed_ = 0, done_ = 0;      // works, counted from the start
  uint32_t partial_ = 0;                             // bytes the kernel took of work `pushed_`
  uint64_t pulled_ = 0, handed_ = 0, released_ = 0;  // bytes; messages
  bool is_drained_ = false;                          // the last look took all that had come
  int64_t pause_ns_ = kShortPauseNs;                 // of gather, so that each look gets its worth
  std::string nonce_;
  Descriptor listener_, socket_;
  int64_t receive_timeout_ns_ = -1, send_timeout_ns_ = -1;
};

}  // namespace

std::unique_ptr<Endpoint> open_tcp(const Config& config) {
  if (config.send_bytes == 0 && config.receive_bytes == 0)
    throw Error("tcp", "messages of 0 B cannot be told apart", "use --size 1 or more");
  return std::make_unique<TcpEndpoint>(config);
}

std::vector<Availability> tcp_availability() {
  Availability tcp;
  tcp.transport = "tcp";
  tcp.available = true;
  tcp.endpoints = {"stream"};
  tcp.operations = {"send"};
  tcp.max_bytes = uint64_t{1} << 30;
  return {tcp};
}

}  // namespace weft::transport
#endif
