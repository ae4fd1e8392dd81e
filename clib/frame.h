/* Frames of the controller's socket: a length (4 bytes, big endian) and a JSON object.
 * Entry points: the weft_text_ functions write requests, weft_answer_read reads an answer,
 * weft_frame_ functions send and receive. See docs/control-protocol.md. */
#ifndef WEFT_FRAME_H
#define WEFT_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { WEFT_FRAME_BYTES = 64 * 1024, WEFT_REQUEST_BYTES = 8192, WEFT_WORD_BYTES = 256 };

/* Of leases, in seconds. */
#define WEFT_LEAST_TTL 0.1
#define WEFT_MOST_TTL 86400.0
/* Of a job, in bytes. */
#define WEFT_MOST_SIZE (UINT64_C(1) << 60)

/* A request as it is written; what does not fit is remembered and never sent. */
struct weft_text {
  char data[WEFT_REQUEST_BYTES];
  size_t used;
  bool has_overflown;
};

void weft_text_begin(struct weft_text* text, const char* call); /* {"call": "Register" */
void weft_text_field(struct weft_text* text, const char* name, const char* value);
void weft_text_key(struct weft_text* text, const char* client, uint64_t sequence);
void weft_text_seconds(struct weft_text* text, const char* name, double seconds);
void weft_text_bytes(struct weft_text* text, const char* name, uint64_t bytes);
void weft_text_end(struct weft_text* text);

/* What a client needs of an answer; texts are cut where they are longer, leases (0: not said) to
 * what they can be. */
struct weft_answer {
  bool is_ok;
  int level;
  double ttl_s;
  char id[WEFT_WORD_BYTES];
  char code[WEFT_WORD_BYTES];
  char error[WEFT_WORD_BYTES];
};

/* Whether the bytes are a JSON object with "ok"; fields that are not known are passed over. */
bool weft_answer_read(const char* data, size_t bytes, struct weft_answer* answer);

/* A connected socket, or -1 with errno. */
int weft_frame_connect(const char* path);
/* Both return false when the other side is gone or silent for that long. */
bool weft_frame_send(int fd, const struct weft_text* text, int timeout_ms);
bool weft_frame_receive(int fd, char buffer[WEFT_FRAME_BYTES], size_t* bytes, int timeout_ms);

int64_t weft_now_ms(void);

#endif
