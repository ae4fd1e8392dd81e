// The simulated host, adapter and wire of the delay transport: when things happen.
//
// All times are picoseconds since the adapter was opened. Nothing here reads a clock: a time goes
// in, draws are added, a later time comes out.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "base/clock.hpp"
#include "base/rng.hpp"
#include "transport/delay/distribution.hpp"
#include "transport/endpoint.hpp"

namespace weft::transport {

// Independent streams of one seed.
Rng stream_of(uint64_t seed, uint64_t number);

// Stands still at the end of every period, both directions at once.
class DelayWire {
 public:
  DelayWire(int64_t every_ps, int64_t stall_ps) : every_(every_ps), stall_(stall_ps) {}

  // When what starts at `start` and has to move for `moving` is through.
  int64_t arrival(int64_t start, int64_t moving) const;

 private:
  int64_t every_, stall_;
};

// One sending side, shared by all endpoints of the same device name and the same host parameters.
class DelayAdapter {
 public:
  static std::shared_ptr<DelayAdapter> shared(const std::string& device, const DelayConfig& config);
  explicit DelayAdapter(const DelayConfig& config);

  int64_t ps_at(uint64_t reading) const { return clock_.ps(reading - base_); }
  int64_t now_ps() const { return ps_at(ticks()); }
  // The first reading of the counter that is not before this time.
  uint64_t ticks_at(int64_t ps) const { return base_ + clock_.ticks_of_ps(ps) + 1; }

  // When a message posted at `post` has left the adapter.
  int64_t leaves(int64_t post, uint32_t bytes);
  // The time the adapter needs for a message.
  int64_t busy_ps(uint32_t bytes) const;
  // Each endpoint's own number, from 0.
  uint64_t join();

 private:
  const Clock& clock_;
  const uint64_t base_;
  const DelayDistribution host_post_;
  const int64_t adapter_ps_;
  const double ps_per_byte_;

  std::mutex mutex_;
  Rng rng_;
  uint64_t joined_ = 0;
  int64_t post_delay_ = 0;      // of the posts now on their way
  int64_t first_arrives_ = -1;  // the first of these
  int64_t last_arrived_ = 0;
  int64_t free_ = 0;
};

}  // namespace weft::transport
