#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "transport/ofi/endpoint.hpp"

#ifdef WEFT_HAVE_OFI

namespace weft::transport {

namespace {

constexpr std::array<char, 8> kMagic{'w', 'e', 'f', 't', 'o', 'f', 'i', '1'};
constexpr size_t kNameLimit = 512;

// After a while without an answer, others may have the core.
class Patience {
 public:
  void step() {
    if (++steps_ > 1000) usleep(100);
  }

 private:
  uint32_t steps_ = 0;
};

}  // namespace

std::string OfiEndpoint::name_of_local() const {
  fid* object = listener_ ? &listener_->fid : endpoint_ ? &endpoint_->fid : nullptr;
  if (!object) return "";  // the calling side of a connection
  std::string name(kNameLimit, '\0');
  size_t bytes = name.size();
  check("asking for the address", fi_getname(object, name.data(), &bytes));
  name.resize(bytes);
  return name;
}

std::string OfiEndpoint::address() {
  const std::string name = name_of_local();
  const std::string provider = info_->fabric_attr->prov_name;
  const bool is_virtual = info_->domain_attr->mr_mode & FI_MR_VIRT_ADDR;
  Card card{};
  card.magic = kMagic;
  card.nonce = nonce_;
  card.window_bytes = config_.remote_bytes;
  if (window_region_) {
    card.window_base = is_virtual ? reinterpret_cast<uint64_t>(window_.data()) : 0;
    card.window_key = fi_mr_key(window_region_.get());
  }
  card.type = info_->ep_attr->type;
  card.provider_bytes = static_cast<uint32_t>(provider.size());
  card.name_bytes = static_cast<uint32_t>(name.size());
  return std::string(reinterpret_cast<const char*>(&card), sizeof card) + provider + name;
}

// Checks what came from the peer before anything in it is used.
OfiEndpoint::Card OfiEndpoint::parse(const std::string& peer, std::string& name) const {
  Card card;
  if (peer.size() < sizeof card) throw Error(where_, "the peer's address is too short");
  std::memcpy(&card, peer.data(), sizeof card);
  if (card.magic != kMagic || card.provider_bytes > kNameLimit || card.name_bytes > kNameLimit ||
      peer.size() != sizeof card + card.provider_bytes + card.name_bytes)
    throw Error(where_, "the peer's address is not one of this transport",
                "use the same transport and version on both sides");
  const std::string provider = peer.substr(sizeof card, card.provider_bytes);
  if (provider != info_->fabric_attr->prov_name || card.type != info_->ep_attr->type)
    throw Error(where_,
                "the peer has provider " + provider + " with a " +
                    endpoint_name(static_cast<fi_ep_type>(card.type)) + " endpoint, we have " +
                    info_->fabric_attr->prov_name + " with " + config_.endpoint,
                "name provider and endpoint on both sides");
  name = peer.substr(sizeof card + card.provider_bytes);
  return card;
}

void OfiEndpoint::connect(const std::string& peer, int timeout_ms) {
  const int64_t deadline = raw_ns() + int64_t{timeout_ms} * 1'000'000;
  std::string name;
  const Card card = parse(peer, name);
  remote_base_ = card.window_base;
  remote_bytes_ = card.window_bytes;
  remote_key_ = card.window_key;
  if (info_->ep_attr->type == FI_EP_MSG) {
    if (card.nonce == nonce_)
      throw Error(where_, "a connection (msg) cannot be its own peer",
                  "use an rdm endpoint for a loopback");
    if (config_.server)
      accept_peer(deadline);
    else
      call_peer(card, name, deadline);
  } else {
    connect_datagrams(name, deadline);
    if (is_reliable()) exchange_hello(card, deadline);
  }
  if (marks_ == Marks::by_sockets) mark(name);
  connected_ = true;
}

// The greeting has made the provider open what it sends with.
void OfiEndpoint::mark(const std::string& peer) {
  if (mark_sockets(name_of_local(), peer, config_.traffic_class) > 0) return;
  marks_ = Marks::left_out;
  is_marked_ = false;
  if (!config_.class_is_optional)
    throw Error(where_, "the provider has no socket that could be marked",
                "leave the traffic class out, or use tcp, udp or verbs without libfabric");
}

void OfiEndpoint::connect_datagrams(const std::string& name, int64_t deadline_ns) {
  Patience patience;
  while (true) {
    // fi_av_insert reads as much as an address of this format has.
    std::string padded = name;
    padded.resize(kNameLimit);
    const int inserted = fi_av_insert(peers_.get(), padded.data(), 1, &peer_, 0, nullptr);
    if (inserted == 1) return;
    if (inserted != -FI_EAGAIN || raw_ns() > deadline_ns)
      fail("the peer's address", inserted < 0 ? inserted : -FI_EADDRNOTAVAIL,
           "see whether the peer still runs, on the same host for shared memory");
    patience.step();
  }
}

bool OfiEndpoint::is_hello(const fi_cq_data_entry& raw) const {
  const auto* entry = static_cast<const Entry*>(raw.op_context);
  if (raw.flags & FI_REMOTE_WRITE || !entry->receive || raw.len != kHello) return false;
  if (gpu_) copy_from_gpu(entry->id, kHello);
  return std::memcmp(receives_at_ + entry->id * receive_stride_, nonce_.data(), kHello) == 0;
}

// Each side sends the other's nonce; data that overtakes the hello is kept for poll.
void OfiEndpoint::exchange_hello(const Card& card, int64_t deadline_ns) {
  Entry& entry = sends_[0];
  entry.done = false;
  bool posted = false, greeted = false;
  std::memcpy(send_slot(0), card.nonce.data(), kHello);
  if (gpu_) copy_to_gpu(0, kHello);
  Patience patience;
  while (!posted || !entry.done || !greeted) {
    if (!posted) {
      const long rc = fi_send(endpoint_.get(), placed(send_slot(0)), kHello, memory_key_, peer_,
                              &entry.provider);
      if (rc != 0 && rc != -FI_EAGAIN) fail("greeting the peer", rc);
      posted = rc == 0;
    }
    repost();
    fi_cq_data_entry raw{};
    const ssize_t count = fi_cq_read(queue_.get(), &raw, 1);
    if (count == 1 && is_hello(raw)) {
      greeted = true;
      release(static_cast<Entry*>(raw.op_context)->id);
    } else if (count == 1) {
      Completion completion;
      if (take(&raw, 1, &completion) == 1) early_.push_back(completion);
    } else if (count == -FI_EAVAIL) {
      fail_completion();
    } else if (count != -FI_EAGAIN && count != 0) {
      fail("greeting the peer", count);
    } else {
      patience.step();
    }
    if (raw_ns() > deadline_ns)
      throw Error(where_, greeted ? "the peer does not take our greeting" : "the peer is silent",
                  "see whether it runs, and whether a firewall or another host's address is in "
                  "between");
  }
}

// The next connection event; throws at the deadline.
uint32_t OfiEndpoint::next_event(fi_eq_cm_entry* entry, size_t bytes, int64_t deadline_ns) {
  Patience patience;
  while (true) {
    uint32_t event = 0;
    const ssize_t rc = fi_eq_read(events_.get(), &event, entry, bytes, 0);
    if (rc >= 0) return event;
    if (rc == -FI_EAVAIL) fail_event();
    if (rc != -FI_EAGAIN) fail("connecting", rc);
    if (raw_ns() > deadline_ns)
      throw Error(where_, "the peer does not connect", "see whether it runs and can be reached");
    // Some providers move connections along only when asked for completions.
    fi_cq_read(queue_.get(), nullptr, 0);
    patience.step();
  }
}

void OfiEndpoint::accept_peer(int64_t deadline_ns) {
  while (true) {
    // The event and, behind it, what the caller gave to fi_connect.
    alignas(fi_eq_cm_entry) std::array<std::byte, sizeof(fi_eq_cm_entry) + 256> bytes{};
    auto* request = reinterpret_cast<fi_eq_cm_entry*>(bytes.data());
    const uint32_t event = next_event(request, bytes.size(), deadline_ns);
    if (event != FI_CONNREQ) continue;
    const InfoPtr caller(request->info);
    // Anyone can knock; the peer knows our nonce.
    if (std::memcmp(bytes.data() + sizeof(fi_eq_cm_entry), nonce_.data(), sizeof nonce_) != 0) {
      fi_reject(listener_.get(), caller->handle, nullptr, 0);
      continue;
    }
    create_endpoint(*caller);
    check("accepting the peer", fi_accept(endpoint_.get(), nullptr, 0));
    return await_connected(deadline_ns);
  }
}

void OfiEndpoint::call_peer(const Card& card, const std::string& name, int64_t deadline_ns) {
  if (name.empty())
    throw Error(where_, "neither side of this connection listens", "let one side be the server");
  const InfoPtr info(OfiLibrary::get().dupinfo(info_.get()));
  std::free(info->dest_addr);
  info->dest_addr = std::malloc(name.size());
  std::memcpy(info->dest_addr, name.data(), name.size());
  info->dest_addrlen = name.size();
  create_endpoint(*info);
  check("calling the peer",
        fi_connect(endpoint_.get(), info->dest_addr, card.nonce.data(), sizeof card.nonce));
  await_connected(deadline_ns);
}

void OfiEndpoint::await_connected(int64_t deadline_ns) {
  fi_eq_cm_entry entry{};
  const uint32_t event = next_event(&entry, sizeof entry, deadline_ns);
  if (event == FI_CONNECTED) return;
  throw Error(where_, "the peer ended the connection at once", "see what the peer reports");
}

// A connection's end is not a completion: without a look at the events, nobody would notice.
void OfiEndpoint::look_at_events() {
  empty_polls_ = 0;
  if (!connected_) return;
  uint32_t event = 0;
  fi_eq_cm_entry entry{};
  const ssize_t rc = fi_eq_read(events_.get(), &event, &entry, sizeof entry, 0);
  if (rc == -FI_EAVAIL) fail_event();
  if (rc > 0 && event == FI_SHUTDOWN)
    throw Error(where_, "the peer ended the connection", "see what the peer reports");
}

void OfiEndpoint::fail_event() const {
  fi_eq_err_entry error{};
  if (fi_eq_readerr(events_.get(), &error, 0) < 0)
    throw Error(where_, "a connection failed and the provider does not say why");
  throw Error(where_, std::string("connection failed: ") + OfiLibrary::get().strerror(error.err),
              "see whether the peer runs and can be reached");
}

}  // namespace weft::transport
#endif
