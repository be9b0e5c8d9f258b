/*
 * What the test programs share: checks that print a line each, waits, patterns of bytes; and, by ends.h, "ends".
 */
#ifndef RIG_H
#define RIG_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- checks ---- */

/* Prints "ok: ..." or "FAILED: ..."; returns ok. */
int check(int ok, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Like check(value == wanted), and says both when they differ. */
int check_eq(long long value, long long wanted, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* The test itself cannot go on: says why and exits with status 2. */
void die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
/* Prints the totals; the exit status for main. */
int finish(void);
/* The last argument of the program is "one" or "two" processes; dies otherwise. */
int two_processes(int argc, char **argv);

/* ---- small things ---- */

/* Opens the first device, or the one named by TEST_DEVICE. */
struct ibv_context *open_device(void);
/* Microseconds on a clock that never jumps. */
uint64_t now_us(void);
/* Polls until a completion comes; dies after WAIT_US. */
void wait_completion(struct ibv_cq *cq, struct ibv_wc *wc);
/* 1 if a completion came within `us` (and is in *wc), else 0. */
int try_completion(struct ibv_cq *cq, struct ibv_wc *wc, unsigned us);
/* 1 if fd becomes readable within `ms`. */
int readable(int fd, int ms);
/* Waits for an asynchronous event, acknowledges it, returns its type; -1 if none came. */
int async_event(struct ibv_context *ctx, void **element);
/* A byte pattern that depends on the seed and the position. */
void fill(unsigned char *p, size_t len, uint32_t seed);
/* The first position that differs from the pattern, or -1. */
long verify(const unsigned char *p, size_t len, uint32_t seed);
/* A reproducible random number. */
uint32_t rnd(uint64_t *state);

#define WAIT_US 20000000u
#define QUIET_US 30000u

/* Whether the other end is told by a LID too, as soft's is on its own host. TEST_GRH_ONLY=1: it is not (a kernel's RoCE device). */
int has_lids(void);
/* Whether a region's lkey is not its rkey: the tests run so, since programs that work then work with one key, too. */
int keys_differ(void);

/*
 * TEST_HOST=/run/netns/NAME puts agents into that network namespace, and TEST_HOST_FABRIC names their fabric folder: so the two processes
 * are of two hosts. Ends have the address of GID 1 then, or of TEST_GID, which is an interface's.
 */
int hosts_differ(void);
/* For ibv_qp_attr: a timeout that is over soon, and yet longer than an answer takes. */
uint8_t short_timeout(void);
/* Goes there, before any verb. */
void go_to_host(void);

/*
 * Fresh pages at an address that mmap(NULL, ...) never chooses. A test may unmap a part of them:
 * no other mapping of the process takes the hole. Messages into the hole then hit nothing, and a
 * later munmap() or MAP_FIXED of the range removes no other mapping.
 */
void *pages_apart(size_t len);

#include "ends.h"

#endif
