/*
 * Tag matching in large numbers, on each data path: thousands of tags, removals that race with
 * messages, many QPs and threads on one list, and a random history against an oracle with a linear
 * search. ibv_post_srq_ops(3).
 *
 *   tm_random MODE one|two
 *
 * Map of this file: tag_of and mode_thousands check a list of 6000 tags; mode_races checks removals
 * that race with messages. sender, adder and poller are the threads of mode_threads, which starts
 * them and checks that each message arrives once. `oracle` with in_step, report, take_out and find
 * is the model with a linear search; random_history compares random steps with the model;
 * mode_history runs four seeds. main starts the peers of the mode that the first argument names, in
 * other processes for "two", and runs this mode.
 */
#include "matcher.h"

static struct matcher t;

/* ---- thousands of tags ---- */

enum { TAGS = 6000, SLICE = 64 };

/* The tag of entry i: all bits vary, and some tags have equal lower halves. */
static uint64_t tag_of(unsigned i)
{
	return (uint64_t)(i / 7) * 0x9e3779b97f4a7c15ull ^ (uint64_t)(i % 7) << 40;
}

static void mode_thousands(void)
{
	struct tm_options o = tm_defaults();
	o.peers = 4;
	o.tags = TAGS;
	o.cqe = 2 * TAGS;
	tm_open(&t, &o);
	static unsigned order[TAGS], where[TAGS];
	uint64_t seed = 20260101;
	printf("seed %llu\n", (unsigned long long)seed);
	for (int round = 0; round < 2; round++) {
		for (unsigned i = 0; i < TAGS; i++)
			order[i] = i;
		for (unsigned i = TAGS - 1; i > 0; i--) {
			unsigned j = rnd(&seed) % (i + 1), k = order[i];
			order[i] = order[j];
			order[j] = k;
		}
		/* Adds all tags in one order; messages arrive in another order. */
		static uint32_t handle[TAGS];
		for (unsigned n = 0; n < TAGS; n++) {
			where[order[n]] = n;
			handle[n] = tm_add(&t, order[n], tag_of(order[n]), EXACT, n * SLICE, SLICE, 0, 0);
		}
		struct ibv_ops_wr more = { .opcode = IBV_WR_TAG_ADD };
		check_eq(tm_op(&t, &more), ENOMEM, "one more than %d", TAGS);
		unsigned good = 0, bytes = 0, bad = 0;
		for (unsigned n = 0; n < TAGS; n++) {
			unsigned i = (n * 1999u + 17) % TAGS;
			struct message m = { .opcode = IBV_TMH_EAGER, .tag = tag_of(i), .app_ctx = i, .len = i % (SLICE + 1), .seed = i };
			if (n % 10 == 9) {
				/* Every tenth entry is removed instead. */
				good += tm_del(&t, n, handle[where[i]], IBV_OPS_SIGNALED) == 0;
				struct seen s = tm_wait(&t), want = seen_op(n, IBV_WC_TM_DEL, 0);
				bad += !tm_same(&s, &want);
				continue;
			}
			int from = (int)n % 4;
			tm_send(&t, from, &m, n);
			struct seen s = tm_wait(&t), want = seen_eager(&t, from, i, &m);
			good += tm_same(&s, &want);
			if (!tm_same(&s, &want)) {
				tm_say("is", &s);
				tm_say("should be", &want);
			}
			bytes += verify(t.buf + where[i] * SLICE, m.len, i) < 0;
			tm_sent(&t, from, n);
		}
		check(good == TAGS && !bad, "%u of %d messages and removals found their entry", good - bad, TAGS);
		check_eq(bytes, TAGS - TAGS / 10, "and their buffer");
	}
	tm_quiet(&t, "left");
	tm_close(&t);
}

/* ---- removals that race ---- */

enum { WINDOW = 8, POOL = 64, PIECE = 256 };

static void mode_races(void)
{
	enum { ROUNDS = 2000, ID = 1 << 20 };
	struct tm_options o = tm_defaults();
	tm_open(&t, &o);
	for (unsigned i = 0; i < POOL; i++)
		tm_recv(&t, ID | i, ID + i * PIECE, PIECE);
	unsigned removed = 0, received = 0, unexpected = 0, wrong = 0, next_recv = 0, fins = 0;
	uint64_t seed = 4711;
	for (unsigned n = 0; n < ROUNDS && !wrong; n++) {
		/* A few messages: each finds its entry, or the entry was removed. */
		unsigned count = 1 + rnd(&seed) % WINDOW, got[WINDOW] = { 0 }, gone[WINDOW] = { 0 };
		uint32_t handle[WINDOW];
		int rendezvous = rnd(&seed) % 4 == 0;
		for (unsigned i = 0; i < count; i++)
			handle[i] = tm_add(&t, i, i, EXACT, i * PIECE, PIECE, IBV_OPS_TM_SYNC, unexpected);
		for (; rendezvous && fins < count; fins++)
			end_recv(t.peer[0], one_piece(0, 0, 1 << 20, HEADERS));
		for (unsigned i = 0; i < count; i++) {
			struct message m = { .opcode = rendezvous ? IBV_TMH_RNDV : IBV_TMH_EAGER, .tag = i, .len = rendezvous ? 0 : 100, .seed = n + i, .offset = i * PIECE,
					     .va = t.his[0].addr + 65536, .rkey = t.his[0].rkey, .rlen = 200 };
			tm_send(&t, 0, &m, i);
		}
		/* In every third round all messages arrive before the removals; in the rest both
		 * race. */
		int late = n % 3 == 0;
		for (unsigned i = 0; late && i < count; i++)
			tm_sent(&t, 0, i);
		for (unsigned spin = rnd(&seed) % 100000; n % 3 == 1 && spin; spin--)
			__asm__ volatile("");
		for (unsigned i = count; i-- > 0;)
			if (tm_del(&t, 1000 + i, handle[i], IBV_OPS_SIGNALED))
				die("IBV_WR_TAG_DEL");
		/*
		 * One completion for each removal and each message; a matched rendezvous has two.
		 */
		for (unsigned left = 2 * count; left; left--) {
			struct seen s = tm_wait(&t);
			if (s.opcode == IBV_WC_TM_DEL) {
				gone[s.wr_id - 1000] = s.status == IBV_WC_SUCCESS;
				wrong += s.status != IBV_WC_SUCCESS && s.status != IBV_WC_TM_ERR;
			} else if (s.wr_id & ID) {
				/* Receives of the SRQ are used in their order. */
				wrong += s.status != IBV_WC_SUCCESS || s.flags || s.wr_id != (ID | next_recv++ % POOL);
				unexpected++;
				tm_recv(&t, s.wr_id, ID + (s.wr_id & (POOL - 1)) * PIECE, PIECE);
			} else {
				wrong += s.status != IBV_WC_SUCCESS;
				got[s.wr_id] += s.flags == IBV_WC_TM_DATA_VALID ? 16 : 1;
				left += s.flags == IBV_WC_TM_MATCH;
				wrong += !rendezvous && verify(t.buf + s.wr_id * PIECE, 100, n + (unsigned)s.wr_id) >= 0;
			}
		}
		for (unsigned i = 0; i < count; i++) {
			/* A removed entry never completes; after a late removal it does. */
			wrong += got[i] != (gone[i] ? 0 : rendezvous ? 17 : 1);
			removed += gone[i];
			received += !gone[i];
			wrong += late && gone[i];
			if (!late)
				tm_sent(&t, 0, i);
			if (rendezvous && !gone[i]) {
				wrong += end_wait(t.peer[0], RECVS).byte_len != HEADERS;
				fins--;
			}
		}
	}
	check_eq(wrong, 0, "%d rounds of messages and removals", ROUNDS);
	check(received > 0, "%u removed before their message, %u received", removed, received);
	tm_close(&t);
}

/* ---- many QPs and threads ---- */

enum { SENDERS = 6, ADDERS = 3, POLLERS = 2, EACH = 1500, AHEAD = 16, ROOM = 512 };
static unsigned seen_count[SENDERS * EACH], wrong_count, done_count, ops_count;
static pthread_barrier_t ready;

static void *sender(void *arg)
{
	int p = (int)(uintptr_t)arg;
	pthread_barrier_wait(&ready);
	unsigned sent = 0, acked = 0;
	while (acked < EACH) {
		if (sent < EACH && sent - acked < AHEAD) {
			unsigned k = sent * 7 % EACH, i = (unsigned)p * EACH + k;
			struct message m = { .opcode = IBV_TMH_EAGER, .tag = i, .app_ctx = ~i, .len = i % (ROOM + 1), .seed = i, .offset = sent % AHEAD * 4096 };
			tm_send(&t, p, &m, sent++);
			continue;
		}
		tm_sent(&t, p, acked++);
	}
	return NULL;
}

/* Adds and removes entries that no message has. */
static void *adder(void *arg)
{
	uint64_t seed = (uintptr_t)arg + 77, mine = 1ull << 40 | (uint64_t)(uintptr_t)arg << 32;
	uint32_t handle[32];
	pthread_barrier_wait(&ready);
	for (int n = 0; n < 400; n++) {
		unsigned count = 1 + rnd(&seed) % 32;
		for (unsigned i = 0; i < count; i++)
			handle[i] = tm_add(&t, 0, mine | rnd(&seed) % 8, rnd(&seed) % 2 ? EXACT : EXACT >> 8, 0, 8, 0, 0);
		for (unsigned i = 0; i < count; i++)
			if (tm_del(&t, 1ull << 50, handle[i], IBV_OPS_SIGNALED))
				die("IBV_WR_TAG_DEL");
		__atomic_fetch_add(&ops_count, count, __ATOMIC_RELAXED);
	}
	return NULL;
}

static void *poller(void *arg)
{
	(void)arg;
	uint64_t until = now_us() + 40000000;
	while (__atomic_load_n(&done_count, __ATOMIC_ACQUIRE) < SENDERS * EACH && now_us() < until) {
		struct seen s;
		if (!tm_try(&t, &s, 1000))
			continue;
		if (s.opcode == IBV_WC_TM_DEL) {
			if (s.status != IBV_WC_SUCCESS)
				__atomic_fetch_add(&wrong_count, 1, __ATOMIC_RELAXED);
			__atomic_fetch_sub(&ops_count, 1, __ATOMIC_RELAXED);
			continue;
		}
		unsigned i = (unsigned)s.wr_id;
		struct message m = { .opcode = IBV_TMH_EAGER, .tag = i, .app_ctx = ~i, .len = i % (ROOM + 1) };
		struct seen want = i < SENDERS * EACH ? seen_eager(&t, (int)(i / EACH), i, &m) : s;
		if (i >= SENDERS * EACH || !tm_same(&s, &want) || verify(t.buf + (size_t)i * ROOM, m.len, i) >= 0) {
			tm_say("is", &s);
			tm_say("should be", &want);
			__atomic_fetch_add(&wrong_count, 1, __ATOMIC_RELAXED);
		} else {
			__atomic_fetch_add(&seen_count[i], 1, __ATOMIC_RELAXED);
		}
		__atomic_fetch_add(&done_count, 1, __ATOMIC_RELEASE);
	}
	return NULL;
}

static void mode_threads(void)
{
	struct tm_options o = tm_defaults();
	o.peers = SENDERS;
	o.tags = SENDERS * EACH + ADDERS * 32;
	o.ops = 32768;
	o.cqe = 65536;
	o.size = (size_t)SENDERS * EACH * ROOM;
	tm_open(&t, &o);
	for (unsigned i = 0; i < SENDERS * EACH; i++)
		tm_add(&t, i, i, EXACT, (uint64_t)i * ROOM, ROOM, 0, 0);
	pthread_t thread[SENDERS + ADDERS + POLLERS];
	pthread_barrier_init(&ready, NULL, SENDERS + ADDERS);
	int n = 0;
	for (int i = 0; i < SENDERS; i++)
		pthread_create(&thread[n++], NULL, sender, (void *)(uintptr_t)i);
	for (int i = 0; i < ADDERS; i++)
		pthread_create(&thread[n++], NULL, adder, (void *)(uintptr_t)i);
	for (int i = 0; i < POLLERS; i++)
		pthread_create(&thread[n++], NULL, poller, NULL);
	while (n)
		pthread_join(thread[--n], NULL);
	struct seen s;
	while (ops_count && tm_try(&t, &s, QUIET_US))
		ops_count -= s.opcode == IBV_WC_TM_DEL && s.status == IBV_WC_SUCCESS;
	unsigned once = 0;
	for (unsigned i = 0; i < SENDERS * EACH; i++)
		once += seen_count[i] == 1;
	check_eq(once, SENDERS * EACH, "each message of %d QPs came once, whole, in its buffer", SENDERS);
	check_eq(wrong_count, 0, "completions as they should be, polled by %d threads", POLLERS);
	check_eq(ops_count, 0, "each removal by %d threads completed", ADDERS);
	tm_close(&t);
}

/* ---- a random history ---- */

enum { LIST = 40, BUFFER = 32768 };

struct entry {
	uint32_t handle, seed;
	uint64_t tag, mask, id, at;
	int eligible;
};

static struct {
	struct entry entry[LIST];
	unsigned count;
	uint16_t unexpected, reported;
	/* Places in the buffer that no entry has. */
	unsigned place[LIST], places;
} oracle;

static int in_step(void)
{
	return oracle.unexpected == oracle.reported;
}

static void report(uint16_t seen)
{
	oracle.reported = seen;
	for (unsigned i = 0; in_step() && i < oracle.count; i++)
		oracle.entry[i].eligible = 1;
}

static struct entry take_out(unsigned at)
{
	struct entry e = oracle.entry[at];
	memmove(&oracle.entry[at], &oracle.entry[at + 1], (--oracle.count - at) * sizeof e);
	oracle.place[oracle.places++] = (unsigned)(e.at / BUFFER);
	return e;
}

static int find(uint64_t tag)
{
	for (unsigned i = 0; i < oracle.count; i++)
		if (oracle.entry[i].eligible && (tag & oracle.entry[i].mask) == oracle.entry[i].tag)
			return (int)i;
	return -1;
}

static void random_history(uint64_t seed, unsigned steps, unsigned *matched, unsigned *whole, unsigned *refused)
{
	static const uint64_t masks[] = { EXACT, EXACT, 0xff, 0xf0, 0xff00, 0 };
	struct tm_options o = tm_defaults();
	o.peers = 3;
	o.tags = LIST;
	o.size = (LIST + 1) * (size_t)BUFFER + 65536;
	tm_open(&t, &o);
	memset(&oracle, 0, sizeof oracle);
	while (oracle.places < LIST) {
		oracle.place[oracle.places] = oracle.places;
		oracle.places++;
	}
	const uint64_t spare = (uint64_t)LIST * BUFFER, data = 1 << 20, fins = 3 << 20;
	uint64_t id = 1, recv_id = 0, stale = UINT64_MAX;
	unsigned fin_ready[MAX_PEERS] = { 0 }, bad = 0;
	for (unsigned n = 0; n < steps && !bad; n++) {
		unsigned kind = rnd(&seed) % 10, flags = rnd(&seed) % 2 ? IBV_OPS_SIGNALED : 0;
		uint16_t seen = oracle.unexpected;
		if (rnd(&seed) % 8 == 0)
			seen--;
		if (rnd(&seed) % 3 == 0)
			flags |= IBV_OPS_TM_SYNC;
		unsigned flag_out;
		id++;
		if (kind < 4) {
			uint64_t mask = masks[rnd(&seed) % 6], tag = (rnd(&seed) % 3 | (rnd(&seed) % 3) << 4 | (rnd(&seed) % 3) << 8) & mask;
			if (oracle.count == LIST) {
				struct ibv_ops_wr wr = { .opcode = IBV_WR_TAG_ADD, .flags = (int)flags };
				bad += tm_op(&t, &wr) != ENOMEM;
				continue;
			}
			if (flags & IBV_OPS_TM_SYNC)
				report(seen);
			struct entry e = { .tag = tag, .mask = mask, .id = id, .at = (uint64_t)oracle.place[--oracle.places] * BUFFER, .eligible = in_step() };
			e.handle = tm_add(&t, id, tag, mask, e.at, BUFFER, flags, seen | rnd(&seed) << 16);
			oracle.entry[oracle.count++] = e;
			flag_out = in_step() ? 0 : IBV_WC_TM_SYNC_REQ;
			if (flags & IBV_OPS_SIGNALED)
				bad += !tm_expect(&t, seen_op(~id, IBV_WC_TM_ADD, flag_out), "step %u: added", n);
		} else if (kind == 4) {
			struct ibv_ops_wr wr = { .wr_id = id, .opcode = IBV_WR_TAG_DEL, .flags = (int)flags };
			wr.tm.unexpected_cnt = seen;
			int late = stale != UINT64_MAX && rnd(&seed) % 3 == 0;
			if (!late && !oracle.count)
				continue;
			unsigned at = late ? 0 : rnd(&seed) % oracle.count;
			wr.tm.handle = late ? (uint32_t)stale : oracle.entry[at].handle;
			if (flags & IBV_OPS_TM_SYNC)
				report(seen);
			bad += tm_op(&t, &wr) != 0;
			if (!late)
				stale = take_out(at).handle;
			struct seen want = seen_op(id, IBV_WC_TM_DEL, in_step() ? 0 : IBV_WC_TM_SYNC_REQ);
			want.status = late ? IBV_WC_TM_ERR : IBV_WC_SUCCESS;
			if (flags & IBV_OPS_SIGNALED)
				bad += !tm_expect(&t, want, "step %u: removed%s", n, late ? " too late" : "");
		} else if (kind == 5) {
			report(seen);
			tm_sync(&t, id, seen, flags);
			if (flags & IBV_OPS_SIGNALED)
				bad += !tm_expect(&t, seen_op(id, IBV_WC_TM_SYNC, in_step() ? 0 : IBV_WC_TM_SYNC_REQ), "step %u: reported", n);
		} else {
			int from = (int)(rnd(&seed) % 3);
			struct message m = { .opcode = (const uint8_t[]){ IBV_TMH_EAGER, IBV_TMH_EAGER, IBV_TMH_RNDV, IBV_TMH_NO_TAG, IBV_TMH_FIN }[rnd(&seed) % 5],
					     .tag = rnd(&seed) % 3 | (rnd(&seed) % 3) << 4 | (rnd(&seed) % 3) << 8 | (uint64_t)(rnd(&seed) % 16 == 0) << 60,
					     .app_ctx = rnd(&seed), .seed = n, .with_imm = rnd(&seed) % 4 == 0, .imm = rnd(&seed) };
			static const uint32_t lengths[] = { 0, 1, 31, 32, 33, 200, 8000, 20000, BUFFER };
			m.len = lengths[rnd(&seed) % 9];
			if (m.opcode == IBV_TMH_RNDV || m.opcode == IBV_TMH_FIN) {
				m.with_imm = 0;
				m.rlen = rnd(&seed) % 12 ? m.len : BUFFER + 1;
				m.len = rnd(&seed) % 2 * 40;
				m.va = t.his[from].addr + data;
				m.rkey = t.his[from].rkey;
				end_fill(t.peer[from], data, m.rlen, n + 1000000);
			}
			int tagged = m.opcode == IBV_TMH_EAGER || m.opcode == IBV_TMH_RNDV;
			int at = tagged ? find(m.tag) : -1;
			if (at < 0)
				tm_recv(&t, ++recv_id << 32, spare, 65536);
			int reads = m.opcode == IBV_TMH_RNDV && at >= 0 && m.rlen <= BUFFER;
			if (reads && !fin_ready[from]) {
				end_recv(t.peer[from], one_piece(0, 5, fins, HEADERS));
				fin_ready[from] = 1;
			}
			tm_send(&t, from, &m, n);
			if (at < 0) {
				bad += !tm_expect(&t, seen_whole(&t, from, recv_id << 32, &m, tagged ? IBV_WC_TM_RECV : IBV_WC_TM_NO_TAG), "step %u: whole", n);
				bad += !is_message(&m, t.buf + spare);
				oracle.unexpected += (uint16_t)tagged;
				++*whole;
				tm_sent(&t, from, n);
				continue;
			}
			struct entry e = take_out((unsigned)at);
			stale = e.handle;
			++*matched;
			if (m.opcode == IBV_TMH_EAGER) {
				bad += !tm_expect(&t, seen_eager(&t, from, e.id, &m), "step %u: entry %llu", n, (unsigned long long)e.id);
				bad += verify(t.buf + e.at, m.len, m.seed) >= 0;
				tm_sent(&t, from, n);
			} else if (reads) {
				bad += !tm_expect(&t, seen_match(&t, from, e.id, &m), "step %u: matched entry %llu", n, (unsigned long long)e.id);
				tm_sent(&t, from, n);
				bad += !is_fin(&t, from, &m, 5, fins);
				fin_ready[from] = 0;
				bad += !tm_expect(&t, seen_data(&t, from, e.id, &m), "step %u: its data", n);
				bad += verify(t.buf + e.at, m.rlen, n + 1000000) >= 0;
			} else {
				struct seen want = { .wr_id = e.id, .status = IBV_WC_TM_RNDV_INCOMPLETE, .opcode = IBV_WC_TM_RECV, .flags = MATCHED, .byte_len = HEADERS,
						     .qp_num = t.qp[from]->qp_num, .tag = m.tag, .priv = m.app_ctx };
				bad += !tm_expect(&t, want, "step %u: incomplete", n);
				tm_sent(&t, from, n);
				++*refused;
			}
		}
	}
	check_eq(bad, 0, "seed %llu", (unsigned long long)seed);
	tm_quiet(&t, "left");
	tm_close(&t);
}

static void mode_history(void)
{
	unsigned matched = 0, whole = 0, refused = 0;
	const char *given = getenv("TEST_SEED");
	uint64_t seed = given ? strtoull(given, NULL, 0) : 1;
	for (unsigned i = 0; i < 4; i++) {
		printf("seed %llu\n", (unsigned long long)(seed + i));
		random_history(seed + i, 1500, &matched, &whole, &refused);
	}
	check(matched > 500 && whole > 500 && refused > 5, "%u messages matched, %u came whole, %u could not be completed", matched, whole, refused);
}

int main(int argc, char **argv)
{
	static const struct { const char *name; void (*run)(void); int peers; } modes[] = {
		{ "thousands", mode_thousands, 4 }, { "races", mode_races, 1 }, { "threads", mode_threads, SENDERS }, { "history", mode_history, 3 },
	};
	int two = two_processes(argc, argv);
	for (unsigned i = 0; i < sizeof modes / sizeof *modes; i++)
		if (argc == 3 && !strcmp(argv[1], modes[i].name)) {
			for (int p = 0; p < modes[i].peers; p++)
				t.peer[p] = end_new(two);
			modes[i].run();
			for (int p = 0; p < modes[i].peers; p++)
				end_free(t.peer[p]);
			return finish();
		}
	die("usage: tm_random MODE one|two");
}
