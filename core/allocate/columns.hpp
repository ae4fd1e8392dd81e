// Arithmetic on columns of one port's applications, for as wide vectors as the processor has.
//
// Each column is computed as it would be alone, and sums are four partial sums added in a fixed
// order: the result is the same whatever the width. Columns are worked on by fours: what stands in
// the up to three places after the last one is read and written, and means nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "allocate/model.hpp"

namespace weft::allocate {

// Columns of hinges from the applications of a port, whose ranges all are `spare` units long. The
// pieces of application i begin at pieces[i * count]; t, s, p, q are [piece][column], `stride`
// apart.
struct HingeGather {
  const int32_t* applications;
  const Piece* pieces;
  const double* least;  // units, by application
  double spare;
  double *t, *s, *p, *q, *low, *high;  // low and high in units
  size_t stride;
  int32_t count;
};
void gather_hinges(const HingeGather& columns, size_t count);

// A polynomial on a grid: it bends down from `turn` units on, and is convex up to `stop` if its
// range goes beyond.
struct alignas(64) GridPolynomial {
  double c[4];
  double low, turn, stop, none;
};

// Columns of polynomials; true if some bend down within their range.
struct PolynomialGather {
  const int32_t* applications;
  const GridPolynomial* polynomials;  // by application
  double spare;
  double *c0, *c1, *c2, *c3, *low, *high;  // of the convex stretch, in units
};
bool gather_polynomials(const PolynomialGather& columns, size_t count);

// What the hinges of a port have together.
struct HingeSums {
  double full = 0, sum_s = 0, most_s = 0;  // shares at the highest knots; sqrt(q) of the lowest
  double least_s = std::numeric_limits<double>::infinity();
  double least_low = std::numeric_limits<double>::infinity();
};
struct HingeRanges {
  const double *t, *s, *low_units, *high_units;
  double *low, *high;  // shares
  size_t stride;
  int32_t pieces;
  double unit;
};
HingeSums sum_hinges(const HingeRanges& columns, size_t count);

// Multipliers that bracket every answer of some polynomials.
struct Bracket {
  double least = std::numeric_limits<double>::infinity();
  double greatest = -std::numeric_limits<double>::infinity();
};
struct PolynomialRanges {
  const double *c1, *c2, *c3, *low_units, *high_units;
  double *low, *high;   // shares
  double *knee, *rate;  // -D' and 1/D'' at low; a rate of 0 if the range is empty
  double unit;
};
Bracket bracket_polynomials(const PolynomialRanges& columns, size_t count);

// What some columns take together, and the slope of that.
struct Shares {
  double total = 0, slope = 0;
};

// Shares x at r = 1/sqrt(m); the slope is by r.
struct HingeColumns {
  const double *t, *s, *low, *high;
  double* x;
  size_t stride;
  int32_t pieces;
};
Shares hinge_shares(const HingeColumns& columns, size_t count, double r);

// Whole units of the shares x on a grid of `units`: x rounded down, and one more where that saves
// more than `worth`. `next` and `last` are what one unit more and the last one save, without bound
// at the ends; `value` is the slowdown at w. low and high are in units.
struct UnitColumns {
  const double *x, *low, *high;
  double *w, *next, *last, *value;
  double units, worth;
};
struct HingeUnits {
  UnitColumns columns;
  const double *p, *q;
  size_t stride;
  int32_t pieces;
};
void hinge_units(const HingeUnits& hinges, size_t count);
struct PolynomialUnits {
  UnitColumns columns;
  const double *c0, *c1, *c2, *c3;
};
void polynomial_units(const PolynomialUnits& polynomials, size_t count);

// Shares x at the multiplier m; the slope is by -m, and 0 for straight ones.
struct PolynomialColumns {
  const double *c1, *c2, *c3, *low, *high;
  double* x;
};
Shares polynomial_shares(const PolynomialColumns& columns, size_t count, double m);
double straight_shares(const PolynomialColumns& columns, size_t count, double m);

// By how much the cost D(w) + m w/U of polynomials that bend down is above that at the end of
// their range, at most; the range is `spare` units long.
struct FarEnds {
  const double *c0, *c1, *c2, *c3, *low, *high, *w, *value;
  double spare, unit;
};
double greatest_excess(const FarEnds& columns, size_t count, double m);

// The multiplier at which curved polynomials would take `spare` above their lows together, if their
// slopes changed at the rates that they have there: exact for squares.
struct Knees {
  const double *knee, *rate, *low, *high;
};
double guess_multiplier(const Knees& columns, size_t count, double spare);

// Sum of -D' at the share b.
double sum_slopes(const PolynomialColumns& columns, size_t count, double b);

double sum(const double* values, size_t count);

// The first place of a value, or `count`.
size_t find_place(const double* values, size_t count, double value);

struct Extremes {
  double most_next, least_next, least_last;
};
Extremes find_extremes(const double* next, const double* last, size_t count);

}  // namespace weft::allocate
