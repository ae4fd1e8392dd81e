// What InfiniBand puts on the wire: opcodes, header sizes, credit blocks.
//
// Sizes from the InfiniBand Architecture Specification, volume 1: LRH 8, BTH 12, ICRC 4, VCRC 2;
// RETH 16, AETH 4, ImmDt 4, DETH 8. Credits count blocks of 64 bytes. Units: bytes.
#pragma once

#include <cstdint>

namespace weft::packet {

enum class Transport : uint8_t { kRc, kUc, kUd };
enum class Op : uint8_t { kSend, kWrite, kWriteImm, kRead };
enum class Kind : uint8_t { kData, kAck, kReadRequest, kReadResponse, kNotification, kGrant };

inline constexpr int kBaseHeader = 8 + 12 + 4 + 2;
inline constexpr int kReth = 16;
inline constexpr int kAeth = 4;
inline constexpr int kImmDt = 4;
inline constexpr int kDeth = 8;
inline constexpr int kBlock = 64;

constexpr int blocks_of(int wire_bytes) {
  return (wire_bytes + kBlock - 1) / kBlock;
}

constexpr bool is_write(Op op) {
  return op == Op::kWrite || op == Op::kWriteImm;
}

// Header bytes of a request packet, given its place in the message.
constexpr int request_header(Transport transport, Op op, bool first, bool last) {
  int size = kBaseHeader;
  if (transport == Transport::kUd) size += kDeth;
  if (op == Op::kRead) return size + kReth;
  if (is_write(op) && first) size += kReth;
  if (op == Op::kWriteImm && last) size += kImmDt;
  return size;
}

constexpr int ack_bytes() {
  return kBaseHeader + kAeth;
}

// A congestion notification packet has 16 reserved bytes behind its BTH.
constexpr int notification_bytes() {
  return kBaseHeader + 16;
}

// A grant says up to which byte of which message, and at which priority.
constexpr int grant_bytes() {
  return kBaseHeader + 16;
}

// Payload goes out in words of four bytes.
constexpr int padded(int payload) {
  return (payload + 3) / 4 * 4;
}

// First and last READ responses carry an AETH, middle ones do not.
constexpr int response_header(bool first, bool last) {
  return kBaseHeader + (first || last ? kAeth : 0);
}

// What a message of `size` bytes puts on the wire, in packets of `mtu`: of a READ, its responses.
constexpr int64_t message_wire_bytes(Transport transport, Op op, int64_t size, int mtu) {
  const auto header = [&](bool first, bool last) {
    return op == Op::kRead ? response_header(first, last)
                           : request_header(transport, op, first, last);
  };
  const int64_t packets = size > mtu ? (size + mtu - 1) / mtu : 1;
  const int64_t rest = padded(static_cast<int>(size - (packets - 1) * mtu));
  if (packets == 1) return rest + header(true, true);
  return (packets - 1) * padded(mtu) + rest + header(true, false) + header(false, true) +
         (packets - 2) * header(false, false);
}

// The largest header any packet of the given transport and operation can have.
constexpr int largest_header(Transport transport, Op op) {
  return request_header(transport, op, true, true);
}

}  // namespace weft::packet
