/* Writes down the MPI calls of a program: a profiling library (PMPI), loaded before the program.
 *
 * Each rank writes $WEFT_TRACE.RANK, one line per call:
 *   GAP DURATION NAME ...    ns since the last call ended, ns in the call
 * Peers and roots are ranks of MPI_COMM_WORLD, sizes bytes; collectives end with the ranks of their
 * communicator, or * for all. The time to write a line is in neither GAP nor DURATION. One thread
 * of a rank may call MPI. See mpi_calls.py. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef long long ns_t;

static FILE* out;
static ns_t begun, last; /* the end of MPI_Init, and of the last line */

struct pending {
  MPI_Request request;
  long id;
  int is_receive;
  MPI_Comm comm;
};
static struct pending* pending;
static int pending_count, pending_size;
static long next_id;

static ns_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (ns_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void begin_line(ns_t entered, const char* name) {
  const ns_t left = now();
  if (out) fprintf(out, "%lld %lld %s", entered - last, left - entered, name);
}

static void end_line(void) {
  if (out) fputc('\n', out);
  last = now();
}

/* ---- Ranks and sizes --------------------------------------------------------------------- */

static int is_world(MPI_Comm comm) {
  int result = MPI_UNEQUAL;
  PMPI_Comm_compare(comm, MPI_COMM_WORLD, &result);
  return result == MPI_IDENT || result == MPI_CONGRUENT;
}

static void translate(MPI_Comm comm, int n, const int* ranks, int* world) {
  MPI_Group group, all;
  PMPI_Comm_group(comm, &group);
  PMPI_Comm_group(MPI_COMM_WORLD, &all);
  PMPI_Group_translate_ranks(group, n, ranks, all, world);
  PMPI_Group_free(&group);
  PMPI_Group_free(&all);
}

static int to_world(MPI_Comm comm, int rank) {
  int world = rank;
  if (rank >= 0 && !is_world(comm)) translate(comm, 1, &rank, &world);
  return world;
}

static void put_members(MPI_Comm comm) {
  int n = 0;
  if (!out) return;
  if (is_world(comm)) {
    fputs(" *", out);
    return;
  }
  PMPI_Comm_size(comm, &n);
  int* ranks = malloc(2 * (size_t)n * sizeof *ranks);
  for (int i = 0; i < n; ++i) ranks[i] = i;
  translate(comm, n, ranks, ranks + n);
  for (int i = 0; i < n; ++i) fprintf(out, " %d", ranks[n + i]);
  free(ranks);
}

static long bytes_of(long count, MPI_Datatype type) {
  int size = 0;
  PMPI_Type_size(type, &size);
  return count * size;
}

static int ranks_of(MPI_Comm comm) {
  int n = 0;
  PMPI_Comm_size(comm, &n);
  return n;
}

/* ---- Begin and end ------------------------------------------------------------------------ */

static void start(void) {
  const char* prefix = getenv("WEFT_TRACE");
  int rank = 0, size = 0;
  char path[4096];
  if (!prefix) return;
  PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
  PMPI_Comm_size(MPI_COMM_WORLD, &size);
  snprintf(path, sizeof path, "%s.%d", prefix, rank);
  out = fopen(path, "w");
  if (!out) {
    perror(path);
    return;
  }
  setvbuf(out, NULL, _IOFBF, 1 << 20);
  fprintf(out, "weft-mpi-trace 1 %d %d\n", rank, size);
  PMPI_Barrier(MPI_COMM_WORLD); /* ranks begin together */
  begun = last = now();
}

int MPI_Init(int* argc, char*** argv) {
  const int status = PMPI_Init(argc, argv);
  start();
  return status;
}

int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  const int status = PMPI_Init_thread(argc, argv, required, provided);
  start();
  return status;
}

int MPI_Finalize(void) {
  const ns_t entered = now();
  begin_line(entered, "end");
  if (out) {
    fprintf(out, " %lld\n", entered - begun);
    fclose(out);
    out = NULL;
  }
  return PMPI_Finalize();
}

/* ---- Messages ----------------------------------------------------------------------------- */

static void put_message(const char* side, long id, int peer, long bytes, int tag) {
  if (out) fprintf(out, " %s %ld %d %ld %d", side, id, peer, bytes, tag);
}

static void put_received(long id, MPI_Comm comm, const MPI_Status* status) {
  int bytes = 0;
  PMPI_Get_count(status, MPI_BYTE, &bytes);
  if (bytes == MPI_UNDEFINED) bytes = 0;
  put_message("received", id, to_world(comm, status->MPI_SOURCE), bytes, status->MPI_TAG);
}

static void keep(MPI_Request request, long id, int is_receive, MPI_Comm comm) {
  if (pending_count == pending_size) {
    pending_size = pending_size ? 2 * pending_size : 64;
    pending = realloc(pending, (size_t)pending_size * sizeof *pending);
  }
  pending[pending_count++] = (struct pending){request, id, is_receive, comm};
}

/* Takes the request out of those pending; 0 if it is not one of ours. */
static int take(MPI_Request request, struct pending* found) {
  for (int i = 0; i < pending_count; ++i) {
    if (pending[i].request != request) continue;
    *found = pending[i];
    pending[i] = pending[--pending_count];
    return 1;
  }
  return 0;
}

static void put_completed(MPI_Request request, const MPI_Status* status) {
  struct pending done;
  if (request == MPI_REQUEST_NULL || !take(request, &done)) return;
  if (done.is_receive) {
    put_received(done.id, done.comm, status);
  } else if (out) {
    fprintf(out, " sent %ld", done.id);
  }
}

/* ---- Completion --------------------------------------------------------------------------- */

int MPI_Wait(MPI_Request* request, MPI_Status* status) {
  MPI_Status mine;
  const MPI_Request before = *request;
  if (status == MPI_STATUS_IGNORE) status = &mine;
  const ns_t entered = now();
  const int result = PMPI_Wait(request, status);
  begin_line(entered, "wait");
  put_completed(before, status);
  end_line();
  return result;
}

int MPI_Test(MPI_Request* request, int* flag, MPI_Status* status) {
  MPI_Status mine;
  const MPI_Request before = *request;
  if (status == MPI_STATUS_IGNORE) status = &mine;
  const ns_t entered = now();
  const int result = PMPI_Test(request, flag, status);
  if (!*flag) return result;
  begin_line(entered, "wait");
  put_completed(before, status);
  end_line();
  return result;
}

static int complete_all(int count, MPI_Request* requests, int* flag, MPI_Status* statuses) {
  MPI_Request* before = malloc(((size_t)count + 1) * sizeof *before);
  MPI_Status* mine = malloc(((size_t)count + 1) * sizeof *mine);
  MPI_Status* used = statuses == MPI_STATUSES_IGNORE ? mine : statuses;
  for (int i = 0; i < count; ++i) before[i] = requests[i];
  const ns_t entered = now();
  const int result =
      flag ? PMPI_Testall(count, requests, flag, used) : PMPI_Waitall(count, requests, used);
  if (!flag || *flag) {
    begin_line(entered, "wait");
    for (int i = 0; i < count; ++i) put_completed(before[i], &used[i]);
    end_line();
  }
  free(before);
  free(mine);
  return result;
}

int MPI_Waitall(int count, MPI_Request requests[], MPI_Status statuses[]) {
  return complete_all(count, requests, NULL, statuses);
}

int MPI_Testall(int count, MPI_Request requests[], int* flag, MPI_Status statuses[]) {
  return complete_all(count, requests, flag, statuses);
}

int MPI_Waitany(int count, MPI_Request requests[], int* index, MPI_Status* status) {
  MPI_Status mine;
  MPI_Request* before = malloc(((size_t)count + 1) * sizeof *before);
  if (status == MPI_STATUS_IGNORE) status = &mine;
  for (int i = 0; i < count; ++i) before[i] = requests[i];
  const ns_t entered = now();
  const int result = PMPI_Waitany(count, requests, index, status);
  begin_line(entered, "wait");
  if (*index != MPI_UNDEFINED) put_completed(before[*index], status);
  end_line();
  free(before);
  return result;
}

int MPI_Probe(int from, int tag, MPI_Comm comm, MPI_Status* status) {
  const ns_t entered = now();
  const int result = PMPI_Probe(from, tag, comm, status);
  begin_line(entered, "probe");
  end_line();
  return result;
}

/* ---- Collectives: name, bytes of the whole buffer, root, members -------------------------- */

static void put_collective(ns_t entered, const char* name, long bytes, int root, MPI_Comm comm) {
  begin_line(entered, name);
  if (out) fprintf(out, " %ld %d", bytes, to_world(comm, root));
  put_members(comm);
  end_line();
}

/* ---- Calls that a replay would lack -------------------------------------------------------- */

static void refuse(const char* name) {
  begin_line(now(), "unsupported");
  if (out) fprintf(out, " %s", name);
  end_line();
}

#define UNSUPPORTED(name, parameters, arguments) \
  int MPI(name) parameters {                     \
    refuse("MPI_" #name);                        \
    return PMPI(name) arguments;                 \
  }

#define MPI(name) MPI_##name
#define PMPI(name) PMPI_##name
#define COUNT int
#define PLACE int
int MPI_Barrier(MPI_Comm comm) {
  const ns_t entered = now();
  const int status = PMPI_Barrier(comm);
  put_collective(entered, "barrier", 1, 0, comm);
  return status;
}

UNSUPPORTED(Ibarrier, (MPI_Comm a, MPI_Request* b), (a, b))
UNSUPPORTED(Waitsome, (int a, MPI_Request* b, int* c, int* d, MPI_Status* e), (a, b, c, d, e))
UNSUPPORTED(Testany, (int a, MPI_Request* b, int* c, int* d, MPI_Status* e), (a, b, c, d, e))
UNSUPPORTED(Testsome, (int a, MPI_Request* b, int* c, int* d, MPI_Status* e), (a, b, c, d, e))
UNSUPPORTED(Start, (MPI_Request * a), (a))
UNSUPPORTED(Startall, (int a, MPI_Request* b), (a, b))

#include "trace_counted.inc"

#if MPI_VERSION >= 4
#define MPI(name) MPI_##name##_c
#define PMPI(name) PMPI_##name##_c
#define COUNT MPI_Count
#define PLACE MPI_Aint
#include "trace_counted.inc"
#endif
