#define _DEFAULT_SOURCE
#include "frame.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* ---- Requests ------------------------------------------------------------------------------- */

static void put(struct weft_text* text, const char* data, size_t bytes) {
  if (text->used + bytes > sizeof text->data) {
    text->has_overflown = true;
    return;
  }
  memcpy(text->data + text->used, data, bytes);
  text->used += bytes;
}

static void put_text(struct weft_text* text, const char* data) {
  put(text, data, strlen(data));
}

static void put_quoted(struct weft_text* text, const char* value) {
  put(text, "\"", 1);
  for (const char* at = value; *at != '\0'; ++at) {
    const unsigned char byte = (unsigned char)*at;
    char escaped[8];
    if (byte == '"' || byte == '\\') {
      put(text, "\\", 1);
      put(text, at, 1);
    } else if (byte < 0x20 || byte == 0x7f) {
      snprintf(escaped, sizeof escaped, "\\u%04x", byte);
      put_text(text, escaped);
    } else {
      put(text, at, 1);
    }
  }
  put(text, "\"", 1);
}

static void put_number(struct weft_text* text, uint64_t value) {
  char digits[24];
  snprintf(digits, sizeof digits, "%llu", (unsigned long long)value);
  put_text(text, digits);
}

static void put_name(struct weft_text* text, const char* name) {
  put_text(text, ", ");
  put_quoted(text, name);
  put_text(text, ": ");
}

void weft_text_begin(struct weft_text* text, const char* call) {
  text->used = 0;
  text->has_overflown = false;
  put_text(text, "{\"call\": ");
  put_quoted(text, call);
}

void weft_text_field(struct weft_text* text, const char* name, const char* value) {
  put_name(text, name);
  put_quoted(text, value);
}

void weft_text_key(struct weft_text* text, const char* client, uint64_t sequence) {
  put_name(text, "key");
  put_text(text, "{\"client\": ");
  put_quoted(text, client);
  put_text(text, ", \"sequence\": ");
  put_number(text, sequence);
  put_text(text, "}");
}

/* Without the C library's decimal point, which a locale may change. */
void weft_text_seconds(struct weft_text* text, const char* name, double seconds) {
  const uint64_t thousandths = (uint64_t)(seconds * 1000 + 0.5);
  char fraction[8];
  put_name(text, name);
  put_number(text, thousandths / 1000);
  snprintf(fraction, sizeof fraction, ".%03u", (unsigned)(thousandths % 1000));
  put_text(text, fraction);
}

void weft_text_bytes(struct weft_text* text, const char* name, uint64_t bytes) {
  put_name(text, name);
  put_number(text, bytes);
}

void weft_text_end(struct weft_text* text) {
  put(text, "}", 1);
}

/* ---- Answers -------------------------------------------------------------------------------- */

struct reader {
  const char* at;
  const char* end;
};

enum { DEEPEST = 32 };

static bool is_one_of(const char* set, char c) {
  return c != '\0' && strchr(set, c) != NULL;
}

static void skip_space(struct reader* in) {
  while (in->at < in->end && is_one_of(" \t\r\n", *in->at)) ++in->at;
}

static bool take(struct reader* in, char wanted) {
  skip_space(in);
  if (in->at == in->end || *in->at != wanted) return false;
  ++in->at;
  return true;
}

static int hex_of(char digit) {
  if (digit >= '0' && digit <= '9') return digit - '0';
  if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
  if (digit >= 'A' && digit <= 'F') return digit - 'A' + 10;
  return -1;
}

/* The character behind a backslash; what is not ASCII becomes a question mark. */
static int read_escaped(struct reader* in) {
  static const char names[] = "\"\\/bfnrt", means[] = "\"\\/\b\f\n\r\t";
  if (is_one_of(names, *in->at)) return (unsigned char)means[strchr(names, *in->at++) - names];
  if (*in->at != 'u' || in->end - in->at < 5) return -1;
  int value = 0;
  for (int i = 1; i <= 4; ++i) {
    const int digit = hex_of(in->at[i]);
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  in->at += 5;
  return value < 0x80 ? value : '?';
}

/* Into `out`, cut at its size; NULL: passed over. */
static bool read_text(struct reader* in, char* out, size_t size) {
  size_t used = 0;
  if (!take(in, '"')) return false;
  while (in->at < in->end && *in->at != '"') {
    int byte = (unsigned char)*in->at++;
    if (byte == '\\') {
      if (in->at == in->end) return false;
      byte = read_escaped(in);
      if (byte < 0) return false;
    }
    if (out != NULL && used + 1 < size) out[used++] = (char)byte;
  }
  if (out != NULL) out[used] = '\0';
  return take(in, '"');
}

/* Digits and a decimal point; an exponent is passed over, and so makes a wrong number of none that
 * a controller sends. */
static bool read_number(struct reader* in, double* value) {
  const char* start = in->at;
  double found = 0, unit = 1;
  bool is_negative = false, is_fraction = false, is_exponent = false;
  for (; in->at < in->end && is_one_of("+-.eE0123456789", *in->at); ++in->at) {
    const char c = *in->at;
    if (c == '-' && in->at == start) is_negative = true;
    if (c == '.') is_fraction = true;
    if (c == 'e' || c == 'E') is_exponent = true;
    if (c < '0' || c > '9' || is_exponent) continue;
    if (is_fraction) unit /= 10;
    found = is_fraction ? found + unit * (c - '0') : found * 10 + (c - '0');
  }
  *value = is_negative ? -found : found;
  return in->at > start;
}

static bool skip_word(struct reader* in) {
  const char* start = in->at;
  while (in->at < in->end && *in->at >= 'a' && *in->at <= 'z') ++in->at;
  return in->at > start;
}

static bool skip_value(struct reader* in, int depth);

static bool skip_members(struct reader* in, char end, int depth) {
  if (take(in, end)) return true;
  do {
    if (end == '}' && !(read_text(in, NULL, 0) && take(in, ':'))) return false;
    if (!skip_value(in, depth)) return false;
  } while (take(in, ','));
  return take(in, end);
}

static bool skip_value(struct reader* in, int depth) {
  double number;
  skip_space(in);
  if (in->at == in->end || depth > DEEPEST) return false;
  if (*in->at == '"') return read_text(in, NULL, 0);
  if (take(in, '{')) return skip_members(in, '}', depth + 1);
  if (take(in, '[')) return skip_members(in, ']', depth + 1);
  return read_number(in, &number) || skip_word(in);
}

static bool read_lease(struct reader* in, double* ttl_s) {
  double found = 0;
  if (!read_number(in, &found)) return false;
  if (found > 0 && found < WEFT_LEAST_TTL) found = WEFT_LEAST_TTL;
  *ttl_s = found < 0 ? 0 : found > WEFT_MOST_TTL ? WEFT_MOST_TTL : found;
  return true;
}

static bool read_member(struct reader* in, struct weft_answer* answer, bool* has_ok) {
  char name[32];
  double number = 0;
  if (!read_text(in, name, sizeof name) || !take(in, ':')) return false;
  skip_space(in);
  if (strcmp(name, "ok") == 0) {
    answer->is_ok = in->at < in->end && *in->at == 't';
    *has_ok = true;
    return skip_word(in);
  }
  if (strcmp(name, "id") == 0) return read_text(in, answer->id, sizeof answer->id);
  if (strcmp(name, "code") == 0) return read_text(in, answer->code, sizeof answer->code);
  if (strcmp(name, "error") == 0) return read_text(in, answer->error, sizeof answer->error);
  if (strcmp(name, "level") == 0) {
    if (!read_number(in, &number) || number < 0 || number > 63) return false;
    answer->level = (int)number;
    return true;
  }
  if (strcmp(name, "ttl_s") == 0) return read_lease(in, &answer->ttl_s);
  return skip_value(in, 0);
}

bool weft_answer_read(const char* data, size_t bytes, struct weft_answer* answer) {
  struct reader in = {data, data + bytes};
  bool has_ok = false;
  memset(answer, 0, sizeof *answer);
  if (!take(&in, '{')) return false;
  if (take(&in, '}')) return false;
  do {
    if (!read_member(&in, answer, &has_ok)) return false;
  } while (take(&in, ','));
  return take(&in, '}') && has_ok;
}

/* ---- The socket ----------------------------------------------------------------------------- */

int64_t weft_now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int weft_frame_connect(const char* path) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  if (strlen(path) >= sizeof address.sun_path) {
    errno = ENAMETOOLONG;
    return -1;
  }
  strcpy(address.sun_path, path);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  if (connect(fd, (const struct sockaddr*)&address, sizeof address) == 0) return fd;
  const int problem = errno;
  close(fd);
  errno = problem;
  return -1;
}

static bool is_ready(int fd, short events, int64_t until_ms) {
  struct pollfd one = {.fd = fd, .events = events};
  int64_t left_ms = until_ms - weft_now_ms();
  while (left_ms > 0) {
    const int found = poll(&one, 1, (int)left_ms);
    if (found > 0) return true;
    if (found < 0 && errno != EINTR) return false;
    left_ms = until_ms - weft_now_ms();
  }
  return false;
}

static bool send_all(int fd, const char* data, size_t bytes, int64_t until_ms) {
  while (bytes > 0) {
    const ssize_t sent = send(fd, data, bytes, MSG_NOSIGNAL);
    if (sent > 0) {
      data += sent;
      bytes -= (size_t)sent;
    } else if (errno != EAGAIN && errno != EINTR) {
      return false;
    } else if (!is_ready(fd, POLLOUT, until_ms)) {
      return false;
    }
  }
  return true;
}

static bool receive_all(int fd, char* data, size_t bytes, int64_t until_ms) {
  while (bytes > 0) {
    const ssize_t got = recv(fd, data, bytes, 0);
    if (got > 0) {
      data += got;
      bytes -= (size_t)got;
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
      return false;
    } else if (!is_ready(fd, POLLIN, until_ms)) {
      return false;
    }
  }
  return true;
}

bool weft_frame_send(int fd, const struct weft_text* text, int timeout_ms) {
  const int64_t until_ms = weft_now_ms() + timeout_ms;
  const uint32_t length = htonl((uint32_t)text->used);
  if (text->has_overflown) return false;
  return send_all(fd, (const char*)&length, sizeof length, until_ms) &&
         send_all(fd, text->data, text->used, until_ms);
}

bool weft_frame_receive(int fd, char buffer[WEFT_FRAME_BYTES], size_t* bytes, int timeout_ms) {
  const int64_t until_ms = weft_now_ms() + timeout_ms;
  uint32_t length = 0;
  if (!receive_all(fd, (char*)&length, sizeof length, until_ms)) return false;
  *bytes = ntohl(length);
  return *bytes <= WEFT_FRAME_BYTES && receive_all(fd, buffer, *bytes, until_ms);
}
