/*
 * Regions of files of memory: which files ibv_reg_dmabuf_mr(3) takes, what peers read and write
 * there, and what happens when the file loses its pages. Where the kernel has /dev/udmabuf, also a
 * DMA-BUF.
 */
#define _GNU_SOURCE
#include "rig.h"
#include <fcntl.h>
#include <linux/udmabuf.h>
#include <sys/ioctl.h>

static struct end *a, *b;
static struct address aa, ba;

enum {
	ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
	PAGE = 4096,
	LEN = 300 * PAGE,
};

/* ---- what end_run runs; own[1] is the region, own[2] a mapping of the file ---- */

enum file { MEMORY, SEALED, READ_ONLY, MINUS_ONE, CLOSED, PIPE, NULL_DEVICE, ORDINARY, DMA_BUF };

struct region {
	enum file file;
	int access;
	uint64_t offset, length, iova;
	uint32_t lkey, rkey;	/* out */
	int fd;			/* out; -1: closed */
};

static int memory_file(unsigned flags)
{
	int fd = memfd_create("dmabuf", MFD_CLOEXEC | flags);
	if (fd < 0 || ftruncate(fd, LEN))
		die("memfd_create: %s", strerror(errno));
	return fd;
}

static int open_file(enum file file)
{
	int fd = -1, ends[2];
	char path[32];
	switch (file) {
	case MEMORY:
		return memory_file(0);
	case SEALED:
	case DMA_BUF:
		fd = memory_file(MFD_ALLOW_SEALING);
		if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK))
			die("F_ADD_SEALS");
		break;
	case READ_ONLY:
		snprintf(path, sizeof path, "/proc/self/fd/%d", memory_file(0));
		return open(path, O_RDONLY | O_CLOEXEC);
	case CLOSED:
		fd = memory_file(0);
		close(fd);
		break;
	case PIPE:
		if (pipe(ends))
			die("pipe");
		return ends[0];
	case NULL_DEVICE:
		return open("/dev/null", O_RDWR | O_CLOEXEC);
	case ORDINARY:
		return open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	case MINUS_ONE:
		break;
	}
	if (file == DMA_BUF) {
		struct udmabuf_create want = { .memfd = (uint32_t)fd, .flags = UDMABUF_FLAGS_CLOEXEC, .size = LEN };
		int maker = open("/dev/udmabuf", O_RDWR | O_CLOEXEC);
		int made = maker < 0 ? -1 : ioctl(maker, UDMABUF_CREATE, &want);
		if (made < 0)
			die("/dev/udmabuf: %s", strerror(errno));
		close(maker);
		close(fd);
		return made;
	}
	return fd;
}

static long reg(struct parts *p, void *arg)
{
	struct region *r = arg;
	int fd = open_file(r->file);
	errno = 0;
	struct ibv_mr *mr = ibv_reg_dmabuf_mr(p->pd, r->offset, r->length, r->iova, fd, r->access);
	p->own[1] = mr;
	if (!mr)
		return errno;
	p->own[2] = mmap(NULL, LEN, PROT_READ | (r->file == READ_ONLY ? 0 : PROT_WRITE), MAP_SHARED, fd, 0);
	if (p->own[2] == MAP_FAILED)
		die("mmap: %s", strerror(errno));
	r->lkey = mr->lkey;
	r->rkey = mr->rkey;
	r->fd = fd;
	/* rdma-core shows the offset as the address. */
	return mr->addr == (void *)(uintptr_t)r->offset && mr->length == r->length ? 0 : -1;
}

static long shut(struct parts *p, void *arg)
{
	(void)p;
	return close(((struct region *)arg)->fd);
}

static long shrink(struct parts *p, void *arg)
{
	(void)p;
	return ftruncate(((struct region *)arg)->fd, 0);
}

static long dereg(struct parts *p, void *arg)
{
	(void)arg;
	return ibv_dereg_mr(p->own[1]) | munmap(p->own[2], LEN);
}

struct bytes {
	uint64_t offset, len;
	uint32_t seed;
};

static long look(struct parts *p, void *arg)
{
	struct bytes *w = arg;
	return verify((unsigned char *)p->own[2] + w->offset, w->len, w->seed);
}

static long put(struct parts *p, void *arg)
{
	struct bytes *w = arg;
	fill((unsigned char *)p->own[2] + w->offset, w->len, w->seed);
	return 0;
}

/* ---- */

static struct ibv_wc remote(enum ibv_wr_opcode op, uint64_t addr, uint32_t len, uint32_t rkey)
{
	return end_access(a, op, 0, len, addr, rkey);
}

static void accepted(void)
{
	static const struct {
		const char *what;
		struct region r;
		int wanted;
	} c[] = {
		{ "a memory file", { .length = LEN, .access = ALL }, 0 },
		{ "its last page", { .offset = LEN - PAGE, .length = PAGE, .access = ALL }, 0 },
		{ "with an address of its own", { .offset = 100, .length = PAGE, .iova = 0x7000000064, .access = ALL }, 0 },
		{ "with relaxed order", { .length = PAGE, .access = ALL | IBV_ACCESS_RELAXED_ORDERING }, 0 },
		{ "to read, by a descriptor for reading", { .file = READ_ONLY, .length = PAGE, .access = IBV_ACCESS_REMOTE_READ }, 0 },
		{ "to write, by a descriptor for reading", { .file = READ_ONLY, .length = PAGE, .access = ALL }, EACCES },
		{ "a byte beyond the end", { .offset = 1, .length = LEN, .iova = 1, .access = ALL }, EINVAL },
		{ "a range that wraps around", { .offset = ~0ull - PAGE + 1, .length = 2 * PAGE, .access = ALL }, EINVAL },
		{ "no bytes", { .access = ALL }, EINVAL },
		{ "an address with another offset in its page", { .offset = 100, .length = PAGE, .access = ALL }, EINVAL },
		{ "remote write without local", { .length = PAGE, .access = IBV_ACCESS_REMOTE_WRITE }, EINVAL },
		{ "on demand", { .length = PAGE, .access = ALL | IBV_ACCESS_ON_DEMAND }, EINVAL },
		/* NCCL's question and UCX's. */
		{ "descriptor -1, without anything", { .file = MINUS_ONE }, EOPNOTSUPP },
		{ "descriptor -1, a page", { .file = MINUS_ONE, .length = PAGE, .access = ALL }, EOPNOTSUPP },
		{ "a closed descriptor", { .file = CLOSED, .length = PAGE, .access = ALL }, EBADF },
		{ "a pipe", { .file = PIPE, .length = PAGE, .access = ALL }, EOPNOTSUPP },
		{ "a device", { .file = NULL_DEVICE, .length = PAGE, .access = ALL }, EOPNOTSUPP },
		{ "a file of a disk", { .file = ORDINARY, .length = PAGE, .access = 0 }, EOPNOTSUPP },
	};
	pair_open(a, b, defaults(), &aa, &ba);
	for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
		struct region r = c[i].r;
		check_eq(end_run(b, reg, &r, sizeof r), c[i].wanted, "ibv_reg_dmabuf_mr: %s", c[i].what);
		if (!c[i].wanted)
			check_eq(end_run(b, dereg, NULL, 0), 0, "ibv_dereg_mr");
	}
	pair_close(a, b);
}

static void data(const char *what, enum file file)
{
	static const uint32_t sizes[] = { 8, 5000, 70000, 1000000 };
	pair_open(a, b, defaults(), &aa, &ba);
	struct region r = { .file = file, .offset = PAGE + 24, .length = LEN - 2 * PAGE, .iova = 0x7000000018, .access = ALL };
	if (end_run(b, reg, &r, sizeof r))
		die("%s: registration", what);
	/* The region does not need the program's descriptor. */
	check_eq(end_run(b, shut, &r, sizeof r), 0, "%s: the descriptor is closed", what);
	for (uint32_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		struct bytes w = { .offset = PAGE + 24 + 7, .len = sizes[i], .seed = 60 + i };
		end_fill(a, 0, sizes[i], w.seed);
		check_eq(remote(IBV_WR_RDMA_WRITE, r.iova + 7, sizes[i], r.rkey).status, IBV_WC_SUCCESS, "%s: %u bytes are written", what, sizes[i]);
		check_eq(end_run(b, look, &w, sizeof w), -1, "and are in the file");
		w.seed += 10;
		end_run(b, put, &w, sizeof w);
		check_eq(remote(IBV_WR_RDMA_READ, r.iova + 7, sizes[i], r.rkey).status, IBV_WC_SUCCESS, "%s: %u bytes of the file are read", what, sizes[i]);
		check(end_verify(a, 0, sizes[i], w.seed) < 0, "and arrive");
	}
	/* As the memory of a receive and of a SEND. */
	struct request s = one_piece(0, 1, r.iova - ba.addr, 5000);
	s.piece[0].lkey = r.lkey;
	end_fill(a, 0, 5000, 81);
	check_eq(end_recv(b, s) | end_send(a, one_piece(IBV_WR_SEND, 2, 0, 5000)), 0, "%s: a receive and its SEND", what);
	check(end_wait(b, RECVS).status == IBV_WC_SUCCESS && end_wait(a, SENDS).status == IBV_WC_SUCCESS, "complete");
	s.op = IBV_WR_SEND;
	end_recv(a, one_piece(0, 3, 100000, 5000));
	check_eq(end_send(b, s), 0, "%s: a SEND from the file", what);
	check(end_wait(a, RECVS).status == IBV_WC_SUCCESS && end_verify(a, 100000, 5000, 81) < 0, "brings the bytes back");
	end_wait(b, SENDS);
	check_eq(remote(IBV_WR_RDMA_WRITE, r.iova + r.length - 7, 8, r.rkey).status, IBV_WC_REM_ACCESS_ERR, "%s: a byte too far", what);
	check_eq(end_run(b, dereg, NULL, 0), 0, "ibv_dereg_mr");
	pair_close(a, b);
}

/* As memory that is unmapped: what is written is lost, and what would be read is an error. */
static void lost_pages(void)
{
	static const uint32_t sizes[] = { 8, 70000 };
	for (size_t i = 0; i < 2; i++) {
		pair_open(a, b, defaults(), &aa, &ba);
		struct region r = { .length = LEN, .access = ALL };
		if (end_run(b, reg, &r, sizeof r) || end_run(b, shrink, &r, sizeof r))
			die("a file that shrinks");
		check_eq(remote(IBV_WR_RDMA_WRITE, 64, sizes[i], r.rkey).status, IBV_WC_SUCCESS, "%u bytes into pages that the file has lost", sizes[i]);
		check_eq(remote(IBV_WR_RDMA_READ, 64, sizes[i], r.rkey).status, IBV_WC_REM_OP_ERR, "a READ of them");
		check_eq(end_run(b, dereg, NULL, 0), 0, "ibv_dereg_mr");
		pair_close(a, b);
	}
}

int main(int argc, char **argv)
{
	int two = two_processes(argc, argv);
	b = end_new(two);
	a = end_new(0);
	accepted();
	data("a memory file", MEMORY);
	data("a sealed memory file", SEALED);
	if (access("/dev/udmabuf", R_OK | W_OK))
		printf("not run: a DMA-BUF, because /dev/udmabuf is not accessible: %s\n", strerror(errno));
	else
		data("a DMA-BUF", DMA_BUF);
	lost_pages();
	end_free(a);
	end_free(b);
	return finish();
}
