/*
 * Two processes with an XRC connection: role 0 sends, role 1 owns the receive QP, XRC domain and
 * SRQ.
 */
#ifndef XRC_PAIR_H
#define XRC_PAIR_H

#include "partner.h"
#include <fcntl.h>

enum { SIZE = 1 << 16, LEN = 100, DEPTH = 32 };

/* What each tells the other. */
struct place {
	uint32_t qpn, srqn, rkey;
	uint64_t addr;
	union ibv_gid gid;
};

extern struct ibv_context *ctx;
extern struct ibv_pd *pd;
extern struct ibv_cq *cq;
extern struct ibv_mr *mr;
extern unsigned char *buf;
extern struct ibv_xrcd *xrcd;
extern struct ibv_srq *srq;
extern struct ibv_qp *qp;
extern struct place mine, theirs;

void modify(struct ibv_qp_attr at, int mask);
void make(uint64_t send_ops);
/* Connects both processes. Role 1 posts `receives` receives of 1 KiB; receive i has offset 1024 *
 * i. */
void xrc_open(uint64_t send_ops, uint8_t timeout, uint8_t retry, uint8_t rnr_retry, int receives);
void xrc_close(void);

#endif
