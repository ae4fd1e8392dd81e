#include <algorithm>
#include <bit>
#include <cmath>
#include <sstream>

#include "packet/event_loop.hpp"
#include "packet/placed_workload.hpp"
#include "packet/random_streams.hpp"
#include "packet/simulation.hpp"

// The hot paths are one translation unit so that the compiler sees through them.
#include "packet/adapter_receive.inl"
#include "packet/adapter_send.inl"
#include "packet/grants.inl"
#include "packet/link.inl"
#include "packet/prefetch.inl"
#include "packet/steady.inl"
#include "packet/switch.inl"

namespace weft::packet {

namespace {

template <class Values>
auto data_or_null(const Values& values) -> decltype(values.data()) {
  return values.empty() ? nullptr : values.data();
}

}  // namespace

Partition::Partition(Simulation& s, uint32_t number, uint32_t partitions)
    : simulation_(s),
      number_(number),
      alone_(partitions == 1),
      run_(s.run_),
      switch_(s.switch_),
      credit_(s.credit_),
      adapter_(s.adapter_),
      lanes_(s.lanes_),
      lane_bits_(s.lane_bits_),
      words_(s.words_),
      max_ports_(s.max_ports_),
      hosts_(s.hosts_),
      fetch_ps_per_byte_(s.fetch_ps_per_byte_),
      store_ps_per_byte_(s.store_ps_per_byte_),
      loopback_ps_per_byte_(s.loopback_ps_per_byte_),
      queue_(s.event_width_log2(number), 12, s.memory_),
      pool_(s.memory_),
      rng_(seed_partition(s.run_.seed, number)),
      groups_(s.run_.groups),
      links_(s.links_.data()),
      out_(s.out_.data()),
      in_(s.in_.data()),
      marked_(s.marked_.data()),
      send_(s.send_.data()),
      adapters_(s.adapters_.data()),
      granting_(s.granting_.data()),
      virtual_queues_(s.virtual_queues_.data()),
      feeding_(s.feeding_.data()),
      waiting_(s.waiting_.data()),
      arbiters_(s.arbiters_.data()),
      tables_(s.tables_of_.data()),
      flows_(s.flows_.data()),
      arrivals_(s.arrivals_.data()),
      sinks_(s.sinks_.data()),
      index_(s.index_.data()),
      host_node_(s.host_node_.data()),
      host_link_(s.host_link_.data()),
      port_base_(s.port_base_.data()),
      in_link_(s.in_link_.data()),
      out_link_(s.out_link_.data()),
      next_hop_(data_or_null(s.next_hop_)),
      next_hop_wide_(data_or_null(s.next_hop_wide_)),
      group_start_(s.group_start_.data()),
      group_ports_(s.group_ports_.data()),
      lane_maps_(s.lane_maps_.data()),
      lane_map_base_(data_or_null(s.lane_map_base_)),
      lane_map_(s.lane_map_.data()) {
  for (Outbox& outbox : outbox_) outbox.to.resize(alone_ ? 0 : partitions);
}

uint8_t Partition::first_lane(uint32_t link, int sl) const {
  return lane_of(links_[link].from, 0, links_[link].port, sl);
}

// The lane of a service level from one port of a node to another; 0 = from the host itself.
uint8_t Partition::lane_of(uint32_t node, uint32_t in_port, uint32_t out_port, int sl) const {
  if (!lane_map_base_ || lane_map_base_[node] == kNone) return lane_maps_[0][sl];
  const uint32_t ports = port_base_[node + 1] - port_base_[node];
  return lane_maps_[lane_map_[lane_map_base_[node] + in_port * ports + out_port - 1]][sl];
}

Partition::~Partition() = default;

void Partition::skip_steady() {
  if (Steady::is_possible(*this)) steady_ = std::make_unique<Steady>(*this);
}

Time Partition::skipped() const {
  return steady_ ? steady_->skipped() : 0;
}

template <bool kPlain>
Partition::Stop EventLoop<kPlain>::run(Time end, uint64_t max_events) {
  return steady_ ? run_events<true>(end, max_events) : run_events<false>(end, max_events);
}

template <bool kPlain>
template <bool kLooks>
Partition::Stop EventLoop<kPlain>::run_events(Time end, uint64_t max_events) {
  for (uint64_t n = 0; n < max_events; ++n) {
    const Event event = queue_.top();
    if (event.time >= end) return Stop::kNoMore;
    const uint32_t what = event.what >> kIdBits;
    if (what == kEnd) [[unlikely]]
      return Stop::kEnd;
    queue_.pop();
    now_ = event.time;
    ++events_;
    const uint32_t id = event.what & kIdMask;
    switch (what) {
      case kArrive:
        if (links_[pool_[id].in_link].to_switch) {
          arrive_at_switch(id);
        } else {
          deliver_to_host(id);
        }
        break;
      case kKick: {
        Link& link = links_[id];
        if (event.time != link.kick_at) break;  // superseded by an earlier one
        link.kick_at = kNever;
        if (link.busy_until > now_) {
          ensure_kick(id, link.busy_until);
        } else if (link.from_switch) {
          switch_transmit(id);
        } else {
          host_transmit(id);
        }
        break;
      }
      case kTimer:
        on_timer(id);
        break;
      case kAckReady:
        respond(id);
        break;
      case kRank:
        if (workload_->advance(id, now_)) end_traffic(workload_->traffic(id));
        break;
      case kSample:
        simulation_.sample(now_);
        // The end event is always there; with nothing else to come there is nothing to sample.
        if (queue_.size() > 1) schedule(now_ + run_.sample_interval, kSample, 0);
        break;
    }
    if constexpr (kLooks) steady_->look();
  }
  return Stop::kBudget;
}

void Partition::take_step(int step, const Partitions& all, uint32_t window, Time end) {
  if (step == 0) return prefetch_mail(all, window - 1);
  if (step == kSteps - 1) return run_window(end);
  if (step == 1) begin_window(all, window, end);
  prefetch(step - 1);
}

// Reads the mail of the last window; what happens in this one is then in the queue.
void Partition::begin_window(const Partitions& all, uint32_t window, Time end) {
  read_mail(all, window - 1);
  sending_ = &outbox_[window & 1];
  for (uint64_t bits = sending_->not_empty; bits; bits &= bits - 1) {
    Mail& mail = sending_->to[static_cast<size_t>(std::countr_zero(bits))];
    mail.arrivals.clear();
    mail.credits.clear();
  }
  sending_->not_empty = 0;
  mail_time_ = kNever;
  window_events_ = queue_.before(end);
}

void Partition::run_window(Time end) {
  const uint64_t before = events_;
  run(end, UINT64_MAX);
  if (events_ != before) last_event_ = now_;
  now_ = end;
}

template <bool kPlain>
void EventLoop<kPlain>::read_mail(const Partitions& all, uint32_t window) {
  for (const auto& other : all) {
    const Mail* mail = find_mail(*other, window);
    if (!mail) continue;
    for (const Arrival& arrival : mail->arrivals) {
      const uint32_t packet = pool_.take();
      pool_[packet] = arrival.packet;
      schedule(arrival.time, kArrive, packet);
    }
    for (const Credit& credit : mail->credits) {
      take_back(credit.link, credit.vl, credit.freed, credit.blocks);
    }
  }
}

// What `sender` sent here in a window, or null.
const Partition::Mail* Partition::find_mail(const Partition& sender, uint32_t window) const {
  const Outbox& outbox = sender.outbox_[window & 1];
  return outbox.not_empty >> number_ & 1 ? &outbox.to[number_] : nullptr;
}

void Partition::empty_outboxes() {
  for (Outbox& outbox : outbox_) {
    for (Mail& mail : outbox.to) mail = {};
    outbox.not_empty = 0;
  }
  mail_time_ = kNever;
}

void Partition::broken(const std::string& law, uint32_t link, const Packet& p) const {
  std::ostringstream text;
  text << law << " at " << now_ << " ps on the link from node " << links_[link].from << " port "
       << links_[link].port << " to node " << links_[link].to << ", lane " << int{p.vl}
       << ": packet of flow " << p.flow << ", message " << p.message << ", " << p.wire_bytes
       << " bytes";
  throw BrokenInvariant(text.str());
}

std::unique_ptr<Partition> make_partition(Simulation& s, uint32_t number, uint32_t partitions) {
  const SwitchSpec& switches = s.switch_;
  const AdapterSpec& adapter = s.adapter_;
  const bool random = switches.jitter_mean || adapter.hiccup_mean || adapter.poll_jitter_mean;
  const bool plain = s.lanes_ == 1 && s.words_ == 1 && !random && !switches.virtual_output_queues &&
                     !switches.congestion.enabled && !adapter.grants.enabled &&
                     s.fetch_ps_per_byte_ == 0 && s.store_ps_per_byte_ == 0 &&
                     s.next_hop_wide_.empty() && s.lane_map_base_.empty();
  if (plain) return std::make_unique<EventLoop<true>>(s, number, partitions);
  return std::make_unique<EventLoop<false>>(s, number, partitions);
}

}  // namespace weft::packet
