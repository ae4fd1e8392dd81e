#include "transport/delay/adapter.hpp"

#include <algorithm>
#include <map>
#include <tuple>

namespace weft::transport {

Rng stream_of(uint64_t seed, uint64_t number) {
  uint64_t state = seed;
  return Rng(splitmix64(state) + number * 0x9E3779B97F4A7C15ull);
}

int64_t DelayWire::arrival(int64_t start, int64_t moving) const {
  if (every_ == 0) return start + moving;
  const int64_t moves = every_ - stall_;  // of each period
  const int64_t moved = start / every_ * moves + std::min(start % every_, moves);
  const int64_t goal = moved + moving;
  // What is due exactly when a stall begins waits for its end.
  return goal / moves * every_ + goal % moves;
}

namespace {

using Key = std::tuple<std::string, std::string, int64_t, double, uint64_t>;

std::mutex& adapters_mutex() {
  static std::mutex mutex;
  return mutex;
}

std::map<Key, std::weak_ptr<DelayAdapter>>& adapters() {
  static std::map<Key, std::weak_ptr<DelayAdapter>> all;
  return all;
}

}  // namespace

std::shared_ptr<DelayAdapter> DelayAdapter::shared(const std::string& device,
                                                   const DelayConfig& config) {
  const std::lock_guard lock(adapters_mutex());
  auto& all = adapters();
  std::erase_if(all, [](const auto& entry) { return entry.second.expired(); });
  auto& shared = all[{device, config.host_post, config.adapter_ns, config.rate_gbps, config.seed}];
  auto adapter = shared.lock();
  if (!adapter) shared = adapter = std::make_shared<DelayAdapter>(config);
  return adapter;
}

DelayAdapter::DelayAdapter(const DelayConfig& config)
    : clock_(Clock::shared()),
      base_(ticks()),
      host_post_(DelayDistribution::parse("delay host_post", config.host_post)),
      adapter_ps_(config.adapter_ns * 1000),
      ps_per_byte_(config.rate_gbps > 0 ? 8e3 / config.rate_gbps : 0),
      rng_(stream_of(config.seed, 0)) {}

uint64_t DelayAdapter::join() {
  const std::lock_guard lock(mutex_);
  return joined_++;
}

int64_t DelayAdapter::busy_ps(uint32_t bytes) const {
  return adapter_ps_ + static_cast<int64_t>(static_cast<double>(bytes) * ps_per_byte_);
}

int64_t DelayAdapter::leaves(int64_t post, uint32_t bytes) {
  const std::lock_guard lock(mutex_);
  if (post >= first_arrives_) {
    post_delay_ = host_post_.draw(rng_);
    first_arrives_ = post + post_delay_;
  }
  last_arrived_ = std::max(last_arrived_, post + post_delay_);
  free_ = std::max(free_, last_arrived_) + busy_ps(bytes);
  return free_;
}

}  // namespace weft::transport
