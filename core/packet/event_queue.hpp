// Future events, in order of (time, order of scheduling).
//
// A timing wheel: bucket b of width 2^w ps holds the events of one slice of time, a two-level
// bitmap finds the next bucket that holds any, and a bucket is sorted when its turn comes.
// Events past the wheel's horizon wait in a heap. The events of the current slice are a sorted
// array. With few events pending one endless slice is the fastest queue of all: every queue starts
// so, and becomes a wheel when more than `kFewEvents` are pending.
// Equal times keep scheduling order, which is what makes a run repeatable. Units: ps.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <memory_resource>
#include <span>
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

// The events of the current slice: a sorted array, consumed from the front.
class SortedEvents {
 public:
  bool empty() const { return first_ == last_; }
  size_t size() const { return static_cast<size_t>(last_ - first_); }
  const Event& front() const { return *first_; }
  void pop() { ++first_; }
  const Event* begin() const { return first_; }
  const Event* end() const { return last_; }

  bool full() const { return last_ == limit_; }

  // New events are mostly late ones: their place is looked for from the back. An event scheduled
  // last goes behind every event of its own time. Call only when not full.
  void insert(const Event& event) {
    Event* at = last_++;
    for (; at != first_ && at[-1].time > event.time; --at) *at = at[-1];
    *at = event;
  }

  void append(const Event& event) {
    if (last_ == limit_) make_room();
    *last_++ = event;
  }

  // Sorts all but the first `sorted`, which come before the others. A slice mostly holds few
  // events, which insertion sorts fastest.
  void sort(size_t sorted) {
    Event* const first = first_ + sorted;
    if (last_ - first > kFew) {
      std::sort(first, last_, [](const Event& a, const Event& b) { return a.before(b); });
      return;
    }
    for (Event* next = first; next < last_; ++next) {
      const Event event = *next;
      Event* at = next;
      for (; at != first && event.before(at[-1]); --at) *at = at[-1];
      *at = event;
    }
  }

  void clear() { first_ = last_ = room_.get(); }

  // The last `count` events, which are dropped here.
  const Event* drop_last(size_t count) { return last_ -= count; }

  // Moves what is left to the front; grows only if that frees less than half.
  [[gnu::noinline]] void make_room() {
    const size_t count = static_cast<size_t>(last_ - first_);
    const size_t capacity = static_cast<size_t>(limit_ - room_.get());
    if (2 * count < capacity) {
      std::memmove(room_.get(), first_, count * sizeof(Event));
    } else {
      const size_t larger = std::max<size_t>(256, 2 * capacity);
      auto room = std::make_unique_for_overwrite<Event[]>(larger);
      if (count) std::memcpy(room.get(), first_, count * sizeof(Event));
      room_ = std::move(room);
      limit_ = room_.get() + larger;
    }
    first_ = room_.get();
    last_ = first_ + count;
  }

 private:
  static constexpr ptrdiff_t kFew = 16;

  std::unique_ptr<Event[]> room_;
  Event* first_ = nullptr;
  Event* last_ = nullptr;
  Event* limit_ = nullptr;
};

class EventQueue {
 public:
  static constexpr size_t kFewEvents = 128;

  // `width_log2`: log2 of a bucket's width in ps; `buckets_log2`: log2 of the number of buckets.
  explicit EventQueue(int width_log2 = 15, int buckets_log2 = 12,
                      std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : width_log2_(width_log2), buckets_log2_(buckets_log2), nodes_(memory), head_(memory) {}

  bool empty() const { return active_.empty() && stored_ == 0; }
  size_t size() const { return active_.size() + stored_; }

  void push(Time time, uint32_t what) {
    const Event event{time, order_++, what};
    const uint64_t slot = static_cast<uint64_t>(time) >> shift_;
    if (slot > slot_) return insert_later(slot, event);
    if (active_.full()) [[unlikely]] {
      if (shift_ == kOneSlice && active_.size() > kFewEvents) {
        become_wheel();
        return insert(event);
      }
      active_.make_room();
    }
    active_.insert(event);
  }

  // The next event; call only when not empty.
  const Event& top() {
    if (active_.empty()) advance();
    return active_.front();
  }

  // All events before `end`, in their order; the next `push` or `pop` ends their life.
  std::span<const Event> before(Time end) {
    if (shift_ != kOneSlice) gather(static_cast<uint64_t>(end - 1) >> shift_);
    const Event* last = active_.begin();
    while (last != active_.end() && last->time < end) ++last;
    return {active_.begin(), last};
  }

  // Drops the event that `top` has shown.
  void pop() { active_.pop(); }

  // All events in their order.
  std::vector<Event> pending() const {
    std::vector<Event> events(active_.begin(), active_.end());
    for (uint32_t node : head_) {
      for (; node != kNone; node = nodes_[node].next) events.push_back(nodes_[node].event);
    }
    events.insert(events.end(), far_.begin(), far_.end());
    std::sort(events.begin(), events.end(),
              [](const Event& a, const Event& b) { return a.before(b); });
    return events;
  }

  // These events instead; those of one time in the order in which they were scheduled.
  void replace(std::vector<Event> events) {
    std::sort(events.begin(), events.end(),
              [](const Event& a, const Event& b) { return a.before(b); });
    *this = EventQueue(width_log2_, buckets_log2_);
    for (const Event& event : events) push(event.time, event.what);
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr int kOneSlice = 63;

  struct Node {
    Event event;
    uint32_t next;
  };

  static bool later(const Event& a, const Event& b) { return b.before(a); }

  void insert(const Event& event) {
    const uint64_t slot = static_cast<uint64_t>(event.time) >> shift_;
    if (slot > slot_) return insert_later(slot, event);
    if (active_.full()) active_.make_room();
    active_.insert(event);
  }

  // The slice of the next event stays; later events move to their buckets, in order.
  [[gnu::noinline]] void become_wheel() {
    mask_ = (uint64_t{1} << buckets_log2_) - 1;
    head_.assign(mask_ + 1, kNone);
    bits_.assign((mask_ + 64) / 64, 0);
    summary_.assign((bits_.size() + 63) / 64, 0);
    shift_ = width_log2_;
    slot_ = static_cast<uint64_t>(active_.front().time) >> shift_;
    size_t later = 0;
    for (const Event& event : active_) later += static_cast<uint64_t>(event.time) >> shift_ > slot_;
    const Event* event = active_.drop_last(later);
    for (size_t i = 0; i < later; ++i) {
      insert_later(static_cast<uint64_t>(event[i].time) >> shift_, event[i]);
    }
  }

  [[gnu::noinline]] void insert_later(uint64_t slot, const Event& event) {
    if (slot - slot_ > mask_) [[unlikely]]
      return insert_far(event);
    ++stored_;
    if (free_ == kNone) [[unlikely]]
      add_nodes();
    const uint64_t bucket = slot & mask_;
    const uint32_t id = free_;
    Node& node = nodes_[id];
    free_ = node.next;
    node.event = event;
    node.next = head_[bucket];
    head_[bucket] = id;
    bits_[bucket >> 6] |= uint64_t{1} << (bucket & 63);
    summary_[bucket >> 12] |= uint64_t{1} << ((bucket >> 6) & 63);
  }

  [[gnu::noinline]] void insert_far(const Event& event) {
    ++stored_;
    far_.push_back(event);
    std::push_heap(far_.begin(), far_.end(), later);
  }

  // As many as there are, or some.
  [[gnu::noinline]] void add_nodes() {
    const size_t count = nodes_.size();
    nodes_.resize(std::max<size_t>(64, 2 * count));
    for (size_t id = nodes_.size(); id > count; --id) {
      nodes_[id - 1].next = free_;
      free_ = static_cast<uint32_t>(id - 1);
    }
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

  [[gnu::noinline]] void advance() {
    active_.clear();
    gather_next(UINT64_MAX);
  }

  // The current slice becomes as long as to hold the events of all slots up to `last`.
  [[gnu::noinline]] void gather(uint64_t last) {
    if (active_.empty()) active_.clear();
    while (slot_ < last && gather_next(last)) {
    }
  }

  // Adds the events of the next slot that holds any, unless that lies behind `last`.
  bool gather_next(uint64_t last) {
    const uint64_t gap = next_occupied();
    const uint64_t near = gap ? slot_ + gap : UINT64_MAX;
    const uint64_t far =
        far_.empty() ? UINT64_MAX : static_cast<uint64_t>(far_.front().time) >> shift_;
    const uint64_t slot = std::min(near, far);
    if (slot > last || slot == UINT64_MAX) return false;
    slot_ = slot;
    const size_t sorted = active_.size();
    take_bucket(slot & mask_);
    if (far == slot) take_far();
    active_.sort(sorted);
    return true;
  }

  [[gnu::noinline]] void take_far() {
    while (!far_.empty() && (static_cast<uint64_t>(far_.front().time) >> shift_) == slot_) {
      active_.append(far_.front());
      --stored_;
      std::pop_heap(far_.begin(), far_.end(), later);
      far_.pop_back();
    }
  }

  void take_bucket(uint64_t bucket) {
    uint32_t node = head_[bucket];
    if (node == kNone) return;
    head_[bucket] = kNone;
    uint64_t& word = bits_[bucket >> 6];
    word &= ~(uint64_t{1} << (bucket & 63));
    if (!word) summary_[bucket >> 12] &= ~(uint64_t{1} << ((bucket >> 6) & 63));
    const Node* const nodes = nodes_.data();
    const uint32_t first = node;
    uint32_t last;
    do {
      last = node;
      active_.append(nodes[node].event);
      --stored_;
      node = nodes[node].next;
    } while (node != kNone);
    nodes_[last].next = free_;
    free_ = first;
  }

  SortedEvents active_;
  int shift_ = kOneSlice;
  int width_log2_, buckets_log2_;
  uint64_t mask_ = 0;
  uint64_t slot_ = 0;  // the slot whose events are in `active_`
  uint32_t order_ = 0;
  uint32_t free_ = kNone;
  size_t stored_ = 0;  // events in buckets and in `far_`
  std::pmr::vector<Node> nodes_;
  std::pmr::vector<uint32_t> head_;
  std::vector<uint64_t> bits_;
  std::vector<uint64_t> summary_;
  std::vector<Event> far_;
};

}  // namespace weft::packet
