/* Lists whose members can leave at once, wherever they are: circular, linked both ways, with a head
 * that is no member. A link that is in no list points to itself. */
#ifndef WEFT_LIST_H
#define WEFT_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct weft_link {
  struct weft_link *previous, *next;
};

/* What a link is a part of. */
#define WEFT_OWNER(link, type, member) ((type*)((char*)(link)-offsetof(type, member)))

static inline void weft_link_clear(struct weft_link* link) {
  link->previous = link->next = link;
}

/* Of a head: whether there is a member. Of a member: whether it is in a list. */
static inline bool weft_link_has_others(const struct weft_link* link) {
  return link->next != link;
}

static inline void weft_link_leave(struct weft_link* link) {
  link->previous->next = link->next;
  link->next->previous = link->previous;
  weft_link_clear(link);
}

static inline void weft_link_after(struct weft_link* place, struct weft_link* link) {
  link->previous = place;
  link->next = place->next;
  place->next->previous = link;
  place->next = link;
}

#endif
