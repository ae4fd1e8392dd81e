/* The library that applications in C use: registration with weft's controller, connections that
 * bear the application's level, a lease that is renewed by a thread.
 *
 * It speaks to the controller's Unix socket (docs/control-protocol.md). Whatever the controller
 * does, the program goes on: without one, connections are opened as if there were none, with one
 * warning; when it comes (back), open connections are marked and reported. Calls are safe from
 * any thread. A forked process keeps the marks but reports nothing: the registration is its
 * parent's.
 *
 * Pointers are NULL and numbers -1 where something failed; errno says why. */
#ifndef WEFT_CONTROL_H
#define WEFT_CONTROL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

#define WEFT_CONTROL_SOCKET "/run/weft/control.sock"

typedef struct weft_app weft_app;   /* a registration: the tag of the thesis */
typedef struct weft_conn weft_conn; /* a connection of it */

/* All zero: as it usually is. */
typedef struct weft_options {
  const char* socket_path; /* NULL: of WEFT_CONTROL_SOCKET, the user's own, or the above */
  double ttl_s;            /* the lease, which is renewed at a third of it; 0: 10 */
  int wait_ms;             /* for the level, when registering; 0: 1000, below 0: not at all */
  /* Called once at most, from any thread, and not after weft_app_deregister; NULL: stderr. */
  void (*warn)(const char* problem, void* context);
  void* context;
  /* Bytes that the job is going to move over its busiest link, up to 2^60; 0: as its profile. */
  uint64_t size_bytes;
} weft_options;

/* An application of the table of `weft apps`. NULL only where there is no memory or no name. */
weft_app* weft_app_register(const char* name, const weft_options* options);

/* A connected socket (SOCK_STREAM or SOCK_DGRAM) whose first packet is marked. */
weft_conn* weft_conn_create(weft_app* app, const char* host, const char* port, int type);

/* Closes the socket, if weft_conn_create opened it; reports it in the background. */
int weft_conn_destroy(weft_conn* conn);

/* Gives the registration back, within a second. Connections stay open until they are destroyed. */
int weft_app_deregister(weft_app* app);

/* ---- What the four calls do not cover ------------------------------------------------------- */

/* 0 to 63; 0 as long as no controller has given one. Service level of queue pairs up to 15, above
 * which InfiniBand has none (use 0); as a DSCP, its four-fold is the type of service of sockets and
 * the traffic class of queue pairs. */
int weft_app_level(weft_app* app);
int weft_app_is_managed(weft_app* app); /* whether a controller has it, as far as is known */

/* The socket, or -1. */
int weft_conn_fd(const weft_conn* conn);
/* Whether the controller counts it. */
int weft_conn_is_counted(weft_conn* conn);

/* Marks and reports a connected socket of the program; destroying leaves it open. */
weft_conn* weft_conn_mark(weft_app* app, int fd);

/* Traffic between two hosts over something that the program opens itself, such as a queue pair;
 * hosts by name in the fabric, alias, GUID or LID. */
weft_conn* weft_conn_declare(weft_app* app, const char* source, const char* destination);

/* ---- By the names of the thesis (Table 4.1) ------------------------------------------------- */

static inline weft_app* saba_app_register(const char* name) {
  return weft_app_register(name, NULL);
}
static inline weft_conn* saba_conn_create(weft_app* tag, const char* host, const char* port,
                                          int type) {
  return weft_conn_create(tag, host, port, type);
}
static inline int saba_conn_destroy(weft_conn* conn) {
  return weft_conn_destroy(conn);
}
static inline int saba_app_deregister(weft_app* tag) {
  return weft_app_deregister(tag);
}

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
