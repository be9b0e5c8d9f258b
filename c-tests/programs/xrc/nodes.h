/* The nodes of xrc.c: the operations of a node, and the processes that hold the nodes. */
#ifndef XRC_NODES_H
#define XRC_NODES_H

#include "control.h"
#include <arpa/inet.h>
#include <fcntl.h>

enum { SENDER, HOME, OTHER, NODES };
enum { SIZE = 1 << 20, DEPTH = 64 };
enum op {
	OPEN, CLOSE, SRQ_NUM, RECEIVER, SEND_QP, RTR, RTS, POST, SEND, WAIT, TRY, FILL, VERIFY, WORD, SET_WORD, ADDR, RKEY, ASYNC, STATE, STATE_SOON,
	DESTROY_QPS, DESTROY_SRQ, LIMIT, OPEN_QP, CLOSE_QP, OPENED_STATE, XRCD, CLOSE_XRCD, DESTROY_SRQ_ONLY, FOREIGN_SRQ, PORT, GID, NOTHING
};

struct call {
	int node;
	enum op op;
	unsigned long long a[8];
};
struct reply {
	long long v;
	struct ibv_wc wc;
};

struct node {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	unsigned char *buf;
	struct ibv_xrcd *xrcd, *strange;
	struct ibv_srq *srq, *foreign;
	struct ibv_qp *receiver, *sender, *opened;
};

extern struct node node[NODES];
extern int file;	/* that the domain is opened by */

struct reply on_(int at, enum op op, const unsigned long long *a);
#define on(node, op, ...) on_(node, op, (unsigned long long[8]){ __VA_ARGS__ })

struct ibv_xrcd *open_domain(struct ibv_context *ctx, int fd, int flags);
struct ibv_srq *xrc_queue(struct node *n, struct ibv_xrcd *xrcd, uint32_t depth);
struct ibv_qp *receiving_qp(struct ibv_context *ctx, struct ibv_xrcd *xrcd);
int to_init(struct ibv_qp *qp);
enum ibv_qp_state state_of(struct ibv_qp *qp);
void begin(int processes);
void end(void);
void kill_node(int at);

#endif
