/*
 * An end is a QP with its device, PD, CQs, buffer and region. An end lives in this process or in a
 * forked process (the agent). Tests drive both kinds by the same calls, so each test runs within
 * one process and between two. rig.h includes this header.
 */
#ifndef ENDS_H
#define ENDS_H

#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdint.h>

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
/* Opens both ends and connects them. */
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
/* Posts a request of one piece that names remote memory, and waits for its completion. An atomic
 * operation adds or compares 1. */
struct ibv_wc end_access(struct end *e, enum ibv_wr_opcode op, uint64_t offset, uint32_t len, uint64_t addr, uint32_t rkey);
/* The buffer. */
void end_fill(struct end *e, uint64_t offset, uint64_t len, uint32_t seed);
long end_verify(struct end *e, uint64_t offset, uint64_t len, uint32_t seed);
/* As end_verify, but waits up to five seconds for the bytes. An unreliable sender gets its
 * completion before the bytes arrive. */
long end_verify_soon(struct end *e, uint64_t offset, uint64_t len, uint32_t seed);
void end_write(struct end *e, uint64_t offset, const void *p, uint64_t len);
void end_read(struct end *e, uint64_t offset, void *p, uint64_t len);
/* The QP. */
int end_modify(struct end *e, enum ibv_qp_state state);
enum ibv_qp_state end_state(struct end *e);
/* The state of the QP; waits up to a second for `wanted`, because a change that the peer causes
 * arrives later. */
enum ibv_qp_state end_state_soon(struct end *e, enum ibv_qp_state wanted);
void end_destroy_qp(struct end *e);
/* Registers another region over the buffer, in the same PD or another one. */
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
/* Runs f in the end's process and returns its result. `arg`, up to RUN_BYTES long, is copied to the
 * process and back. */
#define RUN_BYTES 256
long end_run(struct end *e, long (*f)(struct parts *parts, void *arg), void *arg, size_t len);

/* A request with one piece. */
struct request one_piece(enum ibv_wr_opcode op, uint64_t id, uint64_t offset, uint32_t len);

#endif
