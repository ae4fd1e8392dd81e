// Distributions of injected delays, written as users write them.
//
//   "10 us"                      always that
//   "uniform(5 us, 15 us)"       between the two
//   "exponential(10 us)"         by its mean
//   "lognormal(10 us, 0.5)"      by median and sigma
//   "0.01 * exponential(1 ms)"   that with probability 0.01, else nothing
//   "10 us + exponential(1 us)"  the sum of independent terms
//
// Units: picoseconds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/rng.hpp"

namespace weft::transport {

class DelayDistribution {
 public:
  // Throws weft::Error that names `where` when the text is none of the above.
  static DelayDistribution parse(const std::string& where, const std::string& text);

  int64_t draw(Rng& rng) const;
  double mean() const;

 private:
  enum class Shape : uint8_t { constant, uniform, exponential, lognormal };
  struct Term {
    Shape shape = Shape::constant;
    double probability = 1;
    double first = 0;   // constant, low end, mean or median
    double second = 0;  // high end or sigma
  };
  class Parser;

  std::vector<Term> terms_;
};

}  // namespace weft::transport
