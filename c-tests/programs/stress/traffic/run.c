/*
 * The traffic from start to end: draws the plan from the seed, starts the threads of one side, and
 * ends the test on a failure. traffic.h describes the account.
 */
#include "traffic.h"

struct traffic_plan traffic_plan(uint64_t seed, int type, unsigned each)
{
	struct traffic_plan p = { .rng = seed * 0x9e3779b97f4a7c15ull + 77, .each = each };
	uint64_t *g = &p.rng;
	for (int i = 0; i < 4; i++)
		rnd(g);
	p.type = type < 0 ? (enum traffic_type)(rnd(g) % CROWD_TYPES) : (enum traffic_type)type;
	p.how = (enum traffic_how)(rnd(g) % 3);
	p.qps = 1 + (int)(rnd(g) % C_QPS);
	p.posters = 1 + (int)(rnd(g) % C_POSTERS);
	p.cqs = 1 + (int)(rnd(g) % C_CQS);
	p.srqs = p.type == C_XRC ? 1 + (int)(rnd(g) % C_SRQS) : p.type == C_TM ? 1 : p.type == C_UC ? 0 : (int)(rnd(g) % C_SRQS);
	p.own_qp = (int)(rnd(g) % 2);
	p.credits = p.type == C_RC || p.type == C_XRC ? (int)(rnd(g) % 2) : 1;
	p.by_gid = (int)(rnd(g) % 2) || hosts_differ();
	p.mapped = (int)(rnd(g) % 2);
	for (int i = 0; i < 2; i++) {
		p.takers[i] = 1 + (int)(rnd(g) % C_TAKERS);
		p.extended[i] = (int)(rnd(g) % 2) || (i == 1 && p.type == C_TM);
		p.events[i] = rnd(g) % 3 == 0;
		p.meddle[i] = (int)(rnd(g) % 2);
	}
	return p;
}

__attribute__((format(printf, 2, 3), noreturn)) void traffic_bad(const struct traffic *c, const char *format, ...)
{
	static const char *const types[] = { "RC", "UC", "XRC", "UD", "tags" };
	const struct traffic_plan *p = &c->plan;
	char text[300];
	va_list ap;
	va_start(ap, format);
	vsnprintf(text, sizeof text, format, ap);
	va_end(ap);
	printf("FAILED: %s, traffic (%s, posting %d, %d QPs, %d CQs, %d SRQs, %d threads post%s, %d and %d take, credits %d, extended %d/%d, events %d/%d, meddling %d/%d, mapped %d), %s: %s\n",
	       c->name, types[p->type], p->how, p->qps, p->cqs, p->srqs, p->posters, p->own_qp ? " to a QP each" : "", p->takers[0], p->takers[1], p->credits, p->extended[0],
	       p->extended[1], p->events[0], p->events[1], p->meddle[0], p->meddle[1], p->mapped, c->role ? "responder" : "requester", text);
	fflush(stdout);
	_exit(2);
}

int traffic_gone(struct traffic *c, const char *what, enum ibv_wc_status status)
{
	uint64_t end = now_us() + WAIT_US;
	while (!c->gone && !c->is_dead(c->arg)) {
		if (now_us() > end)
			traffic_bad(c, "%s: %s", what, ibv_wc_status_str(status));
		usleep(1000);
	}
	c->gone = 1;
	return 1;
}

int traffic_run(struct traffic *c)
{
	struct traffic_thread t[C_POSTERS + C_TAKERS + 1];
	const struct traffic_plan *p = &c->plan;
	int posters = c->role ? 0 : p->posters, takers = p->takers[c->role], n = 0;
	traffic_open(c);
	c->gone = (uint32_t)c->together(c->arg);
	if (!c->gone) {
		traffic_connect(c);
		c->gone = (uint32_t)c->together(c->arg);
	}
	memset(t, 0, sizeof t);
	c->posting = (uint32_t)posters;
	for (int i = 0; i < posters + takers + p->meddle[c->role] && !c->gone; i++, n++) {
		int taker = i >= posters;
		t[i] = (struct traffic_thread){ .c = c, .me = taker ? i - posters : i, .rng = p->rng + (uint64_t)(1000 * c->role + i) };
		memset(t[i].last, -1, sizeof t[i].last);
		if (pthread_create(&t[i].thread, NULL, i >= posters + takers ? traffic_meddler : !taker ? traffic_poster : c->role ? traffic_taker : traffic_collector, &t[i]))
			die("pthread_create");
	}
	for (int i = 0; i < n; i++) {
		/* The meddler thread has the last index. It runs until all posters and takers have
		 * ended. */
		if (i == posters + takers)
			c->stop = 1;
		pthread_join(t[i].thread, NULL);
	}
	if (!c->gone && !c->together(c->arg))
		traffic_account(c);
	traffic_close(c);
	return c->gone != 0;
}
