// Future events, in order of (time, order of scheduling).
//
// A timing wheel: bucket b of width 2^w ps holds the events of one slice of time, a two-level
// bitmap finds the next bucket that holds any, and a bucket is sorted when its turn comes.
// Events past the wheel's horizon wait in a heap. Equal times keep scheduling order, which is
// what makes a run repeatable. Units: ps.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "packet/time.hpp"

namespace weft::packet {

struct Event {
  Time time;
  uint32_t order;  // scheduling order; wraps, compared by signed difference
  uint32_t what;

  bool before(const Event& other) const {
    if (time != other.time) return time < other.time;
    return static_cast<int32_t>(order - other.order) < 0;
  }
};

class EventQueue {
 public:
  // `width_log2`: log2 of a bucket's width in ps; `buckets_log2`: log2 of the number of buckets.
  explicit EventQueue(int width_log2 = 15, int buckets_log2 = 12)
      : shift_(width_log2),
        mask_((uint64_t{1} << buckets_log2) - 1),
        head_(mask_ + 1, kNone),
        bits_((mask_ + 64) / 64, 0),
        summary_((bits_.size() + 63) / 64, 0) {
    nodes_.reserve(1024);
    active_.reserve(64);
  }

  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }

  void push(Time time, uint32_t what) {
    const Event event{time, order_++, what};
    ++size_;
    const uint64_t slot = static_cast<uint64_t>(time) >> shift_;
    if (slot <= slot_) {
      insert_active(event);
    } else if (slot - slot_ > mask_) {
      far_.push_back(event);
      std::push_heap(far_.begin(), far_.end(), later);
    } else {
      insert_bucket(slot, event);
    }
  }

  // Time of the next event; call only when not empty.
  Time next_time() {
    if (cursor_ == active_.size()) advance();
    return active_[cursor_].time;
  }

  Event pop() {
    if (cursor_ == active_.size()) advance();
    --size_;
    return active_[cursor_++];
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  struct Node {
    Event event;
    uint32_t next;
  };

  static bool later(const Event& a, const Event& b) { return b.before(a); }

  void insert_active(const Event& event) {
    const auto from = active_.begin() + static_cast<std::ptrdiff_t>(cursor_);
    active_.insert(std::upper_bound(from, active_.end(), event,
                                    [](const Event& a, const Event& b) { return a.before(b); }),
                   event);
  }

  void insert_bucket(uint64_t slot, const Event& event) {
    const uint64_t bucket = slot & mask_;
    uint32_t node = free_;
    if (node != kNone) {
      free_ = nodes_[node].next;
    } else {
      node = static_cast<uint32_t>(nodes_.size());
      nodes_.emplace_back();
    }
    nodes_[node] = {event, head_[bucket]};
    head_[bucket] = node;
    bits_[bucket >> 6] |= uint64_t{1} << (bucket & 63);
    summary_[bucket >> 12] |= uint64_t{1} << ((bucket >> 6) & 63);
  }

  // Distance in slots from the current slot to the next occupied bucket, or 0 if none.
  uint64_t next_occupied() const {
    const uint64_t start = (slot_ + 1) & mask_;
    uint64_t word = start >> 6;
    const uint64_t first = bits_[word] & (~uint64_t{0} << (start & 63));
    if (first) return distance((word << 6) + std::countr_zero(first));
    const size_t words = bits_.size();
    // Summary bits find the next occupied word; the start word is looked at again last.
    uint64_t probe = (word + 1) & (words - 1);
    for (size_t tried = 0; tried <= summary_.size(); ++tried) {
      const uint64_t group = summary_[probe >> 6] & (~uint64_t{0} << (probe & 63));
      if (group) {
        word = ((probe >> 6) << 6) + std::countr_zero(group);
        return distance((word << 6) + std::countr_zero(bits_[word]));
      }
      probe = (((probe >> 6) + 1) << 6) & (words - 1);
    }
    return 0;
  }

  uint64_t distance(uint64_t bucket) const {
    const uint64_t d = (bucket - slot_) & mask_;
    return d ? d : mask_ + 1;
  }

  void advance() {
    active_.clear();
    cursor_ = 0;
    const uint64_t gap = next_occupied();
    uint64_t slot = gap ? slot_ + gap : UINT64_MAX;
    if (!far_.empty()) {
      slot = std::min(slot, static_cast<uint64_t>(far_.front().time) >> shift_);
    }
    slot_ = slot;
    take_bucket(slot & mask_);
    while (!far_.empty() && (static_cast<uint64_t>(far_.front().time) >> shift_) == slot_) {
      active_.push_back(far_.front());
      std::pop_heap(far_.begin(), far_.end(), later);
      far_.pop_back();
    }
    if (active_.size() > 1) {
      std::sort(active_.begin(), active_.end(),
                [](const Event& a, const Event& b) { return a.before(b); });
    }
  }

  void take_bucket(uint64_t bucket) {
    uint32_t node = head_[bucket];
    if (node == kNone) return;
    head_[bucket] = kNone;
    uint64_t& word = bits_[bucket >> 6];
    word &= ~(uint64_t{1} << (bucket & 63));
    if (!word) summary_[bucket >> 12] &= ~(uint64_t{1} << ((bucket >> 6) & 63));
    while (node != kNone) {
      active_.push_back(nodes_[node].event);
      const uint32_t next = nodes_[node].next;
      nodes_[node].next = free_;
      free_ = node;
      node = next;
    }
  }

  int shift_;
  uint64_t mask_;
  uint64_t slot_ = 0;  // the slot whose events are in `active_`
  size_t size_ = 0;
  uint32_t order_ = 0;
  uint32_t free_ = kNone;
  size_t cursor_ = 0;
  std::vector<Event> active_;
  std::vector<Node> nodes_;
  std::vector<uint32_t> head_;
  std::vector<uint64_t> bits_;
  std::vector<uint64_t> summary_;
  std::vector<Event> far_;
};

}  // namespace weft::packet
