// The split of a link among applications that makes the total slowdown least.
//
//   minimise  sum_i D_i(w_i)   over integers   l_i <= w_i,   sum_i w_i = B,
//
// where the link has U units, B of them for these applications, and the share is b = w/U;
// l_i = max(1, ceil(floor_i U)). For each multiplier m (slowdown per share)
//
//   bound(m) = sum_i min_w (D_i(w) + m w/U) - m B/U  <=  the least total slowdown,
//
// and the bound is met by w if every w_i is at its minimum. The gap of an answer is therefore
//   sum_i [D_i(w_i) + m w_i/U - min_w (D_i(w) + m w/U)],  over the answer's total slowdown.
//
// Convex curves (convex.cpp): the w_i(m) fall with m, so one m makes their sum B; Newton's method
// within a bracket finds it, from closed forms of w_i(m). At that m take the units whose gain is
// above m/U, then add (or remove) the unit of greatest (least) gain until the sum is B. No exchange
// of one unit then helps, and for separable convex functions that is a proof of optimality: gap 0.
//
// Curves that are not convex: the least D_i(w) + m w/U is on the convex stretch or at the far end
// of the concave one. The answer for the convex stretches stands if no far end is better at its m.
// Otherwise (split.cpp) bound(m), which is that of the convex envelopes, is raised to its greatest,
// and the range of an application that jumps there is split in two, until the bounds meet. If that
// takes too many splits, a dynamic programme over the applications that are not convex and the sum
// of the others decides (programme.cpp), on grids where it is affordable; if not, the gap says so.
//
// The multiplier that is told is U max_i (D_i(w_i) - D_i(w_i + 1)) at the answer: what one unit
// more would save per share if the others kept theirs. For convex curves no other use of it saves
// more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "allocate/model.hpp"

namespace weft::allocate {

// Ports and their applications: those of port p are applications[offsets[p] .. offsets[p+1]); one
// that is named twice has two parts, as two of the same model have.
struct Ports {
  std::span<const int64_t> offsets;
  std::span<const int32_t> applications;
  std::span<const int64_t> units;   // of the whole link, per port
  std::span<const int64_t> budget;  // of these applications together, per port
};

struct Answer {
  std::span<int64_t> weights;    // one per entry of `applications`
  std::span<double> objective;   // total slowdown, per port
  std::span<double> gap;         // certified, relative to |objective|, per port
  std::span<double> multiplier;  // slowdown per share that one unit more would save, per port
};

struct Limits {
  double tolerance = 1e-9;       // gap at which splitting stops
  int64_t nodes = 4000;          // of splitting, per port
  double programme_steps = 4e8;  // of the dynamic programme, per port
};

class Workspace;

// Keeps its memory from call to call, so that ports allocate nothing.
class Solver {
 public:
  explicit Solver(const Models& models);
  ~Solver();

  // On up to `threads` threads where ports are many. Answers do not depend on their number, nor
  // does the error where several ports have one: that of the first is thrown.
  void solve(const Ports& ports, const Answer& answer, const Limits& limits = {},
             size_t threads = 1);

 private:
  void solve_port(Workspace& work, const Ports& ports, size_t port, const Answer& answer,
                  const Limits& limits) const;

  const Models& models_;
  std::vector<std::unique_ptr<Workspace>> works_;  // of each thread
};

}  // namespace weft::allocate
