/*
 * A failed allocation ends no program: a verb that creates an object fails with ENOMEM, and all
 * other calls use a reserve of the libraries. A child makes the calls of first_to_last.h. The n-th
 * allocation of the child fails, alone or with all later allocations, for each n. With two numbers
 * as arguments the program is such a child, and the allocations between the numbers fail.
 *
 * This file defines malloc(3) and its family, for the libraries too.
 */
#define _GNU_SOURCE
#include "first_to_last.h"
#include "rig.h"
#include <limits.h>
#include <sys/mman.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

/* The range of allocations that fail. The count starts at 1, once `counts` is set. */
static long first, last, count;
static int counts;

static int fails(void)
{
	if (!__atomic_load_n(&counts, __ATOMIC_RELAXED))
		return 0;
	long n = __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED);
	int now = first <= n && n <= last;
	if (now)
		errno = ENOMEM;
	return now;
}

void *malloc(size_t size)
{
	return fails() ? NULL : __libc_malloc(size);
}

void *calloc(size_t n, size_t size)
{
	return fails() ? NULL : __libc_calloc(n, size);
}

void *realloc(void *p, size_t size)
{
	return fails() ? NULL : __libc_realloc(p, size);
}

void *aligned_alloc(size_t align, size_t size)
{
	return fails() ? NULL : __libc_memalign(align, size);
}

void *memalign(size_t align, size_t size)
{
	return fails() ? NULL : __libc_memalign(align, size);
}

int posix_memalign(void **p, size_t align, size_t size)
{
	void *got = fails() ? NULL : __libc_memalign(align, size);

	if (got)
		*p = got;
	return got ? 0 : ENOMEM;
}

/* ---- the children ---- */

/* The last output of a child. */
static char said[2000];

/* Whether the C library ended the child, for lack of thread-local data. */
static int libc_ended_it(void)
{
	return strstr(said, "cannot allocate memory for thread-local data") || strstr(said, "failed to register TLS destructor");
}

/* The exit status of the child; WRONG also if a verb failed for another reason than memory. */
static int child(void)
{
	struct run_failure done = { 0 };
	enum run_result end = first_to_last(&done);

	__atomic_store_n(&counts, 0, __ATOMIC_RELAXED);
	if (end == WORKED)
		return end;
	/* The library reports a plugin that cannot be loaded as a missing plugin;
	 * pthread_create(3) says EAGAIN for memory, too. */
	int is_memory = done.err == ENOMEM || (!strcmp(done.verb, "ibv_get_device_list") && done.err == ENOSYS) ||
			!strcmp(done.verb, "no device") || (!strcmp(done.verb, "ibv_open_device") && done.err == EAGAIN);
	if (end == REFUSED && is_memory)
		return end;
	fprintf(stderr, "%s: %s; %s\n", done.verb ? done.verb : "no verb failed", strerror(done.err), done.wrong ? done.wrong : "no more");
	return WRONG;
}

/* Runs a child whose allocations `from` to `to` fail; returns the wait status. `made`: the number
 * of allocations. */
static int run(long from, long to, long *made)
{
	int ends[2];
	long n = 0;

	if (pipe(ends) || ftruncate(2, 0) || lseek(2, 0, SEEK_SET))
		die("pipe: %m");
	fflush(stdout);
	pid_t pid = fork();
	if (pid == 0) {
		/* The signal ends a child that hangs. */
		alarm(20);
		first = from;
		last = to;
		counts = 1;
		int status = child();
		n = count;
		if (write(ends[1], &n, sizeof n) != sizeof n)
			_exit(WRONG);
		_exit(status);
	}
	int status = -1;
	close(ends[1]);
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		die("fork: %m");
	if (made && read(ends[0], made, sizeof *made) != sizeof *made)
		die("a child without faults does not come to its end");
	close(ends[0]);
	off_t size = lseek(2, 0, SEEK_END);
	ssize_t got = pread(2, said, sizeof said - 1, size > (off_t)sizeof said - 1 ? size - (off_t)sizeof said + 1 : 0);
	said[got > 0 ? got : 0] = 0;
	return status;
}

/* Fails allocation n for each n; `and_later`: with all later allocations. */
static void each(long all, int and_later)
{
	const char *which = and_later ? "and all later ones" : "alone";
	long refused = 0, by_libc = 0, bad = 0;

	for (long n = 1; n <= all; n++) {
		int status = run(n, and_later ? LONG_MAX : n, NULL);
		int good = WIFEXITED(status) && WEXITSTATUS(status) <= REFUSED;
		int libc = !good && libc_ended_it();
		by_libc += libc;
		refused += WIFEXITED(status) && WEXITSTATUS(status) == REFUSED;
		if (!good && !libc && bad++ < 40)
			printf("allocation %ld %s: %s %d: %s\n", n, which, WIFEXITED(status) ? "status" : "signal",
			       WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status), said);
	}
	check(bad == 0, "allocation n %s: %ld runs end badly", which, bad);
	/* Without any memory, the C library also lacks the variables of the plugin's first call. */
	check(by_libc < all / (and_later ? 5 : 20), "allocation n %s: the C library ends %ld runs for lack of thread-local data", which, by_libc);
	check(refused > 0, "allocation n %s: verbs fail with ENOMEM in %ld runs", which, refused);
}

int main(int argc, char **argv)
{
	long all = 0;
	int file = memfd_create("stderr", 0);

	setenv("FERROVERBS_QUIET", "1", 1);
	setenv("RUST_BACKTRACE", "0", 1);
	if (argc == 3)
		return run(atol(argv[1]), atol(argv[2]), NULL);
	if (file < 0 || dup2(file, 2) < 0)
		die("memfd_create: %m");
	check_eq(run(0, 0, &all), 0, "a program whose allocations all succeed");
	check(all > 50, "it has %ld allocations", all);
	each(all, 0);
	each(all, 1);
	return finish();
}
