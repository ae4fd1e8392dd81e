#include "base/error.hpp"
#include "probe/loops.hpp"

namespace weft::probe {

PostPollResult post_poll(Endpoint&, Endpoint&, const RunSpec&, PairOrder, double, StopFlag&) {
  throw Error("rperf", "not built yet");
}

}  // namespace weft::probe
