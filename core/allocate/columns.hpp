// Arithmetic on columns of one port's applications, for as wide vectors as the processor has.
//
// Each column is computed as it would be alone, and sums are four partial sums added in a fixed
// order: the result is the same whatever the width. Columns are worked on by fours: what stands in
// the up to three places after the last one is read and written, and means nothing.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::allocate {

// Shares x at r = 1/sqrt(m) and their slopes by r; t and s are [piece][column], `stride` apart.
struct HingeColumns {
  const double *t, *s, *low, *high;
  double *x, *slope;
  size_t stride;
  int32_t pieces;
};
void hinge_shares(const HingeColumns& columns, size_t count, double r);

// Units of hinges on a grid of `units`: x rounded down, and one more where that saves more than
// `worth`. `next` and `last` are what one unit more and the last one save, without bound at the
// ends; t and s are not used, p and q are [piece][column] too.
struct HingeUnits {
  const double *p, *q, *x, *low, *high;  // low and high in units
  double *w, *next, *last, *value;       // value: the slowdown at w
  size_t stride;
  int32_t pieces;
  double units, worth;
};
void hinge_units(const HingeUnits& columns, size_t count);

// Shares x at the multiplier m and their slopes by -m.
struct PolynomialColumns {
  const double *c1, *c2, *c3, *low, *high;
  double *x, *slope;
};
void polynomial_shares(const PolynomialColumns& columns, size_t count, double m);

double sum(const double* values, size_t count);
double greatest(const double* values, size_t count);
double least(const double* values, size_t count);

}  // namespace weft::allocate
