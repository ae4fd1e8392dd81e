/* Does what its standard input says, line by line, and prints what came of it; for
 * tests/unit/test_c_library.py.
 *
 *   register NAME TTL_MS WAIT_MS [SIZE_BYTES] | create HOST PORT tcp|udp | mark FD
 *   declare SOURCE DESTINATION | destroy N | level | managed | told N | tos N | fork
 *   become UID | deregister
 *   churn N: declares and destroys N times; by how many KiB the process has grown
 *   hold N: declares N, then destroys the last first; how many milliseconds that took */
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "weft_control.h"

enum { MOST = 100000 };
static weft_app* app;
static weft_conn* conns[MOST];
static int count;

static void warn(const char* problem, void* context) {
  (void)context;
  printf("warning %s\n", problem);
  fflush(stdout);
}

static void keep(weft_conn* conn) {
  if (conn == NULL) {
    perror("connection");
    printf("failed\n");
    return;
  }
  conns[count] = conn;
  printf("connection %d\n", count++);
}

static void registers(const char* name, int ttl_ms, int wait_ms, unsigned long long size_bytes) {
  const weft_options options = {
      .ttl_s = ttl_ms / 1000.0, .wait_ms = wait_ms, .warn = warn, .size_bytes = size_bytes};
  app = weft_app_register(name, &options);
  printf("registered %d\n", app != NULL);
}

static int tos_of(int fd) {
  int family = AF_UNSPEC, value = -1;
  socklen_t bytes = sizeof value;
  getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &bytes);
  if (family == AF_INET6)
    getsockopt(fd, IPPROTO_IPV6, IPV6_TCLASS, &value, &bytes);
  else
    getsockopt(fd, IPPROTO_IP, IP_TOS, &value, &bytes);
  return value;
}

/* What a child may do with what it has inherited. */
static void forks(void) {
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    for (int i = 0; i < count; ++i) weft_conn_destroy(conns[i]);
    weft_app_deregister(app);
    _exit(weft_app_is_managed(app));
  }
  int status = 0;
  waitpid(child, &status, 0);
  printf("child %d\n", status);
}

static long resident_kib(void) {
  char line[128];
  long found = -1;
  FILE* status = fopen("/proc/self/status", "r");
  while (status != NULL && fgets(line, sizeof line, status) != NULL)
    if (sscanf(line, "VmRSS: %ld", &found) == 1) break;
  if (status != NULL) fclose(status);
  return found;
}

static void churns(int number) {
  const long before = resident_kib();
  for (int i = 0; i < number; ++i) weft_conn_destroy(weft_conn_declare(app, "a", "b"));
  printf("grown %ld\n", resident_kib() - before);
}

static void holds(int number) {
  struct timespec start, end;
  clock_gettime(CLOCK_MONOTONIC, &start);
  for (int i = 0; i < number; ++i) conns[i] = weft_conn_declare(app, "a", "b");
  for (int i = number - 1; i >= 0; --i) weft_conn_destroy(conns[i]);
  clock_gettime(CLOCK_MONOTONIC, &end);
  printf("held %ld\n",
         (end.tv_sec - start.tv_sec) * 1000 + (end.tv_nsec - start.tv_nsec) / 1000000);
}

static void obey(const char* line) {
  char word[16], first[300], second[300], third[16];
  int number = 0, other = 0;
  unsigned long long size_bytes = 0;
  if (sscanf(line, "register %299s %d %d %llu", first, &number, &other, &size_bytes) >= 3)
    registers(first, number, other, size_bytes);
  else if (sscanf(line, "create %299s %299s %15s", first, second, third) == 3)
    keep(
        weft_conn_create(app, first, second, strcmp(third, "udp") == 0 ? SOCK_DGRAM : SOCK_STREAM));
  else if (sscanf(line, "mark %d", &number) == 1)
    keep(weft_conn_mark(app, number));
  else if (sscanf(line, "declare %299s %299s", first, second) == 2)
    keep(weft_conn_declare(app, first, second));
  else if (sscanf(line, "destroy %d", &number) == 1)
    printf("destroyed %d\n", weft_conn_destroy(conns[number]));
  else if (sscanf(line, "churn %d", &number) == 1)
    churns(number);
  else if (sscanf(line, "hold %d", &number) == 1)
    holds(number);
  else if (sscanf(line, "become %d", &number) == 1)
    printf("became %d\n", setuid((uid_t)number));
  else if (sscanf(line, "told %d", &number) == 1)
    printf("told %d\n", weft_conn_is_counted(conns[number]));
  else if (sscanf(line, "tos %d", &number) == 1)
    printf("tos %d\n", tos_of(weft_conn_fd(conns[number])));
  else if (sscanf(line, "%15s", word) == 1 && strcmp(word, "level") == 0)
    printf("level %d\n", weft_app_level(app));
  else if (strcmp(word, "managed") == 0)
    printf("managed %d\n", weft_app_is_managed(app));
  else if (strcmp(word, "fork") == 0)
    forks();
  else if (strcmp(word, "deregister") == 0)
    printf("deregistered %d\n", weft_app_deregister(app));
  else
    printf("what? %s", line);
  fflush(stdout);
}

int main(void) {
  char line[1024];
  while (fgets(line, sizeof line, stdin) != NULL) obey(line);
  return 0;
}
