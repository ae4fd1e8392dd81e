// Runs every TEST; an argument keeps only the tests whose name contains it.
#include <string>

#include "check.hpp"

int main(int argc, char** argv) {
  const std::string wanted = argc > 1 ? argv[1] : "";
  int passed = 0;
  int failed = 0;
  for (const auto& test : weft::test::cases()) {
    if (std::string(test.name).find(wanted) == std::string::npos) continue;
    ++(weft::test::run(test) ? passed : failed);
  }
  std::cout << passed << " passed, " << failed << " failed\n";
  return failed == 0 ? 0 : 1;
}
