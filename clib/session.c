/* One thread for each application: it registers, tells what was opened and closed, renews the
 * lease.
 *
 * A round sends the pending events, up to ROUND requests one after another, and then reads as
 * many answers. When the link breaks, whatever had no answer is sent again with the same keys, so
 * that the controller carries it out once. A lease that is lost is replaced by a new registration,
 * under which all open connections are reported again. */
#define _DEFAULT_SOURCE
#include "session.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { ROUND = 64, ANSWER_MS = 5000, AGAIN_MS = 100, LONGEST_MS = 5000, REFUSED_MS = 30000 };

/* What is on its way: a renewal where there is no connection. */
struct request {
  struct weft_conn* conn;
  bool is_disconnect;
};

struct round {
  struct request requests[ROUND];
  int count;
};

/* ---- Time ----------------------------------------------------------------------------------- */

/* With the lock held: until the time, or until something changes. */
static void wait_until(weft_app* app, int64_t until_ms) {
  const struct timespec until = {.tv_sec = until_ms / 1000, .tv_nsec = until_ms % 1000 * 1000000};
  pthread_cond_timedwait(&app->changed, &app->lock, &until);
}

static void pause_for(weft_app* app, int ms) {
  const int64_t until_ms = weft_now_ms() + ms;
  pthread_mutex_lock(&app->lock);
  while (!app->is_ending && weft_now_ms() < until_ms) wait_until(app, until_ms);
  pthread_mutex_unlock(&app->lock);
}

static int64_t third_ms(const weft_app* app) {
  const double ttl_s = app->given_ttl_s > 0 ? app->given_ttl_s : app->ttl_s;
  /* Not all at the same moment: the client's name is random. */
  const double jitter = 0.9 + 0.1 * (app->client[0] % 8) / 8;
  return (int64_t)(ttl_s * 1000 / 3 * jitter) + 1;
}

/* ---- What is known -------------------------------------------------------------------------- */

void weft_session_warn(weft_app* app, const char* problem) {
  pthread_mutex_lock(&app->lock);
  const bool is_due = !app->has_warned && !app->is_ending;
  if (is_due) {
    app->has_warned = app->is_warning = true;
    app->warner = pthread_self();
  }
  pthread_mutex_unlock(&app->lock);
  if (!is_due) return;
  if (app->warn != NULL)
    app->warn(problem, app->context);
  else
    fprintf(stderr, "weft: application %s: best effort: controller %s: %s\n", app->name, app->path,
            problem);
  pthread_mutex_lock(&app->lock);
  app->is_warning = false;
  pthread_cond_broadcast(&app->changed);
  pthread_mutex_unlock(&app->lock);
}

static void drop(weft_app* app, struct weft_conn* conn) {
  weft_link_leave(&conn->all);
  weft_link_leave(&conn->due);
  --app->users;
  free(conn);
}

/* Whether the controller can have heard of it: only then is there something to take back. */
static bool is_unknown(const struct weft_conn* conn) {
  if (conn->state == WEFT_WANTED) return !conn->is_doubtful;
  return conn->state == WEFT_REFUSED || conn->state == WEFT_LOCAL;
}

void weft_session_settle(weft_app* app, struct weft_conn* conn) {
  if (conn->is_closed && (is_unknown(conn) || app->is_over)) {
    drop(app, conn);
    return;
  }
  const bool is_due =
      conn->state == WEFT_WANTED || (conn->state == WEFT_COUNTED && conn->is_closed);
  if (!is_due || weft_link_has_others(&conn->due)) return;
  weft_link_after(app->due.previous, &conn->due);
  if (app->id[0] != '\0') pthread_cond_broadcast(&app->changed);
}

/* The program may have closed a socket of its own, and its number may be another's by now. */
static bool is_same_socket(const struct weft_conn* conn) {
  struct stat found;
  return conn->fd >= 0 && fstat(conn->fd, &found) == 0 && found.st_ino == conn->inode;
}

static void mark_all(weft_app* app) {
  for (struct weft_link* at = app->all.next; at != &app->all; at = at->next) {
    const struct weft_conn* conn = WEFT_OWNER(at, struct weft_conn, all);
    if (!conn->is_closed && is_same_socket(conn)) weft_socket_mark(conn->fd, app->level);
  }
}

/* No answer, or a refusal, which resets the level: warns once. */
static void note(weft_app* app, const char* problem, bool keeps_level) {
  pthread_mutex_lock(&app->lock);
  const bool is_news = app->is_managed || !app->has_answered;
  app->is_managed = false;
  app->has_answered = true;
  if (!keeps_level && app->level != 0) {
    app->level = 0;
    mark_all(app);
  }
  pthread_cond_broadcast(&app->changed);
  pthread_mutex_unlock(&app->lock);
  if (is_news) weft_session_warn(app, problem);
}

/* The lease is over, and every connection with it. */
static void lapse(weft_app* app) {
  app->id[0] = '\0';
  app->registering = 0;
  struct weft_link* next = NULL;
  for (struct weft_link* at = app->all.next; at != &app->all; at = next) {
    struct weft_conn* conn = WEFT_OWNER(at, struct weft_conn, all);
    next = at->next;
    if (conn->state == WEFT_LOCAL) continue;
    conn->state = WEFT_WANTED;
    conn->sequence = 0;
    conn->is_doubtful = false;
    weft_session_settle(app, conn);
  }
}

/* ---- Codes ---------------------------------------------------------------------------------- */

static bool is_code(const struct weft_answer* answer, const char* code) {
  return !answer->is_ok && strcmp(answer->code, code) == 0;
}

/* Not for now, and not carried out. */
static bool is_busy(const struct weft_answer* answer) {
  return is_code(answer, "RESOURCE_EXHAUSTED") || is_code(answer, "UNAVAILABLE");
}

/* Not for now; unless it is busy, the controller may have carried it out all the same. */
static bool is_passing(const struct weft_answer* answer) {
  static const char* const passing[] = {"CANCELLED", "UNKNOWN", "DEADLINE_EXCEEDED", "ABORTED",
                                        "INTERNAL"};
  for (size_t i = 0; i < sizeof passing / sizeof *passing; ++i)
    if (is_code(answer, passing[i])) return true;
  return is_busy(answer);
}

/* ---- One call ------------------------------------------------------------------------------- */

static bool answered(weft_app* app, int link, struct weft_answer* answer) {
  size_t bytes = 0;
  return weft_frame_receive(link, app->frame, &bytes, ANSWER_MS) &&
         weft_answer_read(app->frame, bytes, answer);
}

static bool called(weft_app* app, int link, const struct weft_text* text,
                   struct weft_answer* answer) {
  return weft_frame_send(link, text, ANSWER_MS) && answered(app, link, answer);
}

/* A registration; 0, or how long to wait before the next attempt. */
static int registered(weft_app* app, int link) {
  struct weft_text text;
  struct weft_answer answer;
  pthread_mutex_lock(&app->lock);
  if (app->registering == 0) app->registering = ++app->sequence;
  weft_text_begin(&text, "Register");
  weft_text_key(&text, app->client, app->registering);
  pthread_mutex_unlock(&app->lock);
  weft_text_field(&text, "application", app->name);
  weft_text_seconds(&text, "ttl_s", app->ttl_s);
  if (app->job[0] != '\0') weft_text_field(&text, "job", app->job);
  if (app->size_bytes != 0) weft_text_bytes(&text, "size_bytes", app->size_bytes);
  weft_text_end(&text);
  if (!called(app, link, &text, &answer)) {
    note(app, "does not answer", true);
    return AGAIN_MS;
  }
  if (!answer.is_ok || answer.id[0] == '\0') {
    const bool passes = is_passing(&answer);
    note(app, answer.error[0] != '\0' ? answer.error : "does not say who we are", passes);
    return passes ? LONGEST_MS : REFUSED_MS;
  }
  pthread_mutex_lock(&app->lock);
  memcpy(app->id, answer.id, sizeof app->id);
  app->level = answer.level;
  app->given_ttl_s = answer.ttl_s;
  app->renew_ms = 0;
  app->is_managed = app->has_answered = true;
  mark_all(app);
  pthread_cond_broadcast(&app->changed);
  pthread_mutex_unlock(&app->lock);
  return 0;
}

static void deregistered(weft_app* app, int link) {
  struct weft_text text;
  struct weft_answer answer;
  if (app->id[0] == '\0') return;
  weft_text_begin(&text, "Deregister");
  weft_text_key(&text, app->client, ++app->sequence);
  weft_text_field(&text, "id", app->id);
  weft_text_end(&text);
  called(app, link, &text, &answer); /* else its lease ends it */
}

/* ---- Rounds --------------------------------------------------------------------------------- */

/* With the lock held. */
static void write_request(weft_app* app, const struct request* request, struct weft_text* text) {
  struct weft_conn* conn = request->conn;
  char name[64];
  if (conn == NULL) {
    weft_text_begin(text, "Renew");
    weft_text_field(text, "id", app->id);
  } else if (request->is_disconnect) {
    snprintf(name, sizeof name, "%s/%llu", app->client, (unsigned long long)conn->sequence);
    weft_text_begin(text, "Disconnect");
    weft_text_field(text, "connection", name);
  } else {
    if (conn->sequence == 0) conn->sequence = ++app->sequence;
    weft_text_begin(text, "Connect");
    weft_text_key(text, app->client, conn->sequence);
    weft_text_field(text, "id", app->id);
    weft_text_field(text, "source", conn->source);
    weft_text_field(text, "destination", conn->destination);
  }
  weft_text_end(text);
}

static void add(struct round* round, struct weft_conn* conn, bool is_disconnect) {
  round->requests[round->count++] = (struct request){conn, is_disconnect};
}

/* With the lock held: what is to be sent now. */
static void gather(weft_app* app, struct round* round) {
  const int64_t now_ms = weft_now_ms();
  round->count = 0;
  if (now_ms < app->hold_ms) return;
  if (now_ms >= app->renew_ms) {
    app->renew_ms = now_ms + third_ms(app);
    add(round, NULL, false);
  }
  while (round->count < ROUND && weft_link_has_others(&app->due)) {
    struct weft_conn* conn = WEFT_OWNER(app->due.next, struct weft_conn, due);
    weft_link_leave(&conn->due);
    add(round, conn, conn->state == WEFT_COUNTED);
    conn->state = WEFT_SENT;
  }
}

/* With the lock held; false: the lease is lost. */
static bool take(weft_app* app, const struct request* request, const struct weft_answer* answer) {
  struct weft_conn* conn = request->conn;
  const bool has_lapsed = is_code(answer, "FAILED_PRECONDITION");
  if (conn == NULL) return !has_lapsed;
  if (is_passing(answer)) {
    conn->state = request->is_disconnect ? WEFT_COUNTED : WEFT_WANTED;
    conn->is_doubtful = conn->is_doubtful || !is_busy(answer);
    weft_session_settle(app, conn);
    return true;
  }
  /* One that was carried out, closed and is sent again is refused as if the lease were lost. */
  if (request->is_disconnect || (has_lapsed && conn->is_closed)) {
    drop(app, conn);
    return true;
  }
  conn->is_doubtful = false;
  conn->state = answer->is_ok ? WEFT_COUNTED : WEFT_REFUSED;
  weft_session_settle(app, conn);
  return !has_lapsed;
}

/* Before all others, so that no more than a round's can be in doubt. */
static void put_back(weft_app* app, const struct round* round, int from) {
  pthread_mutex_lock(&app->lock);
  for (int i = round->count - 1; i >= from; --i) {
    struct weft_conn* conn = round->requests[i].conn;
    if (conn == NULL) continue;
    conn->state = round->requests[i].is_disconnect ? WEFT_COUNTED : WEFT_WANTED;
    conn->is_doubtful = true;
    weft_link_after(&app->due, &conn->due);
  }
  app->renew_ms = 0;
  pthread_mutex_unlock(&app->lock);
}

static bool sent_round(weft_app* app, int link, const struct round* round) {
  struct weft_text text;
  for (int i = 0; i < round->count; ++i) {
    pthread_mutex_lock(&app->lock);
    write_request(app, &round->requests[i], &text);
    pthread_mutex_unlock(&app->lock);
    if (!weft_frame_send(link, &text, ANSWER_MS)) return false;
  }
  return true;
}

/* With the lock held: a controller that is busy is left alone, twice as long each time, and never
 * so long that a renewal would come too late. */
static void hold(weft_app* app, bool is_busy) {
  const int64_t half_ms = third_ms(app) / 2, most_ms = half_ms < LONGEST_MS ? half_ms : LONGEST_MS;
  const int64_t next_ms = app->pause_ms > 0 ? 2 * app->pause_ms : AGAIN_MS;
  app->pause_ms = !is_busy ? 0 : next_ms < most_ms ? next_ms : most_ms;
  app->hold_ms = weft_now_ms() + app->pause_ms;
}

/* All of a round's answers; false: the link is broken. The lease may be lost after it. */
static bool answered_round(weft_app* app, int link, const struct round* round) {
  bool has_lapsed = false, has_passing = false;
  for (int i = 0; i < round->count; ++i) {
    struct weft_answer answer;
    if (!answered(app, link, &answer)) {
      put_back(app, round, i);
      return false;
    }
    pthread_mutex_lock(&app->lock);
    const struct weft_conn* conn = round->requests[i].conn;
    const bool is_refused = conn != NULL && !answer.is_ok && !is_passing(&answer) &&
                            !is_code(&answer, "FAILED_PRECONDITION");
    if (!take(app, &round->requests[i], &answer)) has_lapsed = true;
    if (is_passing(&answer)) has_passing = true;
    app->is_managed = true;
    pthread_cond_broadcast(&app->changed);
    pthread_mutex_unlock(&app->lock);
    if (is_refused) weft_session_warn(app, answer.error);
  }
  pthread_mutex_lock(&app->lock);
  if (has_lapsed) lapse(app);
  hold(app, has_passing);
  pthread_mutex_unlock(&app->lock);
  return true;
}

/* With the lock held: until there is something to send, or the end. */
static void await_work(weft_app* app, struct round* round) {
  gather(app, round);
  while (round->count == 0 && !app->is_ending) {
    const bool holds = app->hold_ms > weft_now_ms();
    wait_until(app, holds ? app->hold_ms : app->renew_ms);
    gather(app, round);
  }
}

static bool is_ending(weft_app* app) {
  pthread_mutex_lock(&app->lock);
  const bool found = app->is_ending;
  pthread_mutex_unlock(&app->lock);
  return found;
}

/* As long as the link and the program last; how long to wait before there is another. */
static int conversed(weft_app* app, int link) {
  struct round round;
  while (!is_ending(app)) {
    if (app->id[0] == '\0') {
      const int wait_ms = registered(app, link);
      if (wait_ms > 0) return wait_ms;
    }
    pthread_mutex_lock(&app->lock);
    await_work(app, &round);
    pthread_mutex_unlock(&app->lock);
    if (!sent_round(app, link, &round)) {
      put_back(app, &round, 0);
      return AGAIN_MS;
    }
    if (!answered_round(app, link, &round)) return AGAIN_MS;
  }
  deregistered(app, link);
  return 0;
}

static void finish(weft_app* app) {
  struct weft_link* next = NULL;
  pthread_mutex_lock(&app->lock);
  app->is_over = true;
  app->is_managed = false;
  for (struct weft_link* at = app->all.next; at != &app->all; at = next) {
    next = at->next;
    weft_session_settle(app, WEFT_OWNER(at, struct weft_conn, all));
  }
  pthread_cond_broadcast(&app->changed);
  pthread_mutex_unlock(&app->lock);
}

/* One link; how long to wait before the next, 0 for as long as it takes without an answer. */
static int linked(weft_app* app) {
  const int link = weft_frame_connect(app->path);
  if (link < 0) {
    note(app, errno == EACCES ? "is not ours to open: be in its group" : strerror(errno), true);
    return 0;
  }
  const int wait_ms = conversed(app, link);
  close(link);
  if (!weft_app_is_managed(app)) return wait_ms > AGAIN_MS ? wait_ms : 0;
  if (!is_ending(app)) note(app, "the connection broke", true);
  return AGAIN_MS;
}

/* A link after another; without an answer, pauses double. */
void* weft_session_run(void* argument) {
  weft_app* app = argument;
  int again_ms = AGAIN_MS;
  while (!is_ending(app)) {
    const int wait_ms = linked(app);
    pause_for(app, wait_ms > 0 ? wait_ms : again_ms);
    again_ms = wait_ms > 0 ? AGAIN_MS : again_ms * 2 < LONGEST_MS ? again_ms * 2 : LONGEST_MS;
  }
  finish(app);
  weft_app_leave(app);
  return NULL;
}
