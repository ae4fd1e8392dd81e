// A packet in the fabric, and the pool that packets come from. One packet is one cache line.
#pragma once

#include <cstdint>
#include <memory_resource>
#include <vector>

#include "packet/time.hpp"
#include "packet/wire.hpp"

namespace weft::packet {

inline constexpr uint32_t kNoPacket = UINT32_MAX;

enum Flag : uint8_t { kFirst = 1, kLast = 2, kFecn = 4, kBecn = 8, kAckRequest = 16 };

struct alignas(64) Packet {
  Time arrived;      // head at the current switch
  Time age;          // FCFS stamp
  Time intended;     // when the message was meant to be sent
  Time switch_time;  // head in to head out, summed over switches, request and answer
  uint32_t next;     // in a queue, or in the pool's free list
  uint32_t flow;
  uint32_t message;  // low bits of its number
  uint32_t dst;      // host index
  uint32_t in_link;
  uint32_t out_link;
  uint16_t wire_bytes;
  uint16_t payload;
  uint8_t vl;      // lane of the link it is on, or of the buffer it is in
  uint8_t out_vl;  // lane it leaves the current switch on
  uint8_t sl_kind;
  uint8_t flags;

  int sl() const { return sl_kind >> 4; }
  Kind kind() const { return static_cast<Kind>(sl_kind & 15); }
  void set(int sl, Kind kind) { sl_kind = static_cast<uint8_t>(sl << 4 | static_cast<int>(kind)); }
  int blocks() const { return blocks_of(wire_bytes); }
  // The message's number, less than 2^31 away from `number`.
  int64_t message_near(int64_t number) const {
    return number + static_cast<int32_t>(message - static_cast<uint32_t>(number));
  }
};
static_assert(sizeof(Packet) == 64);

class PacketPool {
 public:
  explicit PacketPool(std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : packets_(memory) {}

  uint32_t take() {
    if (free_ != kNoPacket) {
      const uint32_t id = free_;
      free_ = packets_[id].next;
      ++live_;
      return id;
    }
    packets_.emplace_back();
    ++live_;
    return static_cast<uint32_t>(packets_.size() - 1);
  }

  void give(uint32_t id) {
    packets_[id].next = free_;
    free_ = id;
    --live_;
  }

  Packet& operator[](uint32_t id) { return packets_[id]; }
  const Packet& operator[](uint32_t id) const { return packets_[id]; }
  size_t live() const { return live_; }

 private:
  std::pmr::vector<Packet> packets_;
  uint32_t free_ = kNoPacket;
  size_t live_ = 0;
};

// First in, first out, through the packets' own links.
struct Fifo {
  uint32_t head = kNoPacket, tail = kNoPacket;

  bool empty() const { return head == kNoPacket; }

  void push(PacketPool& pool, uint32_t id) {
    pool[id].next = kNoPacket;
    if (head == kNoPacket) {
      head = id;
    } else {
      pool[tail].next = id;
    }
    tail = id;
  }

  uint32_t pop(PacketPool& pool) {
    const uint32_t id = head;
    head = pool[id].next;
    return id;
  }
};

}  // namespace weft::packet
