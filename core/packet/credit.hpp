// Hop-by-hop credits of one lane of one directed link, as the sender sees them.
//
// Freed space is advertised at most every `interval`; an advertisement acts at the sender
// `flight` later. Both are folded into timestamps: no event is spent on a credit unless a sender
// waits for it. The next advertisement to act lies in the object itself, which is all that a
// short loop ever needs; further ones are kept in a ring. Units: ps, blocks of 64 bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "packet/time.hpp"

namespace weft::packet {

class CreditLoop {
 public:
  void init(int blocks) { available_ = blocks; }

  int available() const { return available_; }

  // Blocks advertised but not yet seen by the sender.
  int in_flight() const {
    int blocks = next_.blocks;
    for (uint32_t i = 0; i < size_; ++i) blocks += ring_[(first_ + i) & mask_].blocks;
    return blocks;
  }

  void consume(int blocks) { available_ -= blocks; }

  // `blocks` leave the receiver's buffer at `freed`. Returns when they act at the sender.
  Time give_back(Time freed, int blocks, Time interval, Time flight) {
    if (freed < last_advert_ - interval) [[unlikely]]
      return give_back_early(freed, blocks, flight);
    Advert& last = size_ ? ring_[(first_ + size_ - 1) & mask_] : next_;
    if (last.blocks != 0 && freed <= last_advert_) {  // rides on an advertisement not yet sent
      last.blocks += blocks;
      return last.acts;
    }
    last_advert_ = freed > last_advert_ + interval ? freed : last_advert_ + interval;
    const Advert advert{last_advert_ + flight, blocks};
    if (next_.blocks == 0) {
      next_ = advert;
    } else {
      append(advert);
    }
    return advert.acts;
  }

  // Takes in what has arrived by `now`.
  void mature(Time now) {
    while (next_.blocks != 0 && next_.acts <= now) {
      available_ += next_.blocks;
      next_.blocks = 0;
      if (size_ != 0) take_next();
    }
  }

  // When `blocks` will be available, or kNever if that much is not on its way.
  Time when(int blocks) const {
    int sum = available_ + next_.blocks;
    if (next_.blocks != 0 && sum >= blocks) return next_.acts;
    for (uint32_t i = 0; i < size_; ++i) {
      const Advert& advert = ring_[(first_ + i) & mask_];
      sum += advert.blocks;
      if (sum >= blocks) return advert.acts;
    }
    return kNever;
  }

  // Shows the state to a visitor (steady.inl).
  template <class Visitor>
  void visit(Visitor& v) {
    v.plain(available_);
    v.time(last_advert_);
    v.plain(next_.blocks);
    if (next_.blocks) v.time(next_.acts);
    v.plain(size_);
    for (uint32_t i = 0; i < size_; ++i) {
      Advert& advert = ring_[(first_ + i) & mask_];
      v.plain(advert.blocks);
      v.time(advert.acts);
    }
  }

 private:
  struct Advert {
    Time acts = 0;
    int blocks = 0;  // 0 = none
  };

  void take_next() {
    next_ = ring_[first_];
    first_ = (first_ + 1) & mask_;
    --size_;
  }

  // With virtual output queues a small packet to a free output may leave long before a large one
  // that started first: its space is advertised on its own, ahead of what is already noted.
  [[gnu::noinline]] Time give_back_early(Time freed, int blocks, Time flight) {
    Advert advert{freed + flight, blocks};
    if (next_.blocks != 0 && advert.acts < next_.acts) std::swap(advert, next_);
    if (next_.blocks == 0) {
      next_ = advert;
      return freed + flight;
    }
    append(advert);
    for (uint32_t i = size_ - 1; i > 0; --i) {
      Advert& here = ring_[(first_ + i) & mask_];
      Advert& before = ring_[(first_ + i - 1) & mask_];
      if (before.acts <= here.acts) break;
      std::swap(here, before);
    }
    return freed + flight;
  }

  [[gnu::noinline]] void append(const Advert& advert) {
    if (!ring_ || size_ == mask_ + 1) grow();
    ring_[(first_ + size_++) & mask_] = advert;
  }

  void grow() {
    const uint32_t larger = ring_ ? 2 * (mask_ + 1) : 4;
    auto ring = std::make_unique<Advert[]>(larger);
    for (uint32_t i = 0; i < size_; ++i) ring[i] = ring_[(first_ + i) & mask_];
    ring_ = std::move(ring);
    mask_ = larger - 1;
    first_ = 0;
  }

  int available_ = 0;
  uint32_t first_ = 0, size_ = 0, mask_ = 0;
  Time last_advert_ = -(Time{1} << 60);
  Advert next_;
  std::unique_ptr<Advert[]> ring_;
};

}  // namespace weft::packet
