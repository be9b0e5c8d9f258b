/*
 * Memory that is unmapped before its registration ends, with receives in it: an adapter has its pages, and messages land where nobody
 * sees them. Programs do so when they end (UCX among them). Here messages come while the program sleeps, and while it destroys the QP.
 */
#include "rig.h"

enum { MESSAGES = 12, PLACE = 65536, GONE = 262144, ROOM = 2 * MESSAGES * PLACE };

static struct end *a, *b;
static struct address aa, ba;

/* Everything from GONE on. */
static long unmap(struct parts *p, void *arg)
{
	(void)arg;
	return munmap(p->buf + GONE, ROOM);
}

static long lives(struct parts *p, void *arg)
{
	(void)p;
	(void)arg;
	return 7;
}

static struct request message(enum ibv_qp_type type, uint64_t id, uint32_t len)
{
	struct request r = one_piece(IBV_WR_SEND, id, 0, len);
	if (type == IBV_QPT_UD) {
		r.qpn = ba.qpn;
		r.qkey = ba.qkey;
	}
	return r;
}

static void receives(enum ibv_qp_type type, const char *name, uint32_t len)
{
	struct options o = defaults();
	o.type = type;
	o.channel = 1;
	o.size = GONE + ROOM;
	o.retry = o.rnr_retry = 7;
	o.timeout = 14;
	pair_open(a, b, o, &aa, &ba);
	for (uint64_t i = 0; i < 2 * MESSAGES; i++)
		check_eq(end_recv(b, one_piece(0, i, GONE + i * PLACE, PLACE)), 0, "%s: receive %u", name, (unsigned)i);
	check_eq(end_arm(b, 0), 0, "%s: ibv_req_notify_cq", name);
	check_eq(end_run(b, unmap, NULL, 0), 0, "%s: the receives' memory is unmapped", name);
	/* The other process does not look: what belongs to the adapter there takes the messages. */
	for (uint64_t i = 0; i < MESSAGES; i++) {
		check_eq(end_send(a, message(type, i, len)), 0, "%s: ibv_post_send", name);
		check_eq(end_wait(a, SENDS).status, IBV_WC_SUCCESS, "%s: message %u is sent", name, (unsigned)i);
		check(i > 0 || end_event(b, 10000) == 1, "%s: the receiver is woken", name);
	}
	check_eq(end_run(b, lives, NULL, 0), 7, "%s: the receiver lives", name);
	/* These are in its queue when it goes. */
	for (uint64_t i = 0; i < MESSAGES; i++)
		if (end_send(a, message(type, i, len)))
			die("ibv_post_send");
	end_destroy_qp(b);
	pair_close(a, b);
	check(1, "%s: everything was destroyed", name);
}

int main(void)
{
	a = end_new(0);
	b = end_new(1);
	receives(IBV_QPT_RC, "RC", 2000);
	receives(IBV_QPT_RC, "RC, long", 60000);
	receives(IBV_QPT_UC, "UC", 2000);
	receives(IBV_QPT_UD, "UD", 2000);
	end_free(a);
	end_free(b);
	return finish();
}
