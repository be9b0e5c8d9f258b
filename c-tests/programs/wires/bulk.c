/*
 * Long WRITEs and READs in sequence between two processes, over shared memory. All bytes arrive,
 * the last bytes last. Memory does not change after its deregistration. A target that is killed
 * ends the connection.
 */
#include "rig.h"

#include <stdatomic.h>

#define MIB (1u << 20)
#define SRC 0u
#define DST (10u * MIB)
#define SIZE (20u * MIB)
#define EVERYTHING (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)

static struct end *a, *b;
static struct address aa, ba;

/* Shared between the test's threads and processes. */
static struct shared {
	_Atomic uint32_t begun, seen, wrong;
} *shared;

static void open_pair(void)
{
	struct options o = defaults();
	o.size = SIZE;
	o.retry = 7;
	o.timeout = 10;
	pair_open(a, b, o, &aa, &ba);
}

static struct request bulk(enum ibv_wr_opcode op, uint64_t id, uint64_t offset, uint64_t remote, uint32_t len)
{
	struct request r = one_piece(op, id, offset, len);
	r.raddr = ba.addr + remote;
	r.rkey = ba.rkey;
	return r;
}

/* Enough requests in sequence that the helper thread takes part in some. */
#define ROW 24

static void whole(uint32_t len, uint32_t skew)
{
	static uint32_t seed = 1;
	static const enum ibv_wr_opcode ops[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ };
	int bad = 0;
	long at = -1;
	seed++;
	end_fill(a, SRC + skew, len, seed);
	for (int op = 0; op < 2; op++) {
		/* To the peer's memory, and from there back to a third place. */
		for (uint32_t n = 0; n < ROW; n++)
			if (end_send(a, bulk(ops[op], n, op ? DST : SRC + skew, SRC + 3 * skew, len)))
				die("ibv_post_send");
		for (uint32_t n = 0; n < ROW; n++) {
			struct ibv_wc w = end_wait(a, SENDS);
			bad += w.status != IBV_WC_SUCCESS || w.wr_id != n;
		}
		at = op ? end_verify(a, DST, len, seed) : end_verify(b, SRC + 3 * skew, len, seed);
		check(!bad && at < 0, "%u %s of %u bytes", ROW, op ? "READs" : "WRITEs", len);
	}
}

/* ---- the last byte ---- */

#define WATCHED (4 * MIB + 77)
#define ROUNDS 500

/* Waits for the last byte of each WRITE, and looks at the others then. */
static long watch(struct parts *p, void *arg)
{
	(void)arg;
	const unsigned char *buf = p->buf + DST;
	const volatile unsigned char *last = buf + WATCHED - 1;
	for (uint32_t n = 1; n <= ROUNDS; n++) {
		uint64_t until = now_us() + WAIT_US;
		/* Asleep most of the time: the target shall have a processor to spare. */
		while (*last != (unsigned char)n) {
			if (now_us() > until)
				return n;
			usleep(1);
		}
		atomic_thread_fence(memory_order_acquire);
		if (buf[0] != (unsigned char)n || memcmp(buf, buf + 1, WATCHED - 1))
			atomic_fetch_add(&shared->wrong, 1);
		atomic_store(&shared->seen, n);
	}
	return 0;
}

static void *watcher(void *arg)
{
	*(long *)arg = end_run(b, watch, NULL, 0);
	return NULL;
}

static void last_byte_last(void)
{
	static unsigned char bytes[WATCHED];
	long result = -1;
	pthread_t thread;
	memset(bytes, 0, sizeof bytes);
	end_write(b, DST, bytes, WATCHED);
	atomic_store(&shared->seen, 0);
	pthread_create(&thread, NULL, watcher, &result);
	for (uint32_t n = 1; n <= ROUNDS; n++) {
		uint64_t until = now_us() + WAIT_US;
		memset(bytes, (int)(n & 0xff), sizeof bytes);
		end_write(a, SRC, bytes, WATCHED);
		if (end_send(a, bulk(IBV_WR_RDMA_WRITE, n, SRC, DST, WATCHED)))
			die("ibv_post_send");
		if (end_wait(a, SENDS).status != IBV_WC_SUCCESS)
			die("a WRITE failed");
		while (atomic_load(&shared->seen) < n && now_us() < until)
			sched_yield();
	}
	pthread_join(thread, NULL);
	check_eq(result, 0, "the last byte of each WRITE is seen");
	check_eq(atomic_load(&shared->wrong), 0, "all others are there by then");
}

/* ---- deregistration during WRITEs ---- */

#define LONG (4u * MIB)

struct stream {
	struct keys keys;
	int refused, others;
};

/* WRITEs until one is refused. */
static void *pour(void *arg)
{
	struct stream *s = arg;
	for (uint32_t n = 0; !s->refused && n < 20000; n++) {
		struct request r = bulk(IBV_WR_RDMA_WRITE, n, SRC, DST, LONG);
		r.rkey = s->keys.rkey;
		if (end_send(a, r))
			die("ibv_post_send");
		struct ibv_wc w = end_wait(a, SENDS);
		s->refused = w.status == IBV_WC_REM_ACCESS_ERR;
		s->others += w.status != IBV_WC_SUCCESS && !s->refused;
		atomic_fetch_add(&shared->begun, 1);
	}
	return NULL;
}

static void registration_ends(unsigned delay_us)
{
	static unsigned char bytes[LONG];
	struct stream s = { .keys = end_register(b, DST, LONG, EVERYTHING, 0) };
	pthread_t thread;
	end_fill(a, SRC, LONG, 5);
	atomic_store(&shared->begun, 0);
	pthread_create(&thread, NULL, pour, &s);
	while (atomic_load(&shared->begun) < 10)
		sched_yield();
	/* In the middle of a WRITE, somewhere: the delays are those of the list in main. */
	usleep(delay_us);
	end_deregister(b);
	/* It is the application's again. */
	memset(bytes, 0x5a, sizeof bytes);
	end_write(b, DST, bytes, LONG);
	pthread_join(thread, NULL);
	/* That nothing arrives any more cannot be waited for: longer than a WRITE takes. */
	usleep(2000);
	end_read(b, DST, bytes, LONG);
	check(s.refused && !s.others, "a WRITE is refused once the registration has ended");
	check(bytes[0] == 0x5a && !memcmp(bytes, bytes + 1, LONG - 1), "and nothing arrives there any more (%u us)", delay_us);
}

/* ---- death of the target ---- */

static void *kill_soon(void *arg)
{
	while (atomic_load(&shared->begun) < 10)
		sched_yield();
	/* As above: in the middle of an operation. */
	usleep(*(unsigned *)arg);
	end_kill(b);
	return NULL;
}

static void target_dies(unsigned delay_us)
{
	pthread_t thread;
	enum ibv_wc_status status = IBV_WC_SUCCESS, expected = IBV_WC_RETRY_EXC_ERR;
	atomic_store(&shared->begun, 0);
	pthread_create(&thread, NULL, kill_soon, &delay_us);
	for (uint32_t n = 0; status == IBV_WC_SUCCESS && n < 20000; n++) {
		/* Without an outstanding request the connection ends up to half a second after the
		 * kill; requests posted then are flushed. */
		if (end_state(a) == IBV_QPS_ERR)
			expected = IBV_WC_WR_FLUSH_ERR;
		if (end_send(a, bulk(n % 2 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ, n, SRC, DST, LONG)))
			die("ibv_post_send");
		status = end_wait(a, SENDS).status;
		atomic_fetch_add(&shared->begun, 1);
	}
	pthread_join(thread, NULL);
	check_eq(status, expected, "what goes to a process that was killed (%u us)", delay_us);
}

int main(void)
{
	static const uint32_t sizes[] = { 65536, 131072, 131073, 200001, MIB, 3 * MIB + 5, 8 * MIB };
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		die("mmap");
	a = end_new(0);
	b = end_new(1);
	open_pair();
	for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++)
		whole(sizes[n], n % 2 ? 4096 : 13);
	last_byte_last();
	pair_close(a, b);
	for (unsigned n = 0; n < 6; n++) {
		open_pair();
		registration_ends(n * 137);
		pair_close(a, b);
	}
	for (unsigned n = 0; n < 6; n++) {
		open_pair();
		target_dies(n * 137);
		end_close(a);
		b = end_new(1);
	}
	end_free(b);
	end_free(a);
	return finish();
}
