/* Answers and requests of the controller's socket; the oracle is JSON's definition. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "frame.h"

static int failures = 0;

static void check(bool holds, const char* claim) {
  if (holds) return;
  fprintf(stderr, "FAILED %s\n", claim);
  ++failures;
}

/* From memory of exactly that size, so that a sanitizer sees a read beyond. */
static bool reads(const char* text, struct weft_answer* answer) {
  const size_t bytes = strlen(text);
  char* copy = malloc(bytes > 0 ? bytes : 1);
  memcpy(copy, text, bytes);
  const bool found = weft_answer_read(copy, bytes, answer);
  free(copy);
  return found;
}

static void test_a_registration_is_read_whatever_the_order_and_further_fields(void) {
  struct weft_answer answer;
  check(reads("{\"x\": [1, {\"y\": null}], \"ttl_s\": 2.5, \"level\": 3, \"id\": \"a#7\", "
              "\"ok\": true}",
              &answer),
        "an answer with unknown fields is read");
  check(answer.is_ok && answer.level == 3 && answer.ttl_s == 2.5, "numbers are as sent");
  check(strcmp(answer.id, "a#7") == 0, "texts are as sent");
}

static void test_a_refusal_has_its_code_and_words(void) {
  struct weft_answer answer;
  check(
      reads("{\"ok\":false,\"code\":\"NOT_FOUND\",\"error\":\"a \\\"b\\\" \\u00e4\\n\"}", &answer),
      "a refusal is read");
  check(!answer.is_ok && strcmp(answer.code, "NOT_FOUND") == 0, "its code is as sent");
  check(strcmp(answer.error, "a \"b\" ?\n") == 0, "escapes are undone");
}

static void test_what_is_no_answer_is_refused(void) {
  static const char* const wrong[] = {"",
                                      "{",
                                      "{}",
                                      "[]",
                                      "{\"ok\": true",
                                      "{\"ok\"}",
                                      "{\"ok\": }",
                                      "{\"level\": 3}",
                                      "{\"ok\": true, \"level\": 64}",
                                      "{\"ok\": true, \"level\": \"x\"}",
                                      "{\"ok\": true, \"id\": 3}",
                                      "{\"ok\": true, \"id\": \"\\u12\"}",
                                      "{\"ok\": true, \"id\": \"\\",
                                      "{\"ok\": true,}",
                                      "{\"a\": [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1"};
  struct weft_answer answer;
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i)
    check(!reads(wrong[i], &answer), wrong[i][0] != '\0' ? wrong[i] : "an empty frame is refused");
}

static void test_every_beginning_of_an_answer_is_refused(void) {
  static const char whole[] =
      "{\"ok\": true, \"id\": \"a\\u0041\", \"ttl_s\": 1e3, \"z\": {\"a\": []}}";
  struct weft_answer answer;
  char part[sizeof whole];
  check(reads(whole, &answer), "the whole is read");
  for (size_t bytes = 0; bytes < strlen(whole); ++bytes) {
    memcpy(part, whole, bytes);
    part[bytes] = '\0';
    check(!reads(part, &answer), part);
  }
}

static void test_a_lease_is_cut_to_what_it_can_be(void) {
  char text[512] = "{\"ok\": true, \"ttl_s\": 9";
  const size_t start = strlen(text);
  struct weft_answer answer;
  memset(text + start, '9', 400); /* more than a double holds */
  strcpy(text + start + 400, "}");
  check(reads(text, &answer) && answer.ttl_s == WEFT_MOST_TTL, "no lease is longer than a day");
  check(reads("{\"ok\": true, \"ttl_s\": 0.000001}", &answer) && answer.ttl_s == WEFT_LEAST_TTL,
        "no lease is shorter than a tenth of a second");
  check(reads("{\"ok\": true, \"ttl_s\": -5}", &answer) && answer.ttl_s == 0,
        "a lease below zero is none");
}

static void test_long_texts_are_cut(void) {
  char text[2 * WEFT_WORD_BYTES + 64] = "{\"ok\": false, \"error\": \"";
  const size_t start = strlen(text);
  struct weft_answer answer;
  memset(text + start, 'x', 2 * WEFT_WORD_BYTES);
  strcpy(text + start + 2 * WEFT_WORD_BYTES, "\"}");
  check(reads(text, &answer), "a long text is read");
  check(strlen(answer.error) == WEFT_WORD_BYTES - 1, "and cut");
}

static void test_a_request_is_json(void) {
  static const char wanted[] =
      "{\"call\": \"Register\", \"key\": {\"client\": \"c\", \"sequence\": 18446744073709551615}, "
      "\"application\": \"a\\\"\\\\\\u0001\", \"ttl_s\": 2.050, "
      "\"size_bytes\": 1152921504606846976}";
  struct weft_text text;
  weft_text_begin(&text, "Register");
  weft_text_key(&text, "c", UINT64_MAX);
  weft_text_field(&text, "application", "a\"\\\x01");
  weft_text_seconds(&text, "ttl_s", 2.05);
  weft_text_bytes(&text, "size_bytes", WEFT_MOST_SIZE);
  weft_text_end(&text);
  check(!text.has_overflown && text.used == strlen(wanted), "its size is that of the JSON");
  check(memcmp(text.data, wanted, text.used) == 0, "its bytes are the JSON");
}

static void test_a_request_that_does_not_fit_is_known_to(void) {
  struct weft_text text;
  weft_text_begin(&text, "Connect");
  for (int i = 0; i < 100; ++i)
    weft_text_field(&text, "source",
                    "012345678901234567890123456789012345678901234567890123456789012345678901234567"
                    "89012345678901234567890123456789");
  check(text.has_overflown && text.used <= sizeof text.data, "nothing is written beyond");
}

int main(void) {
  test_a_registration_is_read_whatever_the_order_and_further_fields();
  test_a_refusal_has_its_code_and_words();
  test_what_is_no_answer_is_refused();
  test_every_beginning_of_an_answer_is_refused();
  test_a_lease_is_cut_to_what_it_can_be();
  test_long_texts_are_cut();
  test_a_request_is_json();
  test_a_request_that_does_not_fit_is_known_to();
  return failures == 0 ? 0 : 1;
}
