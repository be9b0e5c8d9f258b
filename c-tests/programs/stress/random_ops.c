/*
 * Random mixes of every operation on an RC connection over every data path, checked against a model
 * of both memories after each batch. The program prints the seed; TEST_SEED repeats a run.
 * TEST_BATCHES: number of batches.
 */
#include "rig.h"

/* The responder's memory for one-sided operations, its landing area for receives, and the
 * requester's slots. */
enum { SHARED = 256 * 1024, SLOT = 40 * 1024, BATCH = 16, LANDING = SHARED, SIZE = SHARED + BATCH * SLOT };

static struct end *a, *b;
static struct address aa, ba;
static unsigned char model_a[BATCH * SLOT], model_b[SIZE], seen[SIZE];
static uint64_t state;

static uint32_t below(uint32_t n) { return rnd(&state) % n; }

static uint32_t some_length(uint32_t most)
{
	static const uint32_t usual[] = { 0, 1, 8, 47, 48, 49, 64, 100, 511, 2048, 4095, 4096, 4097, 8192 };
	uint32_t len = below(3) ? usual[below(sizeof usual / sizeof *usual)] : below(most + 1);
	return len > most ? most : len;
}

/* Random cuts of a contiguous range. */
static void cut(struct request *r, uint64_t offset, uint32_t len)
{
	int n = 1 + (int)below(4);
	r->pieces = n;
	for (int i = 0; i < n; i++) {
		uint32_t part = i == n - 1 ? len : below(len + 1);
		r->piece[i] = (struct piece){ offset, part, 0 };
		offset += part;
		len -= part;
	}
}

/* Prints the whole batch after a failure. */
static void describe(const struct request *send, unsigned n, int late)
{
	static const char *const names[] = { "WRITE", "WRITE_IMM", "SEND", "SEND_IMM", "READ", "CMP_SWAP", "FETCH_ADD" };
	printf("receives posted %s\n", late ? "after the sends" : "before the sends");
	for (unsigned i = 0; i < n; i++) {
		printf("request %u: %s%s%s%s, pieces", i, names[send[i].op], send[i].flags & IBV_SEND_SIGNALED ? " signaled" : "",
		       send[i].flags & IBV_SEND_INLINE ? " inline" : "", send[i].flags & IBV_SEND_FENCE ? " fence" : "");
		for (int k = 0; k < send[i].pieces; k++)
			printf(" %u", send[i].piece[k].len);
		printf(", remote %llx\n", (unsigned long long)(send[i].raddr - ba.addr));
	}
}

static void batch(unsigned number)
{
	struct request send[BATCH], recv[BATCH];
	uint32_t lens[BATCH];
	unsigned n = 1 + below(BATCH), receives = 0, read_before = 0;
	memset(send, 0, sizeof send);
	memset(recv, 0, sizeof recv);
	/* New bytes in every slot of the requester. */
	for (size_t i = 0; i < sizeof model_a; i += 8) {
		uint64_t v = (uint64_t)rnd(&state) << 32 | rnd(&state);
		memcpy(model_a + i, &v, 8);
	}
	end_write(a, 0, model_a, sizeof model_a);
	for (unsigned i = 0; i < n; i++) {
		static const enum ibv_wr_opcode ops[] = { IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ,
							  IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_CMP_AND_SWP };
		struct request *s = &send[i];
		uint64_t slot = (uint64_t)i * SLOT;
		s->id = (uint64_t)number << 8 | i;
		s->op = ops[below(7)];
		/*
		 * The last request is signaled; its completion also ends the unsignaled requests.
		 */
		s->flags = i == n - 1 || below(2) ? IBV_SEND_SIGNALED : 0;
		s->flags |= below(4) ? 0 : IBV_SEND_SOLICITED;
		s->imm = rnd(&state);
		s->rkey = ba.rkey;
		int atomic = s->op >= IBV_WR_ATOMIC_CMP_AND_SWP && s->op <= IBV_WR_ATOMIC_FETCH_AND_ADD;
		uint32_t len = lens[i] = atomic ? 8 : some_length(below(8) ? 9000 : SLOT - 64);
		uint64_t at = atomic ? below(SHARED / 8) * 8ull : below(SHARED - len);
		s->raddr = ba.addr + at;
		if (atomic)
			*s = (struct request){ .id = s->id, .op = s->op, .flags = s->flags, .rkey = s->rkey, .raddr = s->raddr, .pieces = 1, .piece = { { slot, 8, 0 } } };
		else
			cut(s, slot, len);
		int inlinable = s->op != IBV_WR_RDMA_READ && !atomic && len <= aa.max_inline;
		if (inlinable && below(2))
			s->flags |= IBV_SEND_INLINE;
		/* A request after a READ or atomic is fenced, because the model executes requests
		 * in order. */
		if (read_before)
			s->flags |= IBV_SEND_FENCE;
		int sends = s->op == IBV_WR_SEND || s->op == IBV_WR_SEND_WITH_IMM;
		if (sends || s->op == IBV_WR_RDMA_WRITE_WITH_IMM) {
			struct request *r = &recv[receives];
			uint64_t landing = LANDING + (uint64_t)receives * SLOT;
			r->id = s->id;
			cut(r, landing, sends ? len + below(64) : 0);
			if (sends)
				memcpy(model_b + landing, model_a + slot, len);
			receives++;
		}
		uint64_t old;
		switch (s->op) {
		case IBV_WR_RDMA_WRITE:
		case IBV_WR_RDMA_WRITE_WITH_IMM: memcpy(model_b + at, model_a + slot, len); break;
		case IBV_WR_RDMA_READ:
			memcpy(model_a + slot, model_b + at, len);
			read_before = 1;
			break;
		case IBV_WR_ATOMIC_FETCH_AND_ADD:
		case IBV_WR_ATOMIC_CMP_AND_SWP:
			memcpy(&old, model_b + at, 8);
			memcpy(model_a + slot, &old, 8);
			s->compare_add = below(2) ? old : rnd(&state);
			s->swap = (uint64_t)rnd(&state) << 32 | rnd(&state);
			if (s->op == IBV_WR_ATOMIC_FETCH_AND_ADD)
				old += s->compare_add;
			else if (s->compare_add == old)
				old = s->swap;
			memcpy(model_b + at, &old, 8);
			read_before = 1;
			break;
		default: break;
		}
		/* The rig overwrites inline sources once they are posted. */
		if (s->flags & IBV_SEND_INLINE)
			memset(model_a + slot, 0xEE, len);
	}
	/* Receives first, or, now and then, last: then the sender has to try again. */
	int late = !below(5);
	if (!late && receives && end_recv_list(b, recv, (int)receives, NULL))
		die("batch %u: ibv_post_recv", number);
	if (below(2)) {
		if (end_send_list(a, send, (int)n, NULL))
			die("batch %u: ibv_post_send", number);
	} else {
		for (unsigned i = 0; i < n; i++)
			if (end_send(a, send[i]))
				die("batch %u: ibv_post_send", number);
	}
	if (late && receives && end_recv_list(b, recv, (int)receives, NULL))
		die("batch %u: ibv_post_recv", number);
	for (unsigned i = 0; i < n; i++) {
		if (!(send[i].flags & IBV_SEND_SIGNALED))
			continue;
		struct ibv_wc w = { .status = IBV_WC_GENERAL_ERR };
		int came = end_try(a, SENDS, &w, WAIT_US);
		if (!came || w.status || w.wr_id != send[i].id)
			describe(send, n, late);
		if (!came)
			die("batch %u, request %u of %u: no completion came", number, i, n);
		if (w.status || w.wr_id != send[i].id)
			die("batch %u, request %u of %u (opcode %d): %s, id %llx", number, i, n, send[i].op, ibv_wc_status_str(w.status), (unsigned long long)w.wr_id);
	}
	for (unsigned i = 0, r = 0; r < receives; i++) {
		int sends = send[i].op == IBV_WR_SEND || send[i].op == IBV_WR_SEND_WITH_IMM;
		if (!sends && send[i].op != IBV_WR_RDMA_WRITE_WITH_IMM)
			continue;
		int imm = send[i].op != IBV_WR_SEND;
		struct ibv_wc w = end_wait(b, RECVS);
		if (w.status || w.wr_id != send[i].id || w.byte_len != lens[i] || !!(w.wc_flags & IBV_WC_WITH_IMM) != imm || (imm && w.imm_data != send[i].imm))
			die("batch %u, receive %u: %s, id %llx, length %u", number, r, ibv_wc_status_str(w.status), (unsigned long long)w.wr_id, w.byte_len);
		r++;
	}
	end_read(b, 0, seen, SIZE);
	if (memcmp(seen, model_b, SIZE)) {
		size_t at = 0;
		while (seen[at] == model_b[at])
			at++;
		die("batch %u: the responder's memory differs at %zx", number, at);
	}
	end_read(a, 0, seen, sizeof model_a);
	if (memcmp(seen, model_a, sizeof model_a)) {
		size_t at = 0;
		while (seen[at] == model_a[at])
			at++;
		die("batch %u: the requester's memory differs at %zx (request %zu)", number, at, at / SLOT);
	}
}

int main(int argc, char **argv)
{
	int two = two_processes(argc, argv);
	const char *text = getenv("TEST_SEED");
	uint64_t seed = text ? strtoull(text, NULL, 0) : (now_us() * 2654435761u ^ (uint64_t)getpid() << 20);
	printf("TEST_SEED=%llu\n", (unsigned long long)seed);
	fflush(stdout);
	state = seed;
	a = end_new(0);
	b = end_new(two);
	struct options o = defaults();
	o.inl = 200;
	pair_open(a, b, o, &aa, &ba);
	end_write(b, 0, model_b, SIZE);
	const char *number = getenv("TEST_BATCHES");
	unsigned batches = number ? (unsigned)strtoul(number, NULL, 0) : 400;
	for (unsigned i = 0; i < batches; i++)
		batch(i);
	check(1, "%u random batches", batches);
	pair_close(a, b);
	end_free(b);
	end_free(a);
	return finish();
}
