// Hop-by-hop credits of one lane of one directed link, as the sender sees them.
//
// Freed space is advertised at most every `interval`; an advertisement acts at the sender
// `flight` later. Both are folded into timestamps: no event is spent on a credit unless a sender
// waits for it. Units: ps, blocks of 64 bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "packet/time.hpp"

namespace weft::packet {

class CreditLoop {
 public:
  void init(int blocks) { available_ = capacity_ = blocks; }

  int available() const { return available_; }
  int capacity() const { return capacity_; }
  int in_flight() const { return in_flight_; }

  void consume(int blocks) { available_ -= blocks; }

  // `blocks` leave the receiver's buffer at `freed`. Returns when they act at the sender.
  Time give_back(Time freed, int blocks, Time interval, Time flight) {
    in_flight_ += blocks;
    if (size_ != 0 && freed <= last_advert_) {  // rides on an advertisement not yet sent
      at(size_ - 1).blocks += blocks;
      return at(size_ - 1).acts;
    }
    last_advert_ = freed > last_advert_ + interval ? freed : last_advert_ + interval;
    if (!ring_ || size_ == mask_ + 1) grow();
    ++size_;
    at(size_ - 1) = {last_advert_ + flight, blocks};
    return last_advert_ + flight;
  }

  // Takes in what has arrived by `now`.
  void mature(Time now) {
    while (size_ != 0 && ring_[first_].acts <= now) {
      available_ += ring_[first_].blocks;
      in_flight_ -= ring_[first_].blocks;
      first_ = (first_ + 1) & mask_;
      --size_;
    }
  }

  // When `blocks` will be available, or kNever if that much is not on its way.
  Time when(int blocks) {
    int sum = available_;
    for (uint32_t i = 0; i < size_; ++i) {
      sum += at(i).blocks;
      if (sum >= blocks) return at(i).acts;
    }
    return kNever;
  }

 private:
  struct Advert {
    Time acts;
    int blocks;
  };

  Advert& at(uint32_t i) { return ring_[(first_ + i) & mask_]; }

  [[gnu::noinline]] void grow() {
    const uint32_t larger = ring_ ? 2 * (mask_ + 1) : 4;
    auto ring = std::make_unique<Advert[]>(larger);
    for (uint32_t i = 0; i < size_; ++i) ring[i] = at(i);
    ring_ = std::move(ring);
    mask_ = larger - 1;
    first_ = 0;
  }

  int available_ = 0;
  int capacity_ = 0;
  int in_flight_ = 0;
  uint32_t first_ = 0, size_ = 0, mask_ = 0;
  Time last_advert_ = -(Time{1} << 60);
  std::unique_ptr<Advert[]> ring_;
};

}  // namespace weft::packet
