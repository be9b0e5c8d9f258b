/*
 * Measures the limits of this machine without any library. A line has a name and a value: one-way
 * latencies in microseconds, bandwidths in GB/s (1e9), rates in million per second.
 *
 * usage: limits CPU_A CPU_B [NAME...]
 *
 * Without names, the program measures all limits.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		perror("limits: sched_setaffinity");
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *values, int n)
{
	qsort(values, (size_t)n, sizeof(*values), by_value);
	return values[n / 2];
}

static char **names;
static int name_count;

/* True if the caller wants the limit with this name. */
__attribute__((format(printf, 1, 2))) static int wanted(const char *format, ...)
{
	char name[64];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(name, sizeof(name), format, arguments);
	va_end(arguments);
	for (int n = 0; n < name_count; n++)
		if (!strcmp(names[n], name))
			return 1;
	return !name_count;
}

#define RUNS 15
#define LARGE (64u << 20)
/* The buffers through which two processes copy. */
#define PART 16384
#define PARTS 32

static const struct { const char *name; size_t size; int reps; } bulk[] = {
	{ "64K", 65536, 400 }, { "1M", 1 << 20, 40 }, { "8M", 8 << 20, 5 },
};
enum { BULKS = sizeof(bulk) / sizeof(bulk[0]) };

struct shared {
	_Alignas(128) volatile uint64_t ping;
	_Alignas(128) volatile uint64_t pong;
	_Alignas(128) volatile int ready;
	void *memory;
	_Alignas(128) volatile uint64_t filled;
	_Alignas(128) volatile uint64_t emptied;
	_Alignas(128) char pipe[PARTS][PART];
};

/* Copies `size` bytes `reps` times from one process to the peer through shared buffers; each
 * process runs one half. */
static void pipe_out(struct shared *s, char *to, size_t size, int reps)
{
	for (int k = 0; k < reps; k++)
		for (size_t at = 0; at < size; at += PART) {
			uint64_t n = s->emptied;

			while (__atomic_load_n(&s->filled, __ATOMIC_ACQUIRE) == n)
				;
			memcpy(to + at, s->pipe[n % PARTS], PART);
			__asm__ volatile("" ::: "memory");
			__atomic_store_n(&s->emptied, n + 1, __ATOMIC_RELEASE);
		}
}

static void pipe_in(struct shared *s, const char *from, size_t size, int reps)
{
	for (int k = 0; k < reps; k++)
		for (size_t at = 0; at < size; at += PART) {
			uint64_t n = s->filled;

			while (n - __atomic_load_n(&s->emptied, __ATOMIC_ACQUIRE) == PARTS)
				;
			memcpy(s->pipe[n % PARTS], from + at, PART);
			__atomic_store_n(&s->filled, n + 1, __ATOMIC_RELEASE);
		}
	while (s->emptied != s->filled)
		;
}

int main(int argc, char **argv)
{
	struct shared *s = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int cpu_a = argc > 2 ? atoi(argv[1]) : 0, cpu_b = argc > 2 ? atoi(argv[2]) : 1;
	enum { HOPS = 200000 };
	double runs[RUNS];
	char *mine;
	pid_t child;

	if (argc > 3) {
		names = argv + 3;
		name_count = argc - 3;
	}

	if (s == MAP_FAILED)
		return 2;
	child = fork();
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		pin(cpu_b);
		s->memory = mmap(NULL, LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
		s->ready = 1;
		for (uint64_t i = 1; wanted("hop") && i <= (uint64_t)HOPS * RUNS; i++) {
			while (s->ping != i)
				;
			s->pong = i;
		}
		for (unsigned b = 0; b < BULKS; b++)
			for (int r = 0; wanted("copied_twice_%s", bulk[b].name) && r < RUNS; r++)
				pipe_out(s, s->memory, bulk[b].size, bulk[b].reps);
		for (;;)
			pause();
	}
	pin(cpu_a);
	while (!s->ready)
		;
	uint64_t i = 0;
	for (int r = 0; wanted("hop") && r < RUNS; r++) {
		double start = now();

		for (int h = 0; h < HOPS; h++) {
			s->ping = ++i;
			while (s->pong != i)
				;
		}
		runs[r] = (now() - start) / HOPS / 2 * 1e6;
	}
	if (wanted("hop"))
		printf("hop %.4f\n", median(runs, RUNS));

	mine = mmap(NULL, LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (mine == MAP_FAILED)
		return 2;
	for (unsigned b = 0; b < BULKS; b++) {
		if (!wanted("copied_twice_%s", bulk[b].name))
			continue;
		for (int r = 0; r < RUNS; r++) {
			double start = now();

			pipe_in(s, mine, bulk[b].size, bulk[b].reps);
			runs[r] = (double)bulk[b].size * bulk[b].reps / (now() - start) * 1e-9;
		}
		printf("copied_twice_%s %.4f\n", bulk[b].name, median(runs, RUNS));
	}
	struct iovec local[64], remote[64];

	for (int writing = 0; writing < 2; writing++) {
		const char *way = writing ? "write" : "read";

		for (int r = 0; (wanted("attach_%s_8", way) || wanted("attach_%s_rate", way)) && r < RUNS; r++) {
			double start = now();

			for (int k = 0; k < 3000; k++) {
				local[0] = (struct iovec){ mine, 8 };
				remote[0] = (struct iovec){ s->memory, 8 };
				if ((writing ? process_vm_writev : process_vm_readv)(child, local, 1, remote, 1, 0) != 8) {
					perror("limits: cross-memory attach");
					kill(child, SIGKILL);
					return 1;
				}
			}
			runs[r] = (now() - start) / 3000 * 1e6;
		}
		if (wanted("attach_%s_8", way))
			printf("attach_%s_8 %.4f\n", way, median(runs, RUNS));
		if (wanted("attach_%s_rate", way))
			printf("attach_%s_rate %.4f\n", way, 1 / median(runs, RUNS));
		for (int r = 0; wanted("attach_%s_rate16", way) && r < RUNS; r++) {
			double start = now();

			for (int k = 0; k < 1000; k++) {
				for (int v = 0; v < 16; v++) {
					local[v] = (struct iovec){ mine + v * 64, 8 };
					remote[v] = (struct iovec){ (char *)s->memory + v * 64, 8 };
				}
				if ((writing ? process_vm_writev : process_vm_readv)(child, local, 16, remote, 16, 0) != 128)
					return 1;
			}
			runs[r] = 16000 / (now() - start) * 1e-6;
		}
		if (wanted("attach_%s_rate16", way))
			printf("attach_%s_rate16 %.4f\n", way, median(runs, RUNS));
		for (unsigned b = 0; b < BULKS; b++) {
			if (!wanted("attach_%s_%s", way, bulk[b].name))
				continue;
			for (int r = 0; r < RUNS; r++) {
				double start = now();

				for (int k = 0; k < bulk[b].reps; k++) {
					local[0] = (struct iovec){ mine, bulk[b].size };
					remote[0] = (struct iovec){ s->memory, bulk[b].size };
					if ((writing ? process_vm_writev : process_vm_readv)(child, local, 1, remote, 1, 0) !=
					    (ssize_t)bulk[b].size)
						return 1;
				}
				runs[r] = (double)bulk[b].size * bulk[b].reps / (now() - start) * 1e-9;
			}
			printf("attach_%s_%s %.4f\n", way, bulk[b].name, median(runs, RUNS));
		}
	}
	for (unsigned b = 0; b < BULKS; b++) {
		if (!wanted("memcpy_%s", bulk[b].name))
			continue;
		for (int r = 0; r < RUNS; r++) {
			double start = now();

			for (int k = 0; k < bulk[b].reps; k++) {
				memcpy(mine + LARGE / 2, mine, bulk[b].size);
				__asm__ volatile("" ::: "memory");
			}
			runs[r] = (double)bulk[b].size * bulk[b].reps / (now() - start) * 1e-9;
		}
		printf("memcpy_%s %.4f\n", bulk[b].name, median(runs, RUNS));
	}
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	return 0;
}
