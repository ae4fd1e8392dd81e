/* Sockets that bear a DSCP, and the hosts at their ends, in numbers. */
#ifndef WEFT_ADDRESS_H
#define WEFT_ADDRESS_H

#include <stdbool.h>

enum { WEFT_HOST_BYTES = 256 };

/* A connected socket, marked before its first packet, or -1 with errno. */
int weft_socket_open(const char* host, const char* port, int type, int dscp);
void weft_socket_mark(int fd, int dscp);
/* False where packets do not leave the host, or there is no other end. */
bool weft_socket_ends(int fd, char here[WEFT_HOST_BYTES], char there[WEFT_HOST_BYTES]);

#endif
