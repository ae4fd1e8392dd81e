#define _DEFAULT_SOURCE
#include "weft_control.h"

#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "session.h"

enum { LONGEST_NAME = 255, CLOSE_MS = 1000, WAIT_MS = 1000 };
static const double kUsualTtl = 10.0;

/* ---- Applications --------------------------------------------------------------------------- */

static bool draw_name(char client[33]) {
  unsigned char bytes[16];
  if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes) return false;
  for (size_t i = 0; i < sizeof bytes; ++i) {
    client[2 * i] = "0123456789abcdef"[bytes[i] >> 4];
    client[2 * i + 1] = "0123456789abcdef"[bytes[i] & 15];
  }
  client[32] = '\0';
  return true;
}

/* The socket of the user's own controller; NULL where there is none, or no memory. */
static char* find_own_socket(void) {
  static const char kName[] = "/weft/control.sock";
  const char* folder = getenv("XDG_RUNTIME_DIR");
  if (geteuid() == 0 || folder == NULL || folder[0] == '\0') return NULL;
  const size_t length = strlen(folder);
  char* path = malloc(length + sizeof kName);
  if (path == NULL) return NULL;
  memcpy(path, folder, length);
  memcpy(path + length, kName, sizeof kName);
  if (access(path, F_OK) == 0) return path;
  free(path);
  return NULL;
}

static char* find_path(const weft_options* options) {
  if (options->socket_path != NULL) return strdup(options->socket_path);
  const char* named = getenv("WEFT_CONTROL_SOCKET");
  if (named != NULL && named[0] != '\0') return strdup(named);
  char* own = find_own_socket();
  return own != NULL ? own : strdup(WEFT_CONTROL_SOCKET);
}

/* The same in all processes of a job, and as the Python library names it. */
static void find_job(char job[WEFT_JOB_BYTES]) {
  static const struct {
    const char *variable, *manager;
  } kKnown[] = {{"WEFT_JOB", ""},
                {"SLURM_JOB_ID", "slurm:"},
                {"PMIX_NAMESPACE", "mpi:"},
                {"OMPI_MCA_ess_base_jobid", "mpi:"},
                {"SPARK_APPLICATION_ID", "spark:"}};
  job[0] = '\0';
  for (size_t i = 0; i < sizeof kKnown / sizeof kKnown[0]; ++i) {
    const char* value = getenv(kKnown[i].variable);
    if (value == NULL || value[0] == '\0') continue;
    snprintf(job, WEFT_JOB_BYTES, "%s%s", kKnown[i].manager, value);
    for (char* c = job; *c != '\0'; ++c)
      if (!isalnum((unsigned char)*c) && strchr("._:@/+-", *c) == NULL) *c = '-';
    return;
  }
}

static bool is_valid(const char* name, const weft_options* options) {
  if (name == NULL || name[0] == '\0' || strlen(name) > LONGEST_NAME) return false;
  if (options->size_bytes > WEFT_MOST_SIZE) return false;
  return options->ttl_s == 0 ||
         (options->ttl_s >= WEFT_LEAST_TTL && options->ttl_s <= WEFT_MOST_TTL);
}

static void free_app(weft_app* app) {
  free(app->name);
  free(app->path);
  free(app);
}

static weft_app* new_app(const char* name, const weft_options* options) {
  weft_app* app = calloc(1, sizeof *app);
  if (app == NULL) return NULL;
  app->name = strdup(name);
  app->path = find_path(options);
  if (app->name == NULL || app->path == NULL || !draw_name(app->client)) {
    free_app(app);
    errno = ENOMEM;
    return NULL;
  }
  find_job(app->job);
  app->ttl_s = options->ttl_s == 0 ? kUsualTtl : options->ttl_s;
  app->size_bytes = options->size_bytes;
  app->warn = options->warn;
  app->context = options->context;
  app->process = getpid();
  app->users = 2;
  weft_link_clear(&app->all);
  weft_link_clear(&app->due);
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&app->changed, &monotonic);
  pthread_condattr_destroy(&monotonic);
  pthread_mutex_init(&app->lock, NULL);
  return app;
}

void weft_app_leave(weft_app* app) {
  pthread_mutex_lock(&app->lock);
  const int left = --app->users;
  pthread_mutex_unlock(&app->lock);
  if (left > 0) return;
  pthread_mutex_destroy(&app->lock);
  pthread_cond_destroy(&app->changed);
  free_app(app);
}

/* The program's signals are not for this thread. */
static int start(weft_app* app) {
  sigset_t all, before;
  pthread_attr_t detached;
  pthread_t thread;
  sigfillset(&all);
  pthread_attr_init(&detached);
  pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int status = pthread_create(&thread, &detached, weft_session_run, app);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&detached);
  return status;
}

/* With the lock held: until `done`, or the time is up. */
static void wait_for(weft_app* app, const bool* done, int ms) {
  const int64_t until_ms = weft_now_ms() + ms;
  const struct timespec until = {.tv_sec = until_ms / 1000, .tv_nsec = until_ms % 1000 * 1000000};
  while (!*done && weft_now_ms() < until_ms)
    pthread_cond_timedwait(&app->changed, &app->lock, &until);
}

weft_app* weft_app_register(const char* name, const weft_options* options) {
  const weft_options usual = {0};
  if (options == NULL) options = &usual;
  if (!is_valid(name, options)) {
    errno = EINVAL;
    return NULL;
  }
  weft_app* app = new_app(name, options);
  if (app == NULL) return NULL;
  const int status = start(app);
  if (status != 0) {
    free_app(app);
    errno = status;
    return NULL;
  }
  pthread_mutex_lock(&app->lock);
  wait_for(app, &app->has_answered, options->wait_ms == 0 ? WAIT_MS : options->wait_ms);
  const bool is_silent = !app->has_answered && options->wait_ms >= 0;
  pthread_mutex_unlock(&app->lock);
  if (is_silent) weft_session_warn(app, "has not answered yet");
  return app;
}

static bool is_ours(const weft_app* app) {
  return app->process == getpid();
}

int weft_app_deregister(weft_app* app) {
  if (!is_ours(app)) return 0;
  pthread_mutex_lock(&app->lock);
  app->is_ending = true;
  pthread_cond_broadcast(&app->changed);
  if (app->is_managed) wait_for(app, &app->is_over, CLOSE_MS);
  /* What `warn` is given may be gone after this. */
  while (app->is_warning && !pthread_equal(app->warner, pthread_self()))
    pthread_cond_wait(&app->changed, &app->lock);
  pthread_mutex_unlock(&app->lock);
  weft_app_leave(app);
  return 0;
}

int weft_app_level(weft_app* app) {
  if (!is_ours(app)) return app->level;
  pthread_mutex_lock(&app->lock);
  const int level = app->level;
  pthread_mutex_unlock(&app->lock);
  return level;
}

int weft_app_is_managed(weft_app* app) {
  if (!is_ours(app)) return 0;
  pthread_mutex_lock(&app->lock);
  const bool found = app->is_managed;
  pthread_mutex_unlock(&app->lock);
  return found;
}

/* ---- Connections ---------------------------------------------------------------------------- */

static weft_conn* new_conn(weft_app* app, int fd, bool owns_fd) {
  weft_conn* conn = calloc(1, sizeof *conn);
  struct stat found;
  if (conn == NULL) return NULL;
  conn->app = app;
  conn->fd = fd;
  conn->owns_fd = owns_fd;
  weft_link_clear(&conn->all);
  weft_link_clear(&conn->due);
  if (fd >= 0 && fstat(fd, &found) == 0) conn->inode = found.st_ino;
  return conn;
}

/* Adds it to the application; reports it if it has two hosts. */
static weft_conn* add_connection(weft_conn* conn, bool is_reported) {
  weft_app* app = conn->app;
  if (!is_ours(app)) return conn;
  pthread_mutex_lock(&app->lock);
  ++app->users;
  conn->state = is_reported ? WEFT_WANTED : WEFT_LOCAL;
  weft_link_after(app->all.previous, &conn->all);
  weft_session_settle(app, conn);
  /* The level may have come meanwhile. */
  if (conn->fd >= 0 && app->level != 0) weft_socket_mark(conn->fd, app->level);
  pthread_mutex_unlock(&app->lock);
  return conn;
}

weft_conn* weft_conn_create(weft_app* app, const char* host, const char* port, int type) {
  const int fd = weft_socket_open(host, port, type, weft_app_level(app));
  if (fd < 0) return NULL;
  weft_conn* conn = new_conn(app, fd, true);
  if (conn == NULL) {
    close(fd);
    errno = ENOMEM;
    return NULL;
  }
  const bool is_reported = weft_socket_ends(fd, conn->source, conn->destination);
  return add_connection(conn, is_reported);
}

weft_conn* weft_conn_mark(weft_app* app, int fd) {
  weft_conn* conn = new_conn(app, fd, false);
  if (conn == NULL) return NULL;
  const bool is_reported = weft_socket_ends(fd, conn->source, conn->destination);
  if (weft_app_level(app) != 0) weft_socket_mark(fd, weft_app_level(app));
  return add_connection(conn, is_reported);
}

static bool is_host(const char* name) {
  return name != NULL && name[0] != '\0' && strlen(name) < WEFT_HOST_BYTES;
}

weft_conn* weft_conn_declare(weft_app* app, const char* source, const char* destination) {
  if (!is_host(source) || !is_host(destination)) {
    errno = EINVAL;
    return NULL;
  }
  weft_conn* conn = new_conn(app, -1, false);
  if (conn == NULL) return NULL;
  strcpy(conn->source, source);
  strcpy(conn->destination, destination);
  return add_connection(conn, true);
}

int weft_conn_fd(const weft_conn* conn) {
  return conn->fd;
}

int weft_conn_is_counted(weft_conn* conn) {
  if (!is_ours(conn->app)) return 0;
  pthread_mutex_lock(&conn->app->lock);
  const bool found = conn->state == WEFT_COUNTED;
  pthread_mutex_unlock(&conn->app->lock);
  return found;
}

int weft_conn_destroy(weft_conn* conn) {
  weft_app* app = conn->app;
  const int fd = conn->owns_fd ? conn->fd : -1;
  if (is_ours(app)) {
    pthread_mutex_lock(&app->lock);
    ++app->users; /* for as long as we hold the lock */
    conn->fd = -1;
    conn->is_closed = true;
    weft_session_settle(app, conn);
    pthread_mutex_unlock(&app->lock);
    weft_app_leave(app);
  } else {
    free(conn); /* a copy: in the parent it is as it was */
  }
  /* Without the lock: a socket that lingers takes its time. */
  return fd >= 0 ? close(fd) : 0;
}
