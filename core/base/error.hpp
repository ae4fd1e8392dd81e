// An error that a user can act on: where, what is wrong (value and limit), what to do.
// Python sees it as weft.errors.InputError.
#pragma once

#include <stdexcept>
#include <string>

namespace weft {

class Error : public std::runtime_error {
 public:
  Error(std::string where, std::string problem, std::string remedy = "")
      : std::runtime_error(where + ": " + problem + (remedy.empty() ? "" : "; " + remedy)),
        where_(std::move(where)),
        problem_(std::move(problem)),
        remedy_(std::move(remedy)) {}

  const std::string& where() const { return where_; }
  const std::string& problem() const { return problem_; }
  const std::string& remedy() const { return remedy_; }

 private:
  std::string where_, problem_, remedy_;
};

}  // namespace weft
