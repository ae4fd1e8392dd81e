// InfiniBand VL arbitration of one output port (specification volume 1, 7.6.9).
//
// Two tables of (lane, weight in 64-byte units). A packet may leave from the high table while the
// bytes it has sent since the last low-priority opportunity are under the limit of high priority
// (units of 4096 bytes; 255 = no limit, 0 = one packet); then the low table may send one packet.
// Within a table an entry is served until its weight is used up or its lane has nothing to send;
// the last packet of a turn may exceed the weight. Or, beyond the specification, lanes have a
// strict order.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "packet/spec.hpp"

namespace weft::packet {

// The tables of a port, and which lanes (bits) each of them serves.
struct VlTables : ArbTables {
  uint32_t high_lanes, low_lanes;

  VlTables(const ArbTables& tables)
      : ArbTables(tables), high_lanes(lanes(high)), low_lanes(lanes(low)) {}

 private:
  static uint32_t lanes(const std::vector<ArbEntry>& table) {
    uint32_t bits = 0;
    for (const ArbEntry& e : table) bits |= e.weight ? 1u << e.vl : 0;
    return bits;
  }
};

class VlArbiter {
 public:
  // The lane to serve among `ready` (bit per lane), or -1 if no table serves any of them.
  int choose(const VlTables& tables, uint32_t ready) {
    if (tables.strict) {
      *this = {};
      return std::countr_zero(ready);
    }
    const bool high = tables.high_lanes & ready;
    const bool low = tables.low_lanes & ready;
    if (high && (!expired(tables.high_limit) || !low)) {
      if (expired(tables.high_limit)) high_bytes_ = 0;
      from_high_ = true;
      return advance(tables.high, high_, ready);
    }
    if (!low) return -1;
    from_high_ = false;
    return advance(tables.low, low_, ready);
  }

  // Accounts for the packet that the last choice sent.
  void sent(int wire_bytes, int blocks) {
    if (from_high_) {
      high_bytes_ += wire_bytes;
      high_.left -= blocks;
    } else {
      high_bytes_ = 0;
      low_.left -= blocks;
    }
  }

  // Shows the state to a visitor (steady.inl). Without a limit nobody asks for the bytes.
  template <class Visitor>
  void visit(Visitor& v, const VlTables& tables) {
    for (const Cursor* cursor : {&high_, &low_}) {
      v.plain(cursor->entry);
      v.plain(cursor->left);
    }
    if (tables.high_limit != 255) v.plain(high_bytes_);
    v.plain(from_high_);
  }

 private:
  struct Cursor {
    uint32_t entry = 0;
    int left = 0;
  };

  bool expired(int limit) const {
    if (limit == 255) return false;
    return high_bytes_ >= (limit ? int64_t{limit} * 4096 : 1);
  }

  static int advance(const std::vector<ArbEntry>& table, Cursor& cursor, uint32_t ready) {
    if (cursor.left > 0 && (ready >> table[cursor.entry].vl & 1)) return table[cursor.entry].vl;
    for (;;) {
      cursor.entry = cursor.entry + 1 == table.size() ? 0 : cursor.entry + 1;
      const ArbEntry& e = table[cursor.entry];
      if (e.weight && (ready >> e.vl & 1)) {
        cursor.left = e.weight;
        return e.vl;
      }
    }
  }

  Cursor high_, low_;
  int64_t high_bytes_ = 0;
  bool from_high_ = false;
};

}  // namespace weft::packet
