#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "allocate/solve.hpp"
#include "allocate/workspace.hpp"
#include "base/error.hpp"
#include "base/rng.hpp"
#include "check.hpp"

using namespace weft::allocate;

namespace {

struct Case {
  std::vector<uint8_t> kinds;
  std::vector<double> floors, numbers;
  std::vector<int64_t> offsets = {0};

  void add(Kind kind, double floor, const std::vector<double>& terms) {
    kinds.push_back(static_cast<uint8_t>(kind));
    floors.push_back(floor);
    numbers.insert(numbers.end(), terms.begin(), terms.end());
    offsets.push_back(static_cast<int64_t>(numbers.size()));
  }
  Models models() const { return Models(kinds, floors, offsets, numbers); }
};

struct Result {
  std::vector<int64_t> weights;
  double objective, gap, multiplier;
};

Result solve(const Models& models, int64_t units, int64_t budget, const Limits& limits = {}) {
  const auto n = static_cast<int32_t>(models.size());
  std::vector<int32_t> applications;
  for (int32_t i = 0; i < n; ++i) applications.push_back(i);
  const std::vector<int64_t> offsets = {0, n}, all = {units}, budgets = {budget};
  Result result{std::vector<int64_t>(models.size()), 0, 0, 0};
  Solver(models).solve(
      {offsets, applications, all, budgets},
      {result.weights, {&result.objective, 1}, {&result.gap, 1}, {&result.multiplier, 1}}, limits);
  return result;
}

Case random_case(weft::Rng& rng, bool polynomials) {
  Case problem;
  const size_t count = 2 + rng.next() % 3;
  for (size_t i = 0; i < count; ++i) {
    const double floor = 0.1 * rng.uniform();
    if (polynomials && rng.next() % 4 != 0) {
      std::vector<double> c(1 + rng.next() % 4);
      for (double& x : c) x = 10 * rng.uniform() - 5;
      problem.add(Kind::kPolynomial, floor, c);
    } else {
      const double t = 0.3 + 0.7 * rng.uniform();
      problem.add(Kind::kHinges, floor, {t, 3 * rng.uniform(), 0.5 * t, 3 * rng.uniform()});
    }
  }
  return problem;
}

// min over all w with sum B of sum D_i(w_i / U), by recursion.
double best_of_all(const Models& models, size_t from, int64_t units, int64_t budget) {
  if (from == models.size()) return budget == 0 ? 0 : std::numeric_limits<double>::infinity();
  double best = std::numeric_limits<double>::infinity();
  const auto low = std::max<int64_t>(
      1, static_cast<int64_t>(std::ceil(models[from].floor * static_cast<double>(units))));
  for (int64_t w = low; w <= budget; ++w)
    best =
        std::min(best, slowdown(models[from], static_cast<double>(w) / static_cast<double>(units)) +
                           best_of_all(models, from + 1, units, budget - w));
  return best;
}

bool near(double a, double b) {
  return std::abs(a - b) <= 1e-9 * std::max(1.0, std::abs(b));
}

}  // namespace

TEST(gains_are_differences_of_slowdowns) {
  weft::Rng rng(1);
  for (int round = 0; round < 200; ++round) {
    const Models models = random_case(rng, true).models();
    const Grid grid(1 + static_cast<int64_t>(rng.next() % 500));
    const auto w = 1 + static_cast<int64_t>(rng.next() % 500);
    const Item item{&models[0], 1, 1000, 1, 1000, -1, w};
    CHECK(near(gain(item, w, grid), slowdown(item, w, grid) - slowdown(item, w + 1, grid)));
  }
}

TEST(hinges_are_the_sum_of_their_terms) {
  // D(b) = 1 + sum_j c_j max(0, t_j/b - 1)
  Case problem;
  problem.add(Kind::kHinges, 0.01, {0.9, 0.5, 0.4, 2.0, 0.1, 1.0});
  const Models models = problem.models();
  for (double b = 0.02; b <= 1; b += 0.01) {
    const double sum = 0.5 * std::max(0.0, 0.9 / b - 1) + 2 * std::max(0.0, 0.4 / b - 1) +
                       std::max(0.0, 0.1 / b - 1);
    CHECK(near(slowdown(models[0], b), 1 + sum));
  }
}

TEST(splits_equal_the_best_of_all) {
  weft::Rng rng(2);
  for (int round = 0; round < 400; ++round) {
    const Models models = random_case(rng, round % 2 == 0).models();
    const Result result = solve(models, 24, 24);
    CHECK(near(result.objective, best_of_all(models, 0, 24, 24)));
    CHECK(result.gap <= 1e-9);
  }
}

TEST(the_programme_equals_the_best_of_all) {
  weft::Rng rng(3);
  for (int round = 0; round < 200; ++round) {
    const Models models = random_case(rng, true).models();
    CHECK(near(solve(models, 24, 20, {1e-9, 1, 1e9}).objective, best_of_all(models, 0, 24, 20)));
  }
}

TEST(an_early_end_leaves_a_gap_that_is_true) {
  weft::Rng rng(4);
  int left = 0;
  for (int round = 0; round < 400; ++round) {
    const Models models = random_case(rng, true).models();
    const Result result = solve(models, 24, 24, {1e-9, 1, 0});
    const double best = best_of_all(models, 0, 24, 24);
    CHECK(result.objective >= best - 1e-9 * std::max(1.0, std::abs(best)));
    CHECK(result.objective - result.gap * std::abs(result.objective) <=
          best + 1e-9 * std::max(1.0, std::abs(best)));
    left += result.gap > 1e-9;
  }
  CHECK(left > 0);
}

TEST(a_grid_of_10_to_the_8_units_is_filled_exactly) {
  weft::Rng rng(5);
  for (int round = 0; round < 50; ++round) {
    const Models models = random_case(rng, true).models();
    const Result result = solve(models, 100'000'000, 99'999'999);
    int64_t sum = 0;
    for (const int64_t w : result.weights) sum += w;
    CHECK_EQ(sum, 99'999'999);
    CHECK(result.gap <= 1e-9);
  }
}

TEST(the_multiplier_is_what_one_unit_more_saves) {
  // U (total(B) - total(B + 1)) for convex curves, and never more than that for others.
  weft::Rng rng(6);
  for (int round = 0; round < 200; ++round) {
    const Models models = random_case(rng, round % 2 == 0).models();
    const auto budget = 410 + static_cast<int64_t>(rng.next() % 590);
    const Result less = solve(models, 1000, budget), more = solve(models, 1000, budget + 1);
    const double saved = 1000 * (less.objective - more.objective);
    CHECK(less.multiplier <= saved + 1e-5 * std::max(1.0, std::abs(less.objective)));
    if (round % 2 == 1) CHECK(near(less.multiplier, saved));
  }
}

TEST(the_multiplier_is_a_number_where_floors_fill_the_capacity) {
  Case problem;
  problem.add(Kind::kHinges, 0.5, {1.0, 1.0});
  problem.add(Kind::kHinges, 0.5, {1.0, 2.0});
  CHECK(near(solve(problem.models(), 100, 100).multiplier, 100 * 2 * (1 / 0.5 - 1 / 0.51)));
}

TEST(a_curve_of_the_greatest_slope_beside_others_does_not_blur_them) {
  // Least at 0.3 and 0.2 of the link; the hinges take the rest, and the multiplier is 0.
  Case problem;
  problem.add(Kind::kPolynomial, 0.01, {1.0, -0.6e9, 1e9});
  problem.add(Kind::kPolynomial, 0.01, {3.0, -0.4, 1.0});
  problem.add(Kind::kHinges, 0.01, {0.1, 1.0});
  const Result result = solve(problem.models(), 1'000'000'000'000, 1'000'000'000'000);
  CHECK(std::abs(result.weights[0] - 300'000'000'000) <= 1);
  CHECK(std::abs(result.weights[1] - 200'000'000'000) <= 1);
}

TEST(a_programme_of_more_units_than_it_may_hand_out_is_not_begun) {
  Case problem;
  problem.add(Kind::kHinges, 0.01, {1.0, 1.0});
  const Models models = problem.models();
  const int64_t units = int64_t{1} << 40;
  std::vector<Item> items(2, Item{&models[0], 1, units, 1, units, -1, 1});
  CHECK(!programme(items, units, Grid(units), Limits{}.programme_steps));
}

TEST(an_application_that_is_at_a_port_twice_has_two_parts) {
  Case problem;
  problem.add(Kind::kHinges, 0.1, {1.0, 1.0});
  const Models models = problem.models();
  const std::vector<int32_t> twice = {0, 0};
  const std::vector<int64_t> offsets = {0, 2}, units = {100};
  std::vector<int64_t> weights(2);
  std::vector<double> objective(1), gap(1), multiplier(1);
  const Ports ports{offsets, twice, units, units};
  Solver(models).solve(ports, {weights, objective, gap, multiplier});
  CHECK(weights[0] == 50 && weights[1] == 50);
  CHECK(gap[0] == 0);
}

// Ports of 8 of 40 applications, convex ones and others; floors of the last take most of a link.
struct ManyPorts {
  Case problem;
  std::vector<int64_t> offsets = {0}, units;
  std::vector<int32_t> applications;

  explicit ManyPorts(size_t count) {
    weft::Rng rng(3);
    for (int i = 0; i < 39; ++i) {
      std::vector<double> c(1 + rng.next() % 4);
      for (double& x : c) x = 10 * rng.uniform() - 5;
      if (i % 4 == 0)
        problem.add(Kind::kPolynomial, 0.1 * rng.uniform(), c);
      else
        problem.add(Kind::kHinges, 0.1 * rng.uniform(), {0.3 + 0.7 * rng.uniform(), 1.0});
    }
    problem.add(Kind::kHinges, 0.6, {1.0, 1.0});
    for (size_t port = 0; port < count; ++port) {
      for (int i = 0; i < 8; ++i) applications.push_back(static_cast<int32_t>(rng.next() % 39));
      offsets.push_back(static_cast<int64_t>(applications.size()));
      units.push_back(100 + static_cast<int64_t>(port % 3));
    }
  }

  std::vector<double> solve(size_t threads) const {
    const Models models = problem.models();
    std::vector<int64_t> weights(applications.size());
    std::vector<double> objective(units.size()), gap(units.size()), multiplier(units.size());
    Solver(models).solve({offsets, applications, units, units},
                         {weights, objective, gap, multiplier}, {}, threads);
    std::vector<double> all(weights.begin(), weights.end());
    for (const auto* values : {&objective, &gap, &multiplier})
      all.insert(all.end(), values->begin(), values->end());
    return all;
  }
};

TEST(many_ports_have_the_same_answers_with_1_2_3_and_7_threads) {
  const ManyPorts ports(8 * 16384 / 8);
  const std::vector<double> alone = ports.solve(1);
  for (const size_t threads : {2, 3, 7}) CHECK(ports.solve(threads) == alone);
}

TEST(of_several_ports_that_cannot_be_split_the_first_is_named_with_several_threads) {
  ManyPorts ports(8 * 16384 / 8);
  for (const size_t port : {9000, 4001, 15000})  // two floors of 0.6
    for (size_t i = 0; i < 2; ++i) ports.applications[8 * port + i] = 39;
  for (const size_t threads : {1, 2, 3, 7}) {
    std::string where;
    try {
      ports.solve(threads);
    } catch (const weft::Error& error) {
      where = error.what();
    }
    CHECK(where.find("port 4001") != std::string::npos);
  }
}

TEST(what_cannot_be_split_is_refused) {
  Case problem;
  problem.add(Kind::kHinges, 0.6, {1.0, 1.0});
  problem.add(Kind::kHinges, 0.6, {1.0, 1.0});
  const Models models = problem.models();
  CHECK_THROWS(weft::Error, solve(models, 100, 100));  // floors above the capacity
  CHECK_THROWS(weft::Error, solve(models, 1, 1));      // fewer units than applications
  CHECK_THROWS(weft::Error, solve(models, 10, 11));    // more than the link
  Case broken;
  broken.add(Kind::kPolynomial, 0.1, {1.0, std::nan("")});
  CHECK_THROWS(weft::Error, broken.models());
}
