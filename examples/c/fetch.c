/* Sends a line to a host and prints what comes back, as the application NAME of a controller.
 *
 *   cc -Iinclude examples/c/fetch.c -Lbuild/clib -lweft_control -o fetch
 *   LD_LIBRARY_PATH=build/clib ./fetch NAME HOST PORT TEXT */
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "weft_control.h"

int main(int count, char** words) {
  if (count != 5) {
    fprintf(stderr, "usage: fetch NAME HOST PORT TEXT\n");
    return 2;
  }
  weft_app* app = weft_app_register(words[1], NULL);
  if (app == NULL) {
    perror("weft_app_register");
    return 2;
  }
  weft_conn* conn = weft_conn_create(app, words[2], words[3], SOCK_STREAM);
  if (conn == NULL) {
    perror(words[2]);
    weft_app_deregister(app);
    return 1;
  }
  char answer[4096];
  const int fd = weft_conn_fd(conn);
  const size_t length = strlen(words[4]);
  if (send(fd, words[4], length, MSG_NOSIGNAL) == (ssize_t)length && shutdown(fd, SHUT_WR) == 0)
    for (ssize_t got; (got = recv(fd, answer, sizeof answer, 0)) > 0;)
      fwrite(answer, 1, (size_t)got, stdout);
  printf("\nlevel %d\n", weft_app_level(app));
  weft_conn_destroy(conn);
  weft_app_deregister(app);
  return 0;
}
