// One end of one connection, the same for every transport.
//
// An endpoint owns its memory: `depth` send slots and `receive_depth` receive slots. A message is a
// Work, posted from a slot; what became of it comes back as a Completion from poll or wait. All
// messages of a direction have at most the size agreed on in the Config (byte streams: exactly
// that size, so that no header is needed). One thread uses an endpoint at a time.
//
// Life: open(config) -> address() to the peer, by any channel -> connect(peer's address) on both
// sides at about the same time -> post, poll -> destructor, which frees everything on every path.
// Errors are weft::Error; a full queue is not one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace weft::transport {

enum class Op : uint8_t { send, tagged, inject, write, write_imm, read, fetch_add, compare_swap };

constexpr bool is_one_sided(Op op) {
  return op == Op::write || op == Op::read || op == Op::fetch_add || op == Op::compare_swap;
}
constexpr bool is_atomic(Op op) {
  return op == Op::fetch_add || op == Op::compare_swap;
}

// "send", "tagged", "inject", "write", "write-imm", "read", "fetch-add", "compare-swap".
const char* name_of(Op op);
Op op_named(const std::string& name);

// What the delay transport injects. Texts are distributions: "10 us", "uniform(5 us, 15 us)",
// "exponential(10 us)", "lognormal(10 us, 0.5)" (median, sigma), "0.01 * exponential(1 ms)" (that
// with probability 0.01), and sums of these with "+".
//
// A message posted at t reaches the adapter at t + host_post. Posts made while an earlier one is on
// its way share its delay (one bus: what holds up the first holds up those behind it). The adapter
// works on it for adapter_ns + bytes / rate_gbps, one message at a time over all endpoints of one
// `device` name, and then it leaves:
//   to the far adapter and its ACK back   wire + receive_ns + wire + receive_ns
//   ... of a write, read or atomic        + remote_memory at the far side
//   to the far program and its echo back  wire + receive_ns + remote_host + wire + receive_ns
//   round the adapter's own loopback      loopback + 2 receive_ns
// and can be polled host_complete later. Datagrams (endpoint "ud") complete when they have left.
struct DelayConfig {
  std::string wire = "10 us";          // one way, each message and each direction drawn alone
  std::string loopback = "0 ns";       // the loopback's own path, to and fro
  std::string host_post = "0 ns";      // from post to the adapter: doorbell, PCIe, fetch of data
  std::string host_complete = "0 ns";  // from the adapter to a completion that can be polled
  std::string remote_host = "0 ns";    // the far adapter to its program and back
  std::string remote_memory = "0 ns";  // the far adapter's access to its memory
  int64_t adapter_ns = 0;              // the adapter is busy this long with each message it sends
  int64_t receive_ns = 0;              // an adapter takes this long for each message or ACK it gets
  double rate_gbps = 0;                // and this rate for its bytes; 0: no time
  double loss = 0;                     // probability of losing a message on its way ("ud" only)
  int64_t stall_every_ns = 0;          // the wire stands still for stall_ns, this often; 0: never
  int64_t stall_ns = 0;
  uint64_t seed = 1;
  std::string peer = "echo";  // the far program: "echo", "sink", "duplex" (sends as many), or
                              // "transfer" (acknowledges as transfer_receive does)
  uint64_t samples = 0;       // true times to keep one by one, the first ones; see delay.hpp
};

struct Config {
  std::string transport;  // "verbs", "ofi", "tcp", "udp", "delay"
  std::string device;     // verbs: device; ofi: provider; "": the first that fits
  std::string endpoint;   // verbs: rc, uc, ud, srd; ofi: rdm, msg, dgram; "": the default
  std::string address;    // local address to bind or listen on; "": any that reaches the peer
  bool server = false;    // which side listens where the two differ (tcp, MSG endpoints)

  uint32_t send_bytes = 64;        // largest message we send
  uint32_t receive_bytes = 64;     // largest message we receive
  uint32_t depth = 1;              // most signaled and unsignaled works outstanding
  uint32_t receive_depth = 1;      // receives posted ahead
  uint64_t remote_bytes = 0;       // window of ours that the peer may read and write; 0: none
  bool one_buffer = false;         // every send slot is the same memory
  bool events = false;             // wait() sleeps until an event, instead of polling
  uint32_t inline_bytes = 0;       // verbs: largest message sent inline; ofi: inject up to this
  bool inline_by_device = false;   // instead: as much as pays on this device; see describe()
  uint32_t offset = 0;             // of each message from its slot's (page-aligned) start
  std::string pages = "auto";      // see Buffer
  std::string memory = "host";     // where messages lie: "host", "cuda" or "cuda:N"
  bool contents = false;           // not on the host: loops read and write whole messages
  int node = -1;                   // NUMA node of the memory; -1: of the device if known
  int port = 0;                    // verbs; 0: the first active one, shown in describe()
  int gid_index = -1;              // verbs; -1: chosen, and shown in describe()
  int partition = 0;               // verbs: partition key; 0: the first of the port's table
  uint32_t path_mtu = 0;           // verbs; 0: the port's
  std::string posting = "auto";    // verbs: "wr" (ibv_wr_*), "list" (ibv_post_send), "auto": wr
                                   // where the device has it
  bool strict_ordering = false;    // verbs: no relaxed ordering of the adapter's writes
  bool separate_contexts = false;  // verbs: a context, domain and registrations of its own
  uint32_t queue_members = 1;      // verbs: endpoints of this thread that share a completion queue
  int service_level = 0;           // verbs
  int traffic_class = 0;           // verbs: GRH; tcp, udp, ofi: the whole TOS byte (DSCP << 2)
  bool class_is_optional = false;  // where it cannot be set it is left out: see is_marked()
  int priority = -1;               // tcp, udp: SO_PRIORITY; -1: as is
  bool device_timestamps = false;  // verbs: completions carry the device's clock, if it can
  bool delivery = false;   // ofi: a send completes when the peer's side has it (rperf needs it)
  std::string congestion;  // tcp: congestion control; "": the system's
  bool nagle = false;      // tcp: small messages may wait to leave together
  int busy_poll_us = 0;    // tcp, udp: SO_BUSY_POLL
  DelayConfig delay;
};

struct Work {
  Op op = Op::send;
  bool signaled = true;        // false: no completion of its own
  uint32_t slot = 0;           // send slot; reads and atomics put what they fetch there
  uint32_t bytes = 0;          // atomics: 8
  uint32_t immediate = 0;      // write-imm
  uint64_t id = 0;             // comes back in the completion
  uint64_t remote_offset = 0;  // into the peer's window
  uint64_t operand = 0;        // fetch-add: what to add; compare-swap: the new value
  uint64_t compare = 0;        // compare-swap
};

struct Completion {
  enum Kind : uint8_t { sent, received } kind = sent;
  bool has_immediate = false;
  uint32_t bytes = 0;  // received
  uint32_t immediate = 0;
  uint64_t id = 0;            // the work's id, or the receive slot
  uint64_t device_ticks = 0;  // 0: the device gives none
};

class Endpoint {
 public:
  virtual ~Endpoint() = default;
  Endpoint() = default;
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  // What the peer needs to reach us: opaque bytes, at most 4 KiB.
  virtual std::string address() = 0;
  // Throws weft::Error when the peer is not there within the time. An endpoint connected to its
  // own address is a loopback, where the transport has that.
  virtual void connect(const std::string& peer, int timeout_ms) = 0;

  // Queues these in order; returns how many were taken (a prefix). Receives are posted already.
  virtual uint32_t post(std::span<const Work> works) = 0;
  // Makes progress and returns at most `out.size()` completions; never sleeps.
  virtual uint32_t poll(std::span<Completion> out) = 0;
  // As poll, but sleeps up to the time for the first completion, or until a refused post may
  // succeed. Without Config::events it polls.
  virtual uint32_t wait(std::span<Completion> out, int64_t timeout_ns) = 0;
  // As wait if it sleeps, else as poll, for a stream that nobody answers: messages may gather.
  virtual uint32_t gather(std::span<Completion> out, int64_t timeout_ns, bool sleeps) {
    return sleeps ? wait(out, timeout_ns) : poll(out);
  }
  // Gives a receive slot back, to be filled again. In the order received.
  virtual void release(uint64_t receive_slot) = 0;

  virtual std::byte* send_slot(uint32_t slot) = 0;
  virtual const std::byte* receive_slot(uint64_t slot) = 0;
  // Our window for the peer's one-sided operations; empty when remote_bytes is 0.
  virtual std::span<std::byte> window() { return {}; }

  // What was opened, as a user would want to see it in a record: device, provider, MTU, GID,
  // depths granted, pages, port state.
  virtual std::map<std::string, std::string> describe() = 0;
  virtual bool is_reliable() const = 0;  // false: messages may be lost and reordered
  // The bits of Completion::device_ticks that count.
  virtual uint64_t device_tick_mask() const { return ~uint64_t{0}; }
  // Whether packets bear the traffic class; false only where it was optional. Known once connected.
  bool is_marked() const { return is_marked_; }

  // Send slots, and works that may be outstanding.
  uint32_t depth() const { return depth_; }

 protected:
  bool is_marked_ = true;

 private:
  friend std::unique_ptr<Endpoint> open(const Config& config);
  uint32_t depth_ = 1;
};

// From one of the device's ticks to a later one (or, negative, an earlier one) of a counter that
// wraps at its width.
constexpr int64_t tick_difference(uint64_t later, uint64_t earlier, uint64_t mask) {
  const uint64_t difference = (later - earlier) & mask;
  return difference > mask / 2 ? -static_cast<int64_t>(mask - difference) - 1
                               : static_cast<int64_t>(difference);
}

// Whether a transport, device or provider can be used here, for the doctor and for negotiation.
struct Availability {
  std::string transport;
  std::string device;  // device or provider; "" for the transport as a whole
  bool available = false;
  std::string reason;  // why not
  std::string remedy;
  std::vector<std::string> endpoints;
  std::vector<std::string> operations;
  uint64_t max_bytes = 0;
  std::map<std::string, std::string> facts;
};

// Throws weft::Error with reason and remedy when it cannot be.
std::unique_ptr<Endpoint> open(const Config& config);
// Of one transport, or of all: those of libraries take a moment.
std::vector<Availability> availability(const std::string& transport = "");
// The RDMA device that open would take, "" for other transports.
std::string chosen_device(const Config& config);

// Each transport's own file has these two.
std::unique_ptr<Endpoint> open_tcp(const Config& config);
std::unique_ptr<Endpoint> open_udp(const Config& config);
std::unique_ptr<Endpoint> open_verbs(const Config& config);
std::unique_ptr<Endpoint> open_ofi(const Config& config);
std::string chosen_verbs_device(const Config& config);
std::unique_ptr<Endpoint> open_delay(const Config& config);
std::vector<Availability> tcp_availability();
std::vector<Availability> udp_availability();
std::vector<Availability> verbs_availability();
std::vector<Availability> ofi_availability();
std::vector<Availability> delay_availability();

}  // namespace weft::transport
