/*
 * Fork protection under random registrations: records the madvise calls of ibv_dontfork_range and
 * ibv_dofork_range by a local madvise. Runs on rdma-core's library and on Ferroverbs; the output
 * must be equal. ibv_fork_init(3). Also ibv_fork_init called too late, never, and twice.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Functions of the private ABI, which plugins call for their queues. */
int ibv_dontfork_range(void *base, size_t size);
int ibv_dofork_range(void *base, size_t size);

#define PAGE 4096ul
#define PAGES 48ul
/* A fixed address, so both runs print the same. */
#define BASE ((unsigned char *)0x200000000000ul)

static int recording;
/* Counts down to the call that fails; 0: no failure. */
static int fail_in;

int madvise(void *start, size_t len, int advice)
{
	int result;

	if (fail_in && --fail_in == 0) {
		errno = ENOMEM;
		result = -1;
	} else {
		result = (int)syscall(SYS_madvise, start, len, advice);
	}
	if (recording && (unsigned char *)start >= BASE && (unsigned char *)start < BASE + PAGES * PAGE) {
		int error = errno;

		printf("  madvise pages %ld+%lu %s%s\n", ((unsigned char *)start - BASE) / (long)PAGE, len / PAGE,
		       advice == MADV_DONTFORK ? "DONTFORK" : advice == MADV_DOFORK ? "DOFORK" : "?", result ? " failed" : "");
		errno = error;
	}
	return result;
}

static uint32_t rnd(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return (uint32_t)(*state >> 16);
}

static unsigned char *map(unsigned long from, unsigned long pages)
{
	void *got = mmap(BASE + from * PAGE, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);

	if (got == MAP_FAILED) {
		perror("mmap");
		exit(2);
	}
	return got;
}

struct range {
	unsigned char *base;
	size_t size;
};

/*
 * Registers and deregisters ranges; each successful registration is deregistered once. A run ends
 * with the first failure: rdma-core then treats the unmarked part as marked, and leaves the part
 * unprotected at the next registration. Ferroverbs does not copy that defect.
 */
static void run(uint64_t seed, int steps, int failing, int unmapping)
{
	static struct range live[64];
	unsigned n = 0;
	uint64_t state = seed;

	printf("seed %llu\n", (unsigned long long)seed);
	map(0, PAGES);
	for (int step = 0; step < steps; step++) {
		if (n < 64 && (n == 0 || rnd(&state) % 5 < 3)) {
			struct range r = { BASE + rnd(&state) % ((PAGES - 8) * PAGE), 1 + rnd(&state) % (8 * PAGE) };
			int result;

			if (rnd(&state) % 4 == 0) {
				r.base -= (uintptr_t)r.base % PAGE;
				r.size = (1 + rnd(&state) % 8) * PAGE;
			}
			fail_in = failing && rnd(&state) % 4 == 0 ? 1 + (int)(rnd(&state) % 3) : 0;
			printf("dontfork %td+%zu\n", r.base - BASE, r.size);
			errno = 0;
			result = ibv_dontfork_range(r.base, r.size);
			printf("  = %d errno %d\n", result, errno);
			fail_in = 0;
			if (result)
				return;
			live[n++] = r;
		} else {
			unsigned i = rnd(&state) % n;
			struct range r = live[i];
			int result;

			live[i] = live[--n];
			if (unmapping && rnd(&state) % 4 == 0) {
				unsigned long page = (unsigned long)(r.base - BASE) / PAGE;

				/* Freed before it was deregistered: a bug of the application that must stay harmless. */
				munmap(BASE + page * PAGE, PAGE);
			}
			printf("dofork %td+%zu\n", r.base - BASE, r.size);
			result = ibv_dofork_range(r.base, r.size);
			printf("  = %d\n", result);
		}
	}
	while (n--) {
		printf("dofork %td+%zu\n", live[n].base - BASE, live[n].size);
		printf("  = %d\n", ibv_dofork_range(live[n].base, live[n].size));
	}
}

static void too_late(void)
{
	map(0, PAGES);
	printf("before: status %d\n", ibv_is_fork_initialized());
	printf("range without support: %d\n", ibv_dontfork_range(BASE, PAGE));
	printf("too late: %d\n", ibv_fork_init());
	printf("and then: status %d\n", ibv_is_fork_initialized());
	printf("range back: %d\n", ibv_dofork_range(BASE, PAGE));
}

static uint64_t seed;

static void in_time(void)
{
	printf("init: %d, again: %d\n", ibv_fork_init(), ibv_fork_init());
	printf("status %d\n", ibv_is_fork_initialized());
	printf("nothing: %d %d\n", ibv_dontfork_range(BASE, 0), ibv_dofork_range(BASE, 0));
	printf("nowhere: %d %d\n", ibv_dontfork_range(NULL, PAGE), ibv_dofork_range(NULL, PAGE));
	recording = 1;
	for (seed = 1; seed <= 20; seed++)
		run(seed * 0x9e3779b97f4a7c15ull, 120, 0, 0);
}

static void refused(void)
{
	ibv_fork_init();
	recording = 1;
	run(seed * 0x9e3779b97f4a7c15ull, 120, 1, 0);
}

static void unmapped(void)
{
	ibv_fork_init();
	recording = 1;
	run(seed * 0x9e3779b97f4a7c15ull, 120, 0, 1);
}

static void never(void)
{
	fail_in = 1;
	printf("a kernel without the advice: %d\n", ibv_fork_init());
	printf("status %d\n", ibv_is_fork_initialized());
}

static void by_environment(void)
{
	setenv("RDMAV_HUGEPAGES_SAFE", "1", 1);
	printf("init: %d\n", ibv_fork_init());
	recording = 1;
	run(0xfeed, 100, 0, 0);
}

/* A process of its own, as fork support is turned on once in a life. */
static void in_child(const char *name, void (*part)(void))
{
	int status;
	pid_t child;

	printf("-- %s\n", name);
	fflush(stdout);
	child = fork();
	if (child == 0) {
		part();
		fflush(stdout);
		_exit(0);
	}
	if (waitpid(child, &status, 0) != child || status != 0) {
		printf("%s ended with status %x\n", name, status);
		exit(1);
	}
}

int main(void)
{
	in_child("too late", too_late);
	in_child("in time", in_time);
	in_child("never", never);
	in_child("by environment", by_environment);
	for (seed = 1; seed <= 30; seed++) {
		in_child("refused", refused);
		in_child("unmapped", unmapped);
	}
	return 0;
}
