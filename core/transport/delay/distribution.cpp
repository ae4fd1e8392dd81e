#include "transport/delay/distribution.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <numbers>
#include <utility>

#include "base/error.hpp"

namespace weft::transport {
namespace {

constexpr std::array<std::pair<const char*, double>, 7> kUnits{
    {{"ps", 1}, {"ns", 1e3}, {"us", 1e6}, {"µs", 1e6}, {"μs", 1e6}, {"ms", 1e9}, {"s", 1e12}}};

constexpr double kMostPs = 1e15;  // a draw is never longer than 1000 s

}  // namespace

// Recursive descent over one line of text.
class DelayDistribution::Parser {
 public:
  Parser(const std::string& where, const std::string& text) : where_(where), text_(text) {}

  std::vector<Term> sum() {
    std::vector<Term> terms{term()};
    while (accept("+")) terms.push_back(term());
    if (position_ != text_.size()) refuse();
    return terms;
  }

 private:
  Term term() {
    for (const auto& [name, shape] :
         {std::pair{"uniform", Shape::uniform}, std::pair{"exponential", Shape::exponential},
          std::pair{"lognormal", Shape::lognormal}})
      if (accept(name)) return arguments(shape);
    const double value = number();
    if (accept("*")) {
      if (value > 1) refuse();
      Term some = term();
      some.probability *= value;
      return some;
    }
    return {Shape::constant, 1, value * unit(), 0};
  }

  Term arguments(Shape shape) {
    Term term{shape, 1, 0, 0};
    expect("(");
    term.first = time();
    if (shape != Shape::exponential) {
      expect(",");
      term.second = shape == Shape::uniform ? time() : number();
    }
    expect(")");
    if (shape == Shape::uniform && term.second < term.first) refuse();
    return term;
  }

  double time() {
    const double value = number();
    return value * unit();
  }

  double number() {
    skip_spaces();
    const char* start = text_.c_str() + position_;
    char* end = nullptr;
    const double value = std::strtod(start, &end);
    if (end == start || !std::isfinite(value) || value < 0) refuse();
    position_ += static_cast<size_t>(end - start);
    return value;
  }

  double unit() {
    for (const auto& [name, ps] : kUnits)
      if (accept(name)) return ps;
    refuse();
  }

  void skip_spaces() {
    while (position_ < text_.size() && text_[position_] == ' ') ++position_;
  }

  bool accept(const std::string& token) {
    skip_spaces();
    if (text_.compare(position_, token.size(), token) != 0) return false;
    position_ += token.size();
    skip_spaces();
    return true;
  }

  void expect(const std::string& token) {
    if (!accept(token)) refuse();
  }

  [[noreturn]] void refuse() const {
    throw Error(where_, "'" + text_ + "' is not a distribution of times",
                "write \"10 us\", \"uniform(5 us, 15 us)\", \"exponential(10 us)\", "
                "\"lognormal(10 us, 0.5)\" (median, sigma), or a sum such as "
                "\"10 us + 0.01 * exponential(1 ms)\"");
  }

  const std::string& where_;
  const std::string& text_;
  size_t position_ = 0;
};

DelayDistribution DelayDistribution::parse(const std::string& where, const std::string& text) {
  DelayDistribution result;
  result.terms_ = Parser(where, text).sum();
  return result;
}

int64_t DelayDistribution::draw(Rng& rng) const {
  double sum = 0;
  for (const Term& term : terms_) {
    if (term.probability < 1 && rng.uniform() > term.probability) continue;
    switch (term.shape) {
      case Shape::constant:
        sum += term.first;
        break;
      case Shape::uniform:
        sum += term.first + (term.second - term.first) * rng.uniform();
        break;
      case Shape::exponential:
        sum -= term.first * std::log(rng.uniform());
        break;
      case Shape::lognormal: {
        const double radius = std::sqrt(-2 * std::log(rng.uniform()));
        const double normal = radius * std::cos(2 * std::numbers::pi * rng.uniform());
        sum += term.first * std::exp(term.second * normal);
        break;
      }
    }
  }
  return std::llround(std::min(sum, kMostPs));
}

double DelayDistribution::mean() const {
  double sum = 0;
  for (const Term& term : terms_) {
    switch (term.shape) {
      case Shape::constant:
      case Shape::exponential:
        sum += term.probability * term.first;
        break;
      case Shape::uniform:
        sum += term.probability * (term.first + term.second) / 2;
        break;
      case Shape::lognormal:
        sum += term.probability * term.first * std::exp(term.second * term.second / 2);
        break;
    }
  }
  return sum;
}

}  // namespace weft::transport
