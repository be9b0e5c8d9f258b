/*
 * What the test programs share: checks that print a line each, and "ends".
 *
 * An end is a QP with everything that belongs to it. It lives in this process or in a forked one (its agent), and the test
 * drives both kinds by the same calls, so that every test runs within one process and between two. They are in ends.c, the rest in rig.c.
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

/* ---- ends ---- */

#define MAX_SGE 40

struct options {
	enum ibv_qp_type type;
	uint32_t depth;		/* of both queues and the CQs */
	uint32_t sge;		/* of both queues */
	uint32_t inl;		/* bytes inline */
	int srq;		/* receive through an SRQ */
	int sig_all;
	int channel;		/* CQs with a completion channel */
	unsigned access;	/* of the QP */
	uint8_t rnr_retry, retry, timeout, rnr_timer;
	int grh;		/* address by GID instead of LID */
	uint32_t qkey;
	size_t size;		/* of the buffer */
	unsigned mr_access;	/* of the buffer's region */
	uint64_t send_ops;	/* not 0: created for the ibv_wr_* calls with these operations */
};

/* RC, 64 deep, 4 SGEs, all rights, no retries, 4 MiB. */
struct options defaults(void);

struct address {
	uint32_t qpn, psn, rkey, lkey, qkey, max_inline, max_send_sge, max_recv_sge;
	uint64_t addr;
	uint16_t lid;
	union ibv_gid gid;
};

struct piece {
	uint64_t offset;	/* in the end's buffer */
	uint32_t len;
	uint32_t lkey;		/* 0: the buffer's own */
};

struct request {
	uint64_t id;
	enum ibv_wr_opcode op;
	unsigned flags;
	uint32_t imm;		/* as it is put into imm_data */
	int pieces;
	struct piece piece[MAX_SGE];
	uint64_t raddr;
	uint32_t rkey;
	uint64_t compare_add, swap;
	uint32_t qpn, qkey;	/* UD */
};

struct end;
/* `remote`: in a forked process. Must be called before any verb. */
struct end *end_new(int remote);
/* Stops the agent. */
void end_free(struct end *e);
/* SIGKILLs the agent. */
void end_kill(struct end *e);
/* Creates everything, QP in INIT. */
struct address end_open(struct end *e, struct options o);
/* To RTS. */
void end_connect(struct end *e, struct address peer);
/* Destroys everything; checks that each destroy succeeds. */
void end_close(struct end *e);
/* Both ends opened and connected to each other. */
void pair_open(struct end *a, struct end *b, struct options o, struct address *aa, struct address *ba);
void pair_close(struct end *a, struct end *b);

/* The results of ibv_post_*. n requests go as one list; *bad is the index of bad_wr, or -1. */
int end_send_list(struct end *e, const struct request *r, int n, int *bad);
int end_recv_list(struct end *e, const struct request *r, int n, int *bad);
int end_send(struct end *e, struct request r);
int end_recv(struct end *e, struct request r);
/* Completions of the send or the receive CQ. */
enum which { SENDS, RECVS };
struct ibv_wc end_wait(struct end *e, enum which w);
int end_try(struct end *e, enum which w, struct ibv_wc *wc, unsigned us);
/* The buffer. */
void end_fill(struct end *e, uint64_t offset, uint64_t len, uint32_t seed);
long end_verify(struct end *e, uint64_t offset, uint64_t len, uint32_t seed);
/* As end_verify, once the bytes are there or five seconds have passed: an unreliable sender has its completion before they need be. */
long end_verify_soon(struct end *e, uint64_t offset, uint64_t len, uint32_t seed);
void end_write(struct end *e, uint64_t offset, const void *p, uint64_t len);
void end_read(struct end *e, uint64_t offset, void *p, uint64_t len);
/* The QP. */
int end_modify(struct end *e, enum ibv_qp_state state);
enum ibv_qp_state end_state(struct end *e);
/* The state, once it is `wanted` or a second has passed: what another end caused may take a moment. */
enum ibv_qp_state end_state_soon(struct end *e, enum ibv_qp_state wanted);
void end_destroy_qp(struct end *e);
/* Another region over the buffer: with these rights, in the same PD or another one. */
struct keys {
	uint32_t lkey, rkey;
} end_register(struct end *e, uint64_t offset, uint64_t len, unsigned access, int other_pd);
void end_deregister(struct end *e);
/* Events of the receive CQ. */
int end_arm(struct end *e, int solicited);
int end_event(struct end *e, int ms);
/* Type of the next asynchronous event, or -1. */
int end_async(struct end *e);

/* An end's objects, for what the calls above do not offer. */
struct parts {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_cq *scq, *rcq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	unsigned char *buf;
	void *own[8];	/* kept from one end_run to the next; NULL after end_open */
};
/* Runs f in the end's process and returns its result. `arg`, up to RUN_BYTES long, goes there and comes back. */
#define RUN_BYTES 256
long end_run(struct end *e, long (*f)(struct parts *parts, void *arg), void *arg, size_t len);

/* A request with one piece. */
struct request one_piece(enum ibv_wr_opcode op, uint64_t id, uint64_t offset, uint32_t len);

#endif
