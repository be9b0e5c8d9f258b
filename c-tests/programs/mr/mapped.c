/*
 * Memory that both processes can map (a System V segment, a sealed memory file, device memory, a
 * device buffer), and memory that soft does not map (a file that may shrink, private memory).
 * Operations, order, atomics and errors are equal for all, before and after the adapter maps the
 * memory. ibv_reg_mr(3), ibv_alloc_dm(3), ibv_alloc_buf(3).
 */
#define _GNU_SOURCE
#include "rig.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/ipc.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/uio.h>

static struct end *a, *b;
static struct address aa, ba;
static int two;

enum { ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC, SIZE = 256 * 1024, USES = 100 };

enum kind { SYSV, SEALED, DEVICE, BUFFER, UNSEALED, POSIX, PRIVATE, KINDS };
static const char *names[] = { "a System V segment", "a sealed memory file", "device memory", "a buffer of ibv_alloc_buf(3)", "a memory file", "POSIX shared memory", "private memory" };

struct memory {
	enum kind kind;
	uint64_t addr;		/* as a peer names it */
	uint32_t rkey;
	uint64_t offset, len;
	uint32_t seed;
	uint64_t word;
	char name[64];		/* as /proc/<pid>/maps has it */
};

/* ---- in b's process: own[0] the memory or device memory, own[1] the region ---- */

static long make(struct parts *p, void *arg)
{
	struct memory *m = arg;
	unsigned char *at = NULL;
	struct ibv_mr *mr;
	int fd;
	if (m->kind == DEVICE) {
		struct ibv_alloc_dm_attr attr = { .length = SIZE };
		struct ibv_dm *dm = ibv_alloc_dm(p->ctx, &attr);
		mr = dm ? ibv_reg_dm_mr(p->pd, dm, 0, SIZE, ALL | IBV_ACCESS_ZERO_BASED) : NULL;
		p->own[0] = dm;
		strcpy(m->name, "memfd:ferroverbs-dm");
	} else if (m->kind == BUFFER) {
		/* Newer than the headers this is compiled against. */
		void *(*alloc)(struct ibv_pd *, size_t, void **) = (void *(*)(struct ibv_pd *, size_t, void **))dlsym(RTLD_DEFAULT, "ibv_alloc_buf");
		at = alloc ? alloc(p->pd, SIZE, &p->own[2]) : NULL;
		mr = at ? ibv_reg_mr(p->pd, at, SIZE, ALL) : NULL;
		p->own[0] = at;
		strcpy(m->name, "memfd:ferroverbs-buf");
	} else {
		int flags = MAP_SHARED;
		switch (m->kind) {
		case SYSV:
			fd = shmget(IPC_PRIVATE, SIZE, 0600);
			at = fd < 0 ? NULL : shmat(fd, NULL, 0);
			shmctl(fd, IPC_RMID, NULL);
			strcpy(m->name, "SYSV00000000");
			break;
		case SEALED:
		case UNSEALED:
			fd = memfd_create("mapped-test", MFD_ALLOW_SEALING);
			if (fd < 0 || ftruncate(fd, SIZE) || (m->kind == SEALED && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK)))
				return errno;
			strcpy(m->name, "memfd:mapped-test");
			break;
		case POSIX:
			snprintf(m->name, sizeof m->name, "/mapped-test-%d", getpid());
			fd = shm_open(m->name, O_RDWR | O_CREAT | O_EXCL, 0600);
			if (fd < 0 || ftruncate(fd, SIZE))
				return errno;
			shm_unlink(m->name);
			break;
		default:
			flags = MAP_PRIVATE | MAP_ANONYMOUS;
			strcpy(m->name, "no such name");
			fd = -1;
		}
		if (m->kind != SYSV)
			at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, flags, fd, 0);
		p->own[2] = (void *)(intptr_t)fd;
		if (!at || at == MAP_FAILED)
			return errno;
		memset(at, 0, SIZE);
		mr = ibv_reg_mr(p->pd, at, SIZE, ALL);
		p->own[0] = at;
	}
	if (!mr)
		return errno;
	p->own[1] = mr;
	m->addr = (uintptr_t)at;
	m->rkey = mr->rkey;
	return 0;
}

static long unmake(struct parts *p, void *arg)
{
	struct memory *m = arg;
	long bad = 0;
	if (p->own[1])
		bad = ibv_dereg_mr(p->own[1]);
	if (m->kind == DEVICE)
		bad |= ibv_free_dm(p->own[0]);
	else if (m->kind == BUFFER)
		((void (*)(void *))dlsym(RTLD_DEFAULT, "ibv_free_buf"))(p->own[2]);
	else if (m->kind == SYSV)
		bad |= shmdt(p->own[0]);
	else
		bad |= munmap(p->own[0], SIZE);
	if (m->kind == SEALED || m->kind == UNSEALED || m->kind == POSIX)
		close((int)(intptr_t)p->own[2]);
	p->own[1] = NULL;
	return bad;
}

static long dereg(struct parts *p, void *arg)
{
	(void)arg;
	int err = ibv_dereg_mr(p->own[1]);
	p->own[1] = NULL;
	return err;
}

static void fetch(struct parts *p, const struct memory *m, void *to, uint64_t offset, uint64_t len)
{
	if (m->kind == DEVICE) {
		/* In words. */
		static unsigned char words[SIZE];
		uint64_t first = offset & ~3ull, last = (offset + len + 3) & ~3ull;
		ibv_memcpy_from_dm(words, p->own[0], first, last - first);
		memcpy(to, words + (offset - first), len);
	} else
		memcpy(to, (unsigned char *)p->own[0] + offset, len);
}

/* 0 if the memory has the pattern. */
static long look(struct parts *p, void *arg)
{
	struct memory *m = arg;
	static unsigned char got[SIZE];
	fetch(p, m, got, m->offset, m->len);
	return verify(got, m->len, m->seed) >= 0;
}

static long word(struct parts *p, void *arg)
{
	struct memory *m = arg;
	fetch(p, m, &m->word, m->offset, 8);
	return 0;
}

/* The owner changes the bytes itself. */
static long change(struct parts *p, void *arg)
{
	struct memory *m = arg;
	static unsigned char bytes[SIZE];
	fill(bytes, m->len, m->seed);
	if (m->kind == DEVICE) {
		static unsigned char words[SIZE];
		uint64_t first = m->offset & ~3ull, last = (m->offset + m->len + 3) & ~3ull;
		fetch(p, m, words, first, last - first);
		memcpy(words + (m->offset - first), bytes, m->len);
		return ibv_memcpy_to_dm(p->own[0], first, words, last - first);
	}
	memcpy((unsigned char *)p->own[0] + m->offset, bytes, m->len);
	return 0;
}

/* ---- in a's process ---- */

/* How many mappings of this name the process has. */
static long mappings(struct parts *p, void *arg)
{
	struct memory *m = arg;
	char line[512];
	long n = 0;
	FILE *maps = fopen("/proc/self/maps", "r");
	(void)p;
	while (maps && fgets(line, sizeof line, maps))
		n += strstr(line, m->name) != NULL;
	if (maps)
		fclose(maps);
	return n;
}

/* Whether cross-memory attach works. */
static int can_attach(void)
{
	int from = 7, to = 0;
	struct iovec l = { &to, sizeof to }, r = { &from, sizeof from };
	const char *cma = getenv("FERROVERBS_SOFT_CMA");
	return !(cma && !strcmp(cma, "off")) && process_vm_readv(getpid(), &l, 1, &r, 1, 0) == sizeof to;
}

static void uses(enum kind kind)
{
	struct memory m = { .kind = kind };
	const char *what = names[kind];
	uint64_t state = 42 + kind;
	pair_open(a, b, defaults(), &aa, &ba);
	if (end_run(b, make, &m, sizeof m))
		die("%s: %s", what, strerror(errno));
	int wrong = 0;
	for (int i = 0; i < USES; i++) {
		m.len = i < 20 ? (uint64_t)i : rnd(&state) % (i % 3 ? 300 : 100000) + 1;
		m.offset = 4096 + rnd(&state) % 70000;
		m.seed = (uint32_t)i;
		end_fill(a, 0x1003, m.len, m.seed);
		wrong += end_access(a, IBV_WR_RDMA_WRITE, 0x1003, (uint32_t)m.len, m.addr + m.offset, m.rkey).status != IBV_WC_SUCCESS;
		wrong += end_run(b, look, &m, sizeof m) != 0;
		m.seed += 1000;
		end_run(b, change, &m, sizeof m);
		wrong += end_access(a, IBV_WR_RDMA_READ, 0x100005, (uint32_t)m.len, m.addr + m.offset, m.rkey).status != IBV_WC_SUCCESS;
		wrong += end_verify(a, 0x100005, m.len, m.seed) >= 0;
	}
	check_eq(wrong, 0, "%s: writes and reads that failed or brought other bytes", what);
	/* Atomics of the peer, in turns with atomics of the owner through its own connection. */
	for (int i = 0; i < USES; i++) {
		uint64_t old;
		wrong += end_access(a, IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 8, m.addr + 64, m.rkey).status != IBV_WC_SUCCESS;
		end_read(a, 0, &old, 8);
		wrong += old != (uint64_t)i;
	}
	m.offset = 64;
	end_run(b, word, &m, sizeof m);
	check(!wrong && m.word == USES, "%s: atomics add up", what);
	/* Many in a list. */
	struct request list[32];
	for (int i = 0; i < 32; i++) {
		list[i] = one_piece(IBV_WR_RDMA_WRITE, (uint64_t)i, (uint64_t)i * 64, 8);
		list[i].raddr = m.addr + 128 + (uint64_t)(i % 8) * 8;
		list[i].rkey = m.rkey;
	}
	end_fill(a, 0, 4096, 9);
	uint64_t last[8], want;
	if (end_send_list(a, list, 32, NULL))
		die("ibv_post_send");
	for (int i = 0; i < 32; i++)
		wrong += end_wait(a, SENDS).status != IBV_WC_SUCCESS;
	for (int i = 0; i < 8; i++) {
		m.offset = 128 + (uint64_t)i * 8;
		end_run(b, word, &m, sizeof m);
		last[i] = m.word;
		end_read(a, (uint64_t)(24 + i) * 64, &want, 8);
		wrong += last[i] != want;
	}
	check_eq(wrong, 0, "%s: a list of writes, the last of each place stays", what);
	if (two) {
		long n = end_run(a, mappings, &m, sizeof m);
		int direct = can_attach() && !hosts_differ() && (kind == SYSV || kind == SEALED || kind == DEVICE || kind == BUFFER);
		check(direct ? n > 0 : n == 0, "%s: %s", what, direct ? "is mapped by the peer" : "is not mapped by the peer");
	}
	/* Its end: the key is stale at once, however the memory was reached. */
	check_eq(end_access(a, IBV_WR_RDMA_WRITE, 0, 8, m.addr, m.rkey).status, IBV_WC_SUCCESS, "%s: the last use", what);
	check_eq(end_run(b, dereg, NULL, 0), 0, "ibv_dereg_mr");
	check_eq(end_access(a, IBV_WR_RDMA_WRITE, 0, 8, m.addr, m.rkey).status, IBV_WC_REM_ACCESS_ERR, "%s: its key afterwards", what);
	check_eq(end_run(b, unmake, &m, sizeof m), 0, "%s: given back", what);
	pair_close(a, b);
	if (two)
		check_eq(end_run(a, mappings, &m, sizeof m), 0, "%s: no mapping is left when the connection is gone", what);
}

/* A region is replaced by another one at the same addresses: writes reach the new region. */
static void replaced(void)
{
	pair_open(a, b, defaults(), &aa, &ba);
	int wrong = 0;
	for (int round = 0; round < 6; round++) {
		struct memory m = { .kind = (enum kind)(round % 2 ? SEALED : SYSV) };
		if (end_run(b, make, &m, sizeof m))
			die("making memory");
		for (int i = 0; i < 40; i++) {
			m.len = 64;
			m.offset = (uint64_t)i * 64;
			m.seed = (uint32_t)(round * 100 + i);
			end_fill(a, 0, 64, m.seed);
			wrong += end_access(a, IBV_WR_RDMA_WRITE, 0, 64, m.addr + m.offset, m.rkey).status != IBV_WC_SUCCESS;
			wrong += end_run(b, look, &m, sizeof m) != 0;
		}
		end_run(b, unmake, &m, sizeof m);
	}
	check_eq(wrong, 0, "writes to regions that follow each other at the same place");
	pair_close(a, b);
}

int main(int argc, char **argv)
{
	two = two_processes(argc, argv);
	a = end_new(0);
	b = end_new(two);
	for (int kind = 0; kind < KINDS; kind++)
		uses((enum kind)kind);
	replaced();
	end_free(b);
	end_free(a);
	return finish();
}
