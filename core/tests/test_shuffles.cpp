#include <cmath>
#include <stdexcept>
#include <vector>

#include "check.hpp"
#include "flow/shuffles.hpp"

using namespace weft::flow;

namespace {

bool close(double a, double b) {
  return std::abs(a - b) <= 1e-6 * std::abs(b);
}

// Jobs of one flow each over one port of a byte per second, all from 0 on.
Shuffles one_port(const std::vector<double>& bytes) {
  std::vector<uint64_t> starts{0};
  std::vector<ShuffleJob> jobs;
  for (uint32_t i = 0; i < bytes.size(); ++i) {
    starts.push_back(i + 1);
    jobs.push_back({{{0, bytes[i], 0}}, 1, 0, i, 1});
  }
  return {{1}, starts, std::vector<uint32_t>(bytes.size()), jobs, 0, 1e-12};
}

void finish(Shuffles& shuffles) {
  while (shuffles.run(false)) {
  }
}

}  // namespace

// Two flows of 1 and 2 bytes share a port: half each until 2, then the second alone until 3.
TEST(jobs_in_one_lane_share_a_port_by_flows) {
  Shuffles run = one_port({1, 2});
  finish(run);
  CHECK(close(run.finished()[0], 2));
  CHECK(close(run.finished()[1], 3));
}

// Weights 3 : 1. The second sends 1/3 byte until 4/3, then it is alone: 4/3 + 5/3 = 3.
TEST(lanes_share_a_port_by_weight_and_lend) {
  Shuffles run = one_port({1, 2});
  run.program({2, {0, 1}, {3, 1}});
  finish(run);
  CHECK(close(run.finished()[0], 4.0 / 3));
  CHECK(close(run.finished()[1], 3));
}

// Without lending the second keeps its quarter: 2 / (1/4) = 8.
TEST(a_lane_that_does_not_borrow_never_exceeds_its_part) {
  Shuffles run = one_port({1, 2});
  run.program({2, {0, 1}, {0.75, 0.25}, false, false});
  finish(run);
  CHECK(close(run.finished()[0], 4.0 / 3));
  CHECK(close(run.finished()[1], 8));
}

TEST(strict_lanes_go_in_their_order) {
  Shuffles run = one_port({1, 2});
  run.program({2, {1, 0}, {1, 1}, true});
  finish(run);
  CHECK(close(run.finished()[0], 3));
  CHECK(close(run.finished()[1], 2));
}

// The shortest goes first, by bytes left: 1, then 1 + 2, then 1 + 2 + 4.
TEST(flows_in_order_of_bytes_left_end_in_that_order) {
  Shuffles run = one_port({4, 1, 2});
  run.order_flows({1.5, 3});
  finish(run);
  CHECK(close(run.finished()[1], 1));
  CHECK(close(run.finished()[2], 3));
  CHECK(close(run.finished()[0], 7));
}

// compute 2, then 3 bytes; 1 byte beside it: (2 + 3) each loop; or 4 bytes beside 2 s of computing.
TEST(a_stage_ends_when_it_has_computed_and_sent) {
  const std::vector<ShuffleJob> jobs{{{{2, 1, 3}}, 2, 0, 0, 1}};
  Shuffles run({1}, {0, 1}, {0}, jobs, 0, 1e-12);
  finish(run);
  CHECK(close(run.finished()[0], 10));
  const std::vector<ShuffleJob> hidden{{{{2, 4, 0}}, 1, 1, 0, 1}};
  Shuffles stream({1}, {0, 1}, {0}, hidden, 0, 1e-12);
  finish(stream);
  CHECK(close(stream.finished()[0], 5));
}

TEST(what_is_not_there_is_refused) {
  Shuffles run = one_port({1, 2});
  CHECK_THROWS(std::invalid_argument, run.program({1, {0, 1}, {1}}));
  CHECK_THROWS(std::invalid_argument, run.program({2, {0, 1}, {1, 0}}));
  CHECK_THROWS(std::invalid_argument, run.order_flows({2, 1}));
  CHECK_THROWS(std::invalid_argument, Shuffles({1}, {0, 1}, {7}, {}, 0, 1e-6));
  CHECK_THROWS(std::invalid_argument, Shuffles({0}, {0, 1}, {0}, {}, 0, 1e-6));
}
