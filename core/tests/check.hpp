// A minimal test runner: TEST(name) { CHECK(condition); CHECK_EQ(a, b); CHECK_THROWS(type, e); }
//
// Each TEST registers itself before main runs; a failed check is printed with its
// place and the test goes on, so that one run shows every failure.
#pragma once

#include <exception>
#include <iostream>
#include <string>
#include <vector>

namespace weft::test {

struct Case {
  const char* name;
  void (*body)();
};

inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}

inline int& failed_checks() {
  static int count = 0;
  return count;
}

inline int add(const char* name, void (*body)()) {
  cases().push_back({name, body});
  return 0;
}

inline void fail(const char* file, int line, const std::string& what) {
  ++failed_checks();
  std::cerr << file << ":" << line << ": " << what << "\n";
}

template <class A, class B>
void check_equal(const A& a, const B& b, const char* file, int line, const char* text) {
  if (a == b) return;
  std::cerr << "  left:  " << a << "\n  right: " << b << "\n";
  fail(file, line, text);
}

inline bool run(const Case& test) {
  const int before = failed_checks();
  try {
    test.body();
  } catch (const std::exception& error) {
    fail(test.name, 0, std::string("unexpected exception: ") + error.what());
  }
  if (failed_checks() == before) return true;
  std::cerr << "FAILED " << test.name << "\n";
  return false;
}

}  // namespace weft::test

#define TEST(name)                                                                         \
  static void test_##name();                                                               \
  [[maybe_unused]] static const int added_##name = ::weft::test::add(#name, &test_##name); \
  static void test_##name()

#define CHECK(...)                                                                         \
  do {                                                                                     \
    if (!(__VA_ARGS__)) ::weft::test::fail(__FILE__, __LINE__, "CHECK(" #__VA_ARGS__ ")"); \
  } while (0)

#define CHECK_EQ(a, b) \
  ::weft::test::check_equal((a), (b), __FILE__, __LINE__, "CHECK_EQ(" #a ", " #b ")")

#define CHECK_THROWS(type, ...)                                                            \
  do {                                                                                     \
    bool thrown = false;                                                                   \
    try {                                                                                  \
      (void)(__VA_ARGS__);                                                                 \
    } catch (const type&) {                                                                \
      thrown = true;                                                                       \
    }                                                                                      \
    if (!thrown)                                                                           \
      ::weft::test::fail(__FILE__, __LINE__, "CHECK_THROWS(" #type ", " #__VA_ARGS__ ")"); \
  } while (0)
