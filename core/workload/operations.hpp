// A workload: the operations of ranks, and which of them wait for which.
//
// Operations are numbered rank by rank; an operation waits for operations of its own rank only.
// Messages of one (source, destination, tag) match receives in the order in which they arrive and
// are posted. Plain arrays, checked by whoever makes them with `find_cycle` and `find_unmatched`.
// Units: ps, bytes.
#pragma once

#include <cstdint>
#include <vector>

namespace weft::workload {

using Time = int64_t;
inline constexpr Time kNever = INT64_MAX;
inline constexpr uint32_t kNone = UINT32_MAX;

enum class Kind : uint8_t { kSend, kReceive, kCompute };

struct Operations {
  uint32_t ranks = 0;
  std::vector<uint32_t> rank_start;  // operations of rank r: rank_start[r] .. rank_start[r + 1]
  std::vector<Kind> kind;
  std::vector<uint32_t> rank, peer, tag;
  std::vector<int64_t> amount;  // bytes of a message, ps of a computation
  std::vector<uint8_t> cpu;     // computations of one rank and cpu run one after another
  // Operation i waits for dependency[dependency_start[i] .. dependency_start[i + 1]]: for their
  // end, or, where on_start is set, for their start.
  std::vector<uint32_t> dependency_start, dependency;
  std::vector<uint8_t> on_start;

  uint32_t size() const { return static_cast<uint32_t>(kind.size()); }
};

// Sends and receives of one source, destination and tag whose numbers differ.
struct Unmatched {
  uint32_t source = 0, destination = 0, tag = 0;
  uint32_t sends = 0, receives = 0;
};

// An operation that waits for itself, directly or through others; kNone if there is none.
uint32_t find_cycle(const Operations& operations);

// The first such triple by destination, source and tag; all zero if every message is received.
Unmatched find_unmatched(const Operations& operations);

}  // namespace weft::workload
