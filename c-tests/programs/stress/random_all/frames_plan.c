/*
 * Plan and prediction for the Ethernet frames of random_all.c: queues and rules of both sides, the
 * receivers of each frame, the bytes of frames, and random choices.
 */
#include "random_all.h"

const uint64_t fr_fields[] = { IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4, IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4 | IBV_RX_HASH_SRC_PORT_TCP | IBV_RX_HASH_DST_PORT_TCP,
				      IBV_RX_HASH_SRC_IPV6 | IBV_RX_HASH_DST_IPV6 | IBV_RX_HASH_SRC_PORT_UDP | IBV_RX_HASH_DST_PORT_UDP, IBV_RX_HASH_SRC_PORT_UDP };

uint64_t fr_mac(const struct side *s, uint32_t n)
{
	return (n == 2 ? 0x030000000000ull : 0x020000000000ull) | (uint64_t)(random_round & 0xffff) << 24 | (uint64_t)(random_seed & 0xff) << 16 | (uint64_t)s->link << 8 | n;
}

void fr_v6(uint8_t *to, uint32_t n)
{
	memset(to, 0, 16);
	to[0] = 0xfd;
	to[7] = (uint8_t)(17 * n);
	to[15] = (uint8_t)n;
}

/* ---- the oracle ---- */

static int fr_matches(const struct fr_demand *d, const struct fr_frame *f)
{
	return d->mac == f->mac && (!d->vlan || d->vlan == (f->tci & 0xfff)) && (!d->type || d->type == f->type) &&
	       (!(d->src_mask | d->dst_mask) || ((f->src & d->src_mask) == d->src && (f->dst & d->dst_mask) == d->dst)) && (!d->v6 || d->v6 == f->v6dst) &&
	       (!d->proto || d->proto == f->proto) && (!d->sport || d->sport == f->sport) && (!d->dport || d->dport == f->dport);
}

static unsigned fr_queue(const struct fr_model *m, unsigned target, const struct fr_frame *f)
{
	uint8_t data[40], *p = data;
	if (target < FR_PLAIN)
		return target;
	uint64_t fields = fr_fields[m->fields[target - FR_PLAIN]];
	if (f->type == FR_V4 && fields & IBV_RX_HASH_SRC_IPV4)
		p = be(be(p, f->src, 4), f->dst, 4);
	if (f->type == FR_V6 && fields & IBV_RX_HASH_SRC_IPV6) {
		fr_v6(p, f->v6src);
		fr_v6(p + 16, f->v6dst);
		p += 32;
	}
	if (f->proto == FR_TCP ? fields & IBV_RX_HASH_SRC_PORT_TCP : f->proto == FR_UDP ? fields & IBV_RX_HASH_SRC_PORT_UDP : 0)
		p = be(p, f->sport, 2);
	if (f->proto == FR_TCP ? fields & IBV_RX_HASH_DST_PORT_TCP : f->proto == FR_UDP ? fields & IBV_RX_HASH_DST_PORT_UDP : 0)
		p = be(p, f->dport, 2);
	return FR_PLAIN + m->table[toeplitz(rss_key, data, (unsigned)(p - data)) & ((1u << m->log) - 1)];
}

const struct fr_rule *fr_winner(const struct frames *x, const struct fr_frame *f)
{
	const struct fr_rule *w = NULL;
	for (unsigned i = 0; i < 2 * FR_RULES; i++) {
		const struct fr_rule *r = &x->of[i / FR_RULES].rule[i % FR_RULES];
		if (r->live && !r->spread_thin && fr_matches(&r->want, f) && (!w || r->priority < w->priority || (r->priority == w->priority && r->born < w->born)))
			w = r;
	}
	return w;
}

int fr_gets(const struct fr_rule *r, const struct fr_rule *winner, const struct fr_frame *f)
{
	if (!r->live || !fr_matches(&r->want, f))
		return 0;
	if (r->spread_thin)
		return !winner || r->priority <= winner->priority;
	return winner && r->priority == winner->priority && !memcmp(&r->want, &winner->want, sizeof r->want);
}

/* Adds the expected arrivals of a frame to the queues of both sides. Returns 0 if a queue would
 * overflow. */
static int fr_foresee(struct frames *x, unsigned i)
{
	const struct fr_frame *f = &x->frame[i];
	const struct fr_rule *winner = fr_winner(x, f);
	unsigned before[2][FR_QUEUES];
	for (int side = 0; side < 2; side++)
		memcpy(before[side], x->of[side].dues, sizeof before[side]);
	for (int side = 0; side < 2; side++) {
		struct fr_model *m = &x->of[side];
		for (int k = 0; k < FR_RULES; k++) {
			const struct fr_rule *r = &m->rule[k];
			if (!fr_gets(r, winner, f) || r->drop)
				continue;
			unsigned q = fr_queue(m, r->target, f);
			if (m->dues[q] < FR_DUES) {
				m->due[q][m->dues[q]++] = (struct fr_due){ .frame = i, .tag = r->tag };
				continue;
			}
			for (int back = 0; back < 2; back++)
				memcpy(x->of[back].dues, before[back], sizeof before[back]);
			return 0;
		}
	}
	return 1;
}

void fr_count(struct frames *x, int done)
{
	for (unsigned i = 0; i < x->n; i++)
		for (unsigned k = 0; k < 2 * FR_RULES; k++) {
			struct fr_rule *r = &x->of[k / FR_RULES].rule[k % FR_RULES];
			uint64_t *to = done ? r->least : r->most;
			if (fr_gets(r, fr_winner(x, &x->frame[i]), &x->frame[i])) {
				to[0]++;
				to[1] += x->frame[i].len;
			}
		}
}

/* ---- frames ---- */

static void fr_checksums(const struct fr_frame *f, unsigned char *ip, int transport)
{
	uint32_t head = f->type == FR_V4 ? 20 : 40, len = f->len - (f->tci ? 18u : 14u) - head;
	uint32_t pseudo = ones(ip + (f->type == FR_V4 ? 12 : 8), f->type == FR_V4 ? 8 : 32, f->proto + len);
	if (f->type == FR_V4)
		be(ip + 10, 0xffff ^ ones(ip, 20, 0), 2);
	if (!transport)
		return;
	uint32_t sum = 0xffff ^ ones(ip + head, len, pseudo);
	be(ip + head + (f->proto == FR_TCP ? 16 : 6), sum || f->proto == FR_TCP ? sum : 0xffff, 2);
}

int fr_right(const struct fr_frame *f)
{
	const unsigned char *ip = f->bytes + (f->tci ? 18 : 14);
	if (f->type != FR_V4 || !f->proto || ones(ip, 20, 0) != 0xffff)
		return 0;
	uint32_t len = f->len - (uint32_t)(ip + 20 - f->bytes);
	if (f->proto == FR_UDP && !ip[26] && !ip[27])
		return 1;
	return ones(ip + 20, len, ones(ip + 12, 8, f->proto + len)) == 0xffff;
}

void fr_build(const struct side *s, struct fr_frame *f, uint32_t epoch, unsigned number, int sent)
{
	uint8_t from[16], to[16];
	uint32_t inner = f->payload + (f->proto == FR_TCP ? 20u : f->proto == FR_UDP ? 8u : 0u);
	unsigned char *ip = eth(f->bytes, fr_mac(s, f->mac), 0x02feed000000ull, f->tci ? (int)f->tci : -1, (uint16_t)f->type), *p = ip;
	fr_v6(from, f->v6src);
	fr_v6(to, f->v6dst);
	if (f->type == FR_V4)
		p = ipv4(p, f->src, f->dst, f->proto ? (uint8_t)f->proto : 253, 0, (uint16_t)inner);
	else if (f->type == FR_V6)
		p = ipv6(p, from, to, f->proto ? (uint8_t)f->proto : 253, 7, (uint16_t)inner);
	if (f->proto == FR_TCP)
		p = tcp(p, (uint16_t)f->sport, (uint16_t)f->dport, number, 0x10);
	else if (f->proto == FR_UDP)
		p = udp(p, (uint16_t)f->sport, (uint16_t)f->dport, (uint16_t)f->payload);
	fill(p, f->payload, f->seed);
	be(be(p + f->payload - 8, epoch, 4), number, 4);
	f->len = (uint32_t)(p - f->bytes) + f->payload;
	if (f->type != FR_OTHER && f->checksums != C_WRONG && !(f->checksums == C_OFFLOADED && sent))
		fr_checksums(f, ip, f->proto && f->checksums != C_ABSENT);
}

/* ---- planning ---- */

void fr_plan_rule(struct side *s, struct frames *x, struct fr_rule *r)
{
	uint64_t *g = &s->plan.rng;
	const struct fr_rule *like = &x->of[below(g, 2)].rule[below(g, FR_RULES)];
	memset(r, 0, sizeof *r);
	r->live = 1;
	r->born = ++x->births;
	r->priority = below(g, 3);
	r->target = below(g, FR_TARGETS);
	r->tag = below(g, 2) ? 1 + below(g, 0xffffff) : 0;
	r->counted = below(g, 2) == 0;
	uint32_t kind = below(g, 8);
	r->spread_thin = kind == 0;
	/*
	 * Only a counter can show a dropped frame. A rule created meanwhile could take the frame.
	 */
	r->drop = kind == 1;
	r->counted |= r->drop;
	struct fr_demand *d = &r->want;
	d->mac = below(g, 3);
	d->vlan = below(g, 4) ? 0 : 5 + below(g, 2);
	static const uint32_t types[] = { 0, 0, FR_V4, FR_V4, FR_V6, FR_OTHER };
	d->type = types[below(g, 6)];
	uint32_t mask = below(g, 2) ? 0xffffffff : 0xffff0000, ends = below(g, 4);
	uint32_t src = 0x0a000001 | below(g, 2) << 16 | below(g, 2) << 1, dst = 0x0b000001 | below(g, 2) << 16 | below(g, 2) << 1, v6 = 1 + below(g, 3);
	if (d->type == FR_V4 && ends & 1) {
		d->src_mask = mask;
		d->src = src & mask;
	}
	if (d->type == FR_V4 && ends & 2) {
		d->dst_mask = mask;
		d->dst = dst & mask;
	}
	if (d->type == FR_V6 && ends)
		d->v6 = v6;
	if (d->type != FR_OTHER && below(g, 2)) {
		d->proto = below(g, 2) ? FR_TCP : FR_UDP;
		d->sport = below(g, 2) ? 0 : 1000 + below(g, 2);
		d->dport = below(g, 2) ? 0 : 2000 + below(g, 2);
	}
	/* Rules with the same demand share frames. */
	if (!below(g, 4) && like->live) {
		r->want = like->want;
		r->priority = like->priority;
	}
}

static void fr_plan_frame(struct side *s, struct frames *x, struct fr_frame *f, int last)
{
	uint64_t *g = &s->plan.rng;
	static const uint32_t types[] = { FR_V4, FR_V4, FR_V4, FR_V6, FR_V6, FR_OTHER };
	const struct fr_rule *r = &x->of[below(g, 2)].rule[below(g, FR_RULES)];
	const struct fr_demand *d = &r->want;
	memset(f, 0, sizeof *f);
	f->mac = below(g, 3);
	f->tci = below(g, 2) ? 0 : below(g, 8) << 13 | (5 + below(g, 2));
	f->type = types[below(g, 6)];
	f->src = 0x0a000001 | below(g, 2) << 16 | below(g, 2) << 1;
	f->dst = 0x0b000001 | below(g, 2) << 16 | below(g, 2) << 1;
	f->v6src = 1 + below(g, 3);
	f->v6dst = 1 + below(g, 3);
	uint32_t proto = below(g, 3), sport = 1000 + below(g, 2), dport = 2000 + below(g, 2);
	/* Two of three are what some rule is for. */
	if (below(g, 3) && r->live) {
		f->mac = d->mac;
		f->tci = d->vlan ? (f->tci & 0xe000) | d->vlan : f->tci;
		f->type = d->type ? d->type : d->proto ? FR_V4 : f->type;
		f->src = (f->src & ~d->src_mask) | d->src;
		f->dst = (f->dst & ~d->dst_mask) | d->dst;
		f->v6dst = d->v6 ? d->v6 : f->v6dst;
		proto = d->proto == FR_TCP ? 1 : d->proto == FR_UDP ? 2 : proto;
		sport = d->sport ? d->sport : sport;
		dport = d->dport ? d->dport : dport;
	}
	if (f->type != FR_OTHER && proto) {
		f->proto = proto == 1 ? FR_TCP : FR_UDP;
		f->sport = sport;
		f->dport = dport;
	}
	/* A frame has addresses only of its own IP version: no rule combines addresses of one
	 * version with the type of the other version. */
	f->src = f->type == FR_V4 ? f->src : 0;
	f->dst = f->type == FR_V4 ? f->dst : 0;
	f->v6src = f->type == FR_V6 ? f->v6src : 0;
	f->v6dst = f->type == FR_V6 ? f->v6dst : 0;
	f->payload = 8 + (below(g, 4) ? below(g, 1300) : below(g, 3) ? below(g, 40) : below(g, 8900));
	f->seed = rnd(g);
	f->checksums = below(g, 4);
	fr_build(s, f, 0, 0, 0);
	cut(g, &f->how, 0, f->len);
	f->how.flags = (last || below(g, 2) ? IBV_SEND_SIGNALED : 0) | (f->checksums == C_OFFLOADED ? IBV_SEND_IP_CSUM : 0) | (f->len <= 200 && below(g, 2) ? IBV_SEND_INLINE : 0);
}

void fr_plan_batch(struct side *s, struct frames *x)
{
	uint32_t n = 1 + below(&s->plan.rng, FR_FRAMES);
	for (int i = 0; i < 2; i++)
		memset(x->of[i].dues, 0, sizeof x->of[i].dues);
	for (x->n = 0; x->n < n; x->n++) {
		fr_plan_frame(s, x, &x->frame[x->n], x->n == n - 1);
		if (!fr_foresee(x, x->n))
			break;
	}
	x->frame[x->n - 1].how.flags |= IBV_SEND_SIGNALED;
}
