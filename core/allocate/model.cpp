#include "allocate/model.hpp"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>

#include "base/error.hpp"

namespace weft::allocate {
namespace {

// Beyond this no slowdown was ever measured, and sums of curves lose the digits that decide.
constexpr double kLargest = 1e9;
constexpr const char* kRemedy = "fit the model again";

std::string text(double value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

[[noreturn]] void fail(size_t application, const std::string& problem) {
  throw Error("application " + std::to_string(application), problem, kRemedy);
}

void check_size(size_t application, const char* what, double value) {
  if (!(std::abs(value) <= kLargest))
    fail(application, std::string(what) + " " + text(value) + " is not a number up to 1e9");
}

}  // namespace

Models::Models(std::span<const uint8_t> kinds, std::span<const double> floors,
               std::span<const int64_t> offsets, std::span<const double> numbers) {
  if (floors.size() != kinds.size() || offsets.size() != kinds.size() + 1 || offsets[0] != 0 ||
      !std::is_sorted(offsets.begin(), offsets.end()) ||
      offsets.back() != static_cast<int64_t>(numbers.size()))
    throw Error("models", "the arrays do not fit together", "pass one entry per application");
  curves_.reserve(kinds.size());
  pieces_.reserve(numbers.size() / 2 + 1);
  for (size_t i = 0; i < kinds.size(); ++i) {
    const auto own = numbers.subspan(static_cast<size_t>(offsets[i]),
                                     static_cast<size_t>(offsets[i + 1] - offsets[i]));
    if (!(floors[i] >= 0 && floors[i] <= 1))
      fail(i, "floor " + text(floors[i]) + " is not in 0 to 1");
    if (kinds[i] == static_cast<uint8_t>(Kind::kPolynomial))
      add_polynomial(i, floors[i], own);
    else
      add_hinges(i, floors[i], own);
  }
  pad_pieces();
}

// Every curve gets as many pieces as the longest: its last one again, which makes no difference.
void Models::pad_pieces() {
  const auto most = static_cast<size_t>(most_pieces_);
  static constexpr Piece kFlat = {0, 0, 1, 0};
  std::vector<Piece> padded;
  padded.reserve(curves_.size() * most);
  for (Curve& curve : curves_) {
    const auto count = static_cast<size_t>(curve.count);
    const Piece* first = curve.pieces;
    if (curve.is_hinges) curve.pieces = padded.data() + padded.size();
    for (size_t j = 0; j < most; ++j)
      padded.push_back(count == 0 ? kFlat : first[std::min(j, count - 1)]);
  }
  pieces_ = std::move(padded);
}

void Models::add_polynomial(size_t application, double floor, std::span<const double> numbers) {
  if (numbers.empty() || numbers.size() > 4)
    fail(application,
         "a polynomial of " + std::to_string(numbers.size()) + " coefficients, 1 to 4 are allowed");
  Curve curve;
  curve.floor = floor;
  for (size_t k = 0; k < numbers.size(); ++k) {
    check_size(application, "coefficient", numbers[k]);
    curve.c[k] = numbers[k];
  }
  curves_.push_back(curve);
}

void Models::add_hinges(size_t application, double floor, std::span<const double> numbers) {
  Curve curve;
  curve.is_hinges = true;
  curve.floor = floor;
  const size_t first = pieces_.size();
  double p = 1, q = 0, before = INFINITY;
  for (size_t j = 0; j + 1 < numbers.size(); j += 2) {
    const double t = numbers[j], c = numbers[j + 1];
    check_size(application, "weight of a term", c);
    if (!(t > 0 && t <= 1)) fail(application, "a term at " + text(t) + " is not in 0 to 1");
    if (c < 0) fail(application, "weight " + text(c) + " of a term is below 0");
    if (t >= before) fail(application, "terms do not descend at " + text(t));
    before = t;
    p -= c;
    q += c * t;
    if (c > 0) pieces_.push_back({t, std::sqrt(q), p, q});
  }
  curve.pieces = pieces_.data() + first;
  curve.count = static_cast<int32_t>(pieces_.size() - first);
  most_pieces_ = std::max(most_pieces_, curve.count);
  curves_.push_back(curve);
}

}  // namespace weft::allocate
