/* What an application has to tell its controller, and the conversation in which it does.
 * Everything here is guarded by `lock` but what is constant, and `link`, which is the thread's. */
#ifndef WEFT_SESSION_H
#define WEFT_SESSION_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "address.h"
#include "frame.h"
#include "list.h"
#include "weft_control.h"

/* wanted: to be sent; sent: in flight; counted; refused: for good; local: not reported. */
enum { WEFT_JOB_BYTES = 129 };

enum weft_state { WEFT_WANTED, WEFT_SENT, WEFT_COUNTED, WEFT_REFUSED, WEFT_LOCAL };

struct weft_conn {
  weft_app* app;
  struct weft_link all, due; /* in the application's lists of these names, or in none */
  int fd;                    /* or -1 */
  ino_t inode;
  bool owns_fd;
  bool is_closed;   /* by the program */
  bool is_doubtful; /* the controller may know it though it did not say so */
  enum weft_state state;
  uint64_t sequence; /* names it, under this registration; 0: not asked for yet */
  char source[WEFT_HOST_BYTES], destination[WEFT_HOST_BYTES];
};

struct weft_app {
  pthread_mutex_t lock;
  pthread_cond_t changed; /* on CLOCK_MONOTONIC */
  pid_t process;
  int users; /* the program, the thread and every connection */
  char* name;
  char* path;
  char job[WEFT_JOB_BYTES]; /* of which this process is a part; empty: of none */
  double ttl_s;
  uint64_t size_bytes; /* 0: not stated */
  void (*warn)(const char*, void*);
  void* context;
  bool has_warned, has_answered, is_managed, is_ending, is_over;
  bool is_warning;  /* `warn` is under way, */
  pthread_t warner; /* in this thread */
  int level;

  char client[33];
  uint64_t sequence;
  uint64_t registering;     /* the sequence of its key; 0: none yet */
  char id[WEFT_WORD_BYTES]; /* of the registration; empty: there is none */
  double given_ttl_s;
  int64_t renew_ms, hold_ms;    /* when to renew, and until when to send nothing */
  int64_t pause_ms;             /* how long that is; 0: the controller is not busy */
  struct weft_link all;         /* connections */
  struct weft_link due;         /* those whose opening or closing is to be sent */
  char frame[WEFT_FRAME_BYTES]; /* the thread's */
};

/* The thread's body; its argument is the application. */
void* weft_session_run(void* app);
/* With the lock held: queues a connection, frees it, or neither for now. */
void weft_session_settle(weft_app* app, struct weft_conn* conn);
/* Without the lock: one user less; the last one frees it. */
void weft_app_leave(weft_app* app);
/* Without the lock. */
void weft_session_warn(weft_app* app, const char* problem);

#endif
