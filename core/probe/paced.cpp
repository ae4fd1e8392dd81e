#include "base/error.hpp"
#include "probe/loops.hpp"

namespace weft::probe {

PacedResult paced(Endpoint&, const PacedSpec&, StopFlag&) {
  throw Error("paced", "not built yet");
}

}  // namespace weft::probe
