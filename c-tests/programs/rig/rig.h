/*
 * Functions that all test programs share: checks that print one line each, waits and byte patterns.
 * Includes ends.h.
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
/* Waits for an asynchronous event, acknowledges the event and returns its type; -1 without an
 * event. */
int async_event(struct ibv_context *ctx, void **element);
/* A byte pattern that depends on the seed and the position. */
void fill(unsigned char *p, size_t len, uint32_t seed);
/* The first position that differs from the pattern, or -1. */
long verify(const unsigned char *p, size_t len, uint32_t seed);
/* A reproducible random number. */
uint32_t rnd(uint64_t *state);

#define WAIT_US 20000000u
#define QUIET_US 30000u

/* Whether peers can be addressed by LID as well as by GID, as with soft on one host.
 * TEST_GRH_ONLY=1: by GID only, as with RoCE devices of the kernel. */
int has_lids(void);
/* Whether lkey and rkey of a region differ. The tests run with different keys, because a program
 * that passes with two keys also passes with one. */
int keys_differ(void);

/*
 * Whether the two processes of a test are on two hosts. TEST_HOST=/run/netns/NAME puts agents into
 * that network namespace, and TEST_HOST_FABRIC names their fabric folder. Ends then use GID 1, or
 * the GID of the interface in TEST_GID.
 */
int hosts_differ(void);
/* For ibv_qp_attr: a timeout that expires soon, but is longer than a reply takes. */
uint8_t short_timeout(void);
/* Moves the process to TEST_HOST. Call before any verb. */
void go_to_host(void);

/*
 * Fresh pages at an address that mmap(NULL, ...) never chooses. If a test unmaps some of the pages,
 * no later mapping of the process fills the hole. Messages to the hole then find no memory, and a
 * later munmap() or MAP_FIXED removes no unrelated mapping.
 */
void *pages_apart(size_t len);

/*
 * Takes a reset RC QP to RTS, connected with QP `to` at a LID of this host. `access`: the rights of
 * the peer. Returns the errno of the first ibv_modify_qp(3) that failed, or 0.
 */
int rc_to_rts(struct ibv_qp *qp, uint32_t to, uint16_t lid, unsigned access);
/* Takes a reset UD QP to RTS, with this Q_Key. Returns as rc_to_rts() does. */
int ud_to_rts(struct ibv_qp *qp, uint32_t qkey);

#include "ends.h"

#endif
