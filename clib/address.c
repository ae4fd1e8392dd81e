#define _DEFAULT_SOURCE
#include "address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int family_of(int fd) {
  int family = AF_UNSPEC;
  socklen_t bytes = sizeof family;
  return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &bytes) == 0 ? family : AF_UNSPEC;
}

void weft_socket_mark(int fd, int dscp) {
  const int problem = errno, byte = dscp << 2, family = family_of(fd);
  if (family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_TCLASS, &byte, sizeof byte);
  /* A socket of IPv6 may carry IPv4 as well. */
  if (family == AF_INET6 || family == AF_INET)
    setsockopt(fd, IPPROTO_IP, IP_TOS, &byte, sizeof byte);
  errno = problem;
}

static int opened(const struct addrinfo* to, int dscp) {
  const int fd = socket(to->ai_family, to->ai_socktype | SOCK_CLOEXEC, to->ai_protocol);
  if (fd < 0) return -1;
  if (dscp != 0) weft_socket_mark(fd, dscp);
  if (connect(fd, to->ai_addr, to->ai_addrlen) == 0) return fd;
  const int problem = errno;
  close(fd);
  errno = problem;
  return -1;
}

int weft_socket_open(const char* host, const char* port, int type, int dscp) {
  struct addrinfo hints = {.ai_socktype = type};
  struct addrinfo* found = NULL;
  const int status = getaddrinfo(host, port, &hints, &found);
  if (status != 0) {
    if (status != EAI_SYSTEM) errno = status == EAI_MEMORY ? ENOMEM : EHOSTUNREACH;
    return -1;
  }
  int fd = -1;
  for (const struct addrinfo* to = found; to != NULL && fd < 0; to = to->ai_next)
    fd = opened(to, dscp);
  const int problem = errno;
  freeaddrinfo(found);
  errno = problem;
  return fd;
}

/* IPv4 in IPv6 as IPv4; whether it is an address of the loopback is in *is_loopback. */
static bool name_of(const struct sockaddr_storage* address, char* name, bool* is_loopback) {
  if (address->ss_family == AF_INET) {
    const struct in_addr* in4 = &((const struct sockaddr_in*)address)->sin_addr;
    *is_loopback = ntohl(in4->s_addr) >> 24 == 127;
    return inet_ntop(AF_INET, in4, name, WEFT_HOST_BYTES) != NULL;
  }
  if (address->ss_family != AF_INET6) return false;
  const struct in6_addr* in6 = &((const struct sockaddr_in6*)address)->sin6_addr;
  if (IN6_IS_ADDR_V4MAPPED(in6)) {
    *is_loopback = in6->s6_addr[12] == 127;
    return inet_ntop(AF_INET, in6->s6_addr + 12, name, WEFT_HOST_BYTES) != NULL;
  }
  *is_loopback = IN6_IS_ADDR_LOOPBACK(in6);
  return inet_ntop(AF_INET6, in6, name, WEFT_HOST_BYTES) != NULL;
}

bool weft_socket_ends(int fd, char here[WEFT_HOST_BYTES], char there[WEFT_HOST_BYTES]) {
  struct sockaddr_storage own, peer;
  socklen_t own_bytes = sizeof own, peer_bytes = sizeof peer;
  bool is_loopback = false;
  if (getsockname(fd, (struct sockaddr*)&own, &own_bytes) != 0) return false;
  if (getpeername(fd, (struct sockaddr*)&peer, &peer_bytes) != 0) return false;
  if (!name_of(&own, here, &is_loopback) || !name_of(&peer, there, &is_loopback)) return false;
  return !is_loopback && strcmp(here, there) != 0;
}
