// Slowdown D(b) of an application at the share b of a link, in the two forms of weft.sensitivity.
//
// Polynomial: D(b) = c0 + c1 b + c2 b^2 + c3 b^3. On a grid b = w/U its second difference is
//   D(w+1) - 2 D(w) + D(w-1) = D''(w/U) / U^2   (exactly, for a cubic),
// so the sign of 2 c2 + 6 c3 b, which changes at most once, says where it is convex on the grid.
// The root of D'(b) = -m on the convex side is b = (sqrt(c2^2 - 3 c3 (c1 + m)) - c2) / (3 c3).
//
// Hinges: D(b) = 1 + sum_j c_j max(0, t_j/b - 1). With t descending, q_j = sum_{i<=j} c_i t_i and
// p_j = 1 - sum_{i<=j} c_i, it is D(b) = max(1, max_j p_j + q_j/b): convex, never rising. The b at
// which D' passes -m is max_j min(t_j, sqrt(q_j/m)): piecewise linear in r = 1/sqrt(m).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace weft::allocate {

// One stretch of a hinged curve: D = p + q/b for b up to t; s = sqrt(q).
struct Piece {
  double t, s, p, q;
};

struct Curve {
  double floor = 0;               // least share
  double c[4] = {};               // polynomial
  const Piece* pieces = nullptr;  // hinges, else nullptr
  int32_t count = 0;
  bool is_hinges = false;
};

inline bool is_straight(const Curve& curve) {
  return !curve.is_hinges && curve.c[2] == 0 && curve.c[3] == 0;
}

enum class Kind : uint8_t { kPolynomial = 0, kHinges = 1 };

// Checked curves of all applications; `offsets` delimit each one's numbers: c0, c1, ... of a
// polynomial, t0, c0, t1, c1, ... (t descending) of hinges. Throws Error with the application.
class Models {
 public:
  Models(std::span<const uint8_t> kinds, std::span<const double> floors,
         std::span<const int64_t> offsets, std::span<const double> numbers);
  Models(const Models&) = delete;
  Models& operator=(const Models&) = delete;

  size_t size() const { return curves_.size(); }
  const Curve& operator[](size_t application) const { return curves_[application]; }
  int32_t most_pieces() const { return most_pieces_; }
  // most_pieces() of every application, one after another.
  const Piece* pieces() const { return pieces_.data(); }

 private:
  void add_polynomial(size_t application, double floor, std::span<const double> numbers);
  void add_hinges(size_t application, double floor, std::span<const double> numbers);
  void pad_pieces();

  std::vector<Curve> curves_;
  std::vector<Piece> pieces_;  // never grows after construction: curves point into it
  int32_t most_pieces_ = 0;
};

}  // namespace weft::allocate
