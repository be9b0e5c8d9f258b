/*
 * A tag matching SRQ in this process, with several RC QPs that are connected to ends of the rig,
 * and checks of its completions with all fields.
 */
#ifndef MATCHER_H
#define MATCHER_H

#include "rig.h"
#include <endian.h>
#include <infiniband/tm_types.h>

#define MAX_PEERS 8
#define EXACT UINT64_MAX
#define TMH_BYTES 16
#define HEADERS (TMH_BYTES + 16)
#define MATCHED (IBV_WC_TM_MATCH | IBV_WC_TM_DATA_VALID)

struct matcher {
	int peers;
	struct end *peer[MAX_PEERS];
	struct address his[MAX_PEERS];
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_cq_ex *cq;
	struct ibv_srq *srq;
	struct ibv_qp *qp[MAX_PEERS];
	unsigned char *buf;
	size_t size;
	struct ibv_mr *mr;
	struct ibv_comp_channel *channel;
};

/* How large. */
struct tm_options {
	int peers;
	uint32_t tags, ops, srq_wr, cqe;
	size_t size;
	uint8_t rnr_retry;	/* of the peers */
	int channel;		/* the CQ has one */
};

/* A completion. */
struct seen {
	uint64_t wr_id;
	enum ibv_wc_status status;
	enum ibv_wc_opcode opcode;
	unsigned flags;
	uint32_t byte_len, qp_num, imm;
	uint64_t tag;
	uint32_t priv;
};

/* What is sent: headers in the peer's buffer at `offset`, then `len` bytes of a pattern. */
struct message {
	uint8_t opcode;
	uint64_t tag;
	uint32_t app_ctx;
	uint32_t len;		/* behind the headers */
	uint32_t seed;
	int with_imm;
	uint32_t imm;
	/* Rendezvous. */
	uint64_t va;
	uint32_t rkey, rlen;
	uint64_t offset;
};

struct tm_options tm_defaults(void);
void tm_connect(struct matcher *t, int i);
void tm_to_rts(struct matcher *t, int i);
/* The QP number `i`, without a send queue of its own. */
void tm_make_qp(struct matcher *t, int i);
/* Everything but the ends, which were forked before: peer[0..peers]. */
void tm_open(struct matcher *t, const struct tm_options *o);
void tm_close(struct matcher *t);
int tm_try(struct matcher *t, struct seen *s, unsigned us);
struct seen tm_wait(struct matcher *t);
int tm_same(const struct seen *got, const struct seen *want);
void tm_say(const char *which, const struct seen *s);
/* Every field of the next completion. */
__attribute__((format(printf, 3, 4))) int tm_expect(struct matcher *t, struct seen want, const char *format, ...);
void tm_quiet(struct matcher *t, const char *when);
/* Expected completions, by kind. */
struct seen seen_op(uint64_t id, enum ibv_wc_opcode opcode, unsigned flags);
struct seen seen_eager(struct matcher *t, int i, uint64_t id, const struct message *m);
struct seen seen_match(struct matcher *t, int i, uint64_t id, const struct message *m);
struct seen seen_data(struct matcher *t, int i, uint64_t id, const struct message *m);
struct seen seen_whole(struct matcher *t, int i, uint64_t id, const struct message *m, enum ibv_wc_opcode opcode);
int tm_op(struct matcher *t, struct ibv_ops_wr *wr);
/*
 * Adds an entry for `len` bytes at `offset` of the buffer; returns its handle. `flags`: IBV_OPS_*.
 */
uint32_t tm_add(struct matcher *t, uint64_t id, uint64_t tag, uint64_t mask, uint64_t offset, uint32_t len, unsigned flags, uint32_t seen);
int tm_del(struct matcher *t, uint64_t id, uint32_t handle, unsigned flags);
void tm_sync(struct matcher *t, uint64_t id, uint32_t seen, unsigned flags);
/* Posts an ordinary receive of the SRQ. */
void tm_recv(struct matcher *t, uint64_t id, uint64_t offset, uint32_t len);
void put_headers(const struct message *m, unsigned char *p);
void tm_send(struct matcher *t, int i, const struct message *m, uint64_t id);
void tm_sent(struct matcher *t, int i, uint64_t id);
/* Whether a whole message lies at `p`. */
int is_message(const struct message *m, const unsigned char *p);
/* The peer's receive of a FIN: a copy of the request's headers with another opcode. */
int is_fin(struct matcher *t, int i, const struct message *m, uint64_t id, uint64_t at);

#endif
