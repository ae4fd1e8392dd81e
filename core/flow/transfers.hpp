// Transfers of bytes over ports at max-min fair rates: when each of them ends.
//
// Between two changes every rate is constant, so a transfer's end is known: the time of its last
// change plus what was left then over its rate. A heap holds the ends. Arrivals and departures at
// one time are solved together, when the next end is asked for. Time outside is integer ps: an end
// is rounded up, so a transfer is never early, and late by less than 1 ps. Inside, bytes left are
// doubles; each change of rate rounds once, so the error is about 1e-16 of the size per change.
// Transfers that end in the same ps do so in the order of their numbers.
//
// With a step, changes are solved together at the next multiple of it: until then what starts has
// no rate, and what ended leaves its bandwidth unused. Ends stay exact for the rates there are.
// Entry point: `Transfers`. Units: ps, bytes, bytes per ps.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "flow/max_min.hpp"
#include "flow/strict_order.hpp"
#include "packet/time.hpp"

namespace weft::flow {

using packet::kNever;
using packet::Time;

class Transfers {
 public:
  Transfers() = default;
  Transfers(const Transfers&) = delete;
  Transfers& operator=(const Transfers&) = delete;

  // Changes are solved at multiples of this; 0, the default: at once.
  void set_step(Time step);
  // See `MaxMin`.
  void set_tolerance(double tolerance) { rates_.set_tolerance(tolerance); }

  uint32_t add_port(double bytes_per_ps, std::span<const QueueSpec> queues);

  // A transfer that begins now. It is done at 0 bytes; `kUnlimited` bytes never are.
  uint32_t start(std::span<const Hop> path, double bytes, double weight = 1,
                 double cap = kUnlimited);
  // Ends a transfer before it is done, now.
  void stop(uint32_t transfer);

  // From the next solution on: other queues of a port, and another queue of one hop of a transfer.
  void set_queues(uint32_t port, std::span<const QueueSpec> queues);
  void set_queue(uint32_t transfer, uint32_t hop, uint32_t queue);

  // How ports choose, from the next solution on: by queues and weights, as at first; by strict
  // priority of transfers, 0 first; or the fewest bytes left first, in as many strict levels as
  // there are cut-offs (ascending) and one more, or each transfer for itself if there are none.
  // Equal ones share max-min.
  void serve_by_queues() { serve_by(Order::kQueues); }
  void serve_by_priority() { serve_by(Order::kPriority); }
  void serve_by_bytes_left(std::vector<double> cutoffs);
  void set_priority(uint32_t transfer, uint32_t priority);

  // When the next transfer is done, or rates change before; kNever if neither ever happens.
  Time next_end();
  // Moves on to `time`, which is not after `next_end`. Returns the transfers that are done then;
  // their numbers are free from the next start on.
  const std::vector<uint32_t>& advance(Time time);

  Time now() const { return now_; }
  double rate(uint32_t transfer);
  // Bytes sent until now.
  double sent(uint32_t transfer) const;
  size_t active() const { return rates_.flows(); }
  uint64_t port_solutions() const { return rates_.port_solutions(); }
  // Bytes sent over a queue of a port until now; of those of a transfer that goes on, all
  // `uncounted` are missing.
  double carried(uint32_t port, uint32_t queue) const;
  double uncounted(uint32_t transfer) const {
    return sent(transfer) - transfers_[transfer].counted;
  }

 private:
  struct Transfer {
    double size, left, rate;  // endless: size 0, `left` falls below 0
    double counted = 0;       // sent, and in `carried_` already
    uint32_t priority = 0;
    bool endless, active = false;
    Time changed, end;
    uint32_t place;  // in the heap, or kOut
  };
  static constexpr uint32_t kOut = UINT32_MAX;
  struct Rank {
    double key;
    uint32_t transfer;
    bool operator<(const Rank& other) const {
      return key != other.key ? key < other.key : transfer < other.transfer;
    }
  };

  enum class Order : uint8_t { kQueues, kPriority, kBytesLeft };

  void serve_by(Order order);
  void change();
  void settle();
  void settle_in_order();
  void set_rate(uint32_t transfer, double rate);
  void rebuild_heap();
  void count(uint32_t transfer);
  uint32_t find_level(double left) const;
  void remove(uint32_t transfer);
  bool before(uint32_t a, uint32_t b) const;
  void put(uint32_t place, uint32_t transfer);
  void sift_up(uint32_t place, uint32_t transfer);
  void sift_down(uint32_t place, uint32_t transfer);
  void place(uint32_t transfer, Time end);
  void take_out(uint32_t transfer);

  MaxMin rates_;
  std::vector<Transfer> transfers_;
  std::vector<uint32_t> heap_, done_;
  std::vector<double> carried_;  // by queue
  Time now_ = 0, step_ = 0;
  Time due_ = 0;  // when changes are solved
  bool settled_ = true;
  Order order_ = Order::kQueues;
  bool was_in_order_ = false;  // rates are not those of `rates_`
  std::vector<double> cutoffs_;
  StrictOrder strict_order_{rates_};
  std::vector<Rank> ranking_;
  std::vector<uint32_t> in_order_, group_ends_;
};

}  // namespace weft::flow
