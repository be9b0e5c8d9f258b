/*
 * A failed system call ends no program: either the program sees an error, or everything works. A
 * child makes the calls of first_to_last.h, and the n-th of its system calls fails, for each n
 * (`all`) or for some n (`some`), with each errno that the manual page of the call lists for a
 * working kernel. A filter of seccomp(2) passes the calls to an unfiltered thread of the child.
 * With two numbers as arguments the program is such a child: n, and the index of the errno.
 */
#define _GNU_SOURCE
#include "first_to_last.h"
#include "rig.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

enum { ERRNOS = 2, MOST = 4096, RUNS_OF_SOME = 220 };

/* The system calls that fail, and their errnos. close(2), munmap(2), and calls for signals and
 * threads are left out, because no caller can react to their failure. */
static const struct { int number, errnos[ERRNOS]; const char *name; } kinds[] = {
#define KIND(name, ...) { SYS_##name, { __VA_ARGS__ }, #name }
	KIND(accept4, EMFILE, ENOBUFS),
	KIND(bind, EADDRINUSE, ENOMEM),
	KIND(clone3, EAGAIN),
	KIND(connect, EAGAIN, ECONNREFUSED),
	KIND(dup, EMFILE),
	KIND(epoll_create1, EMFILE, ENOMEM),
	KIND(epoll_ctl, ENOSPC, ENOMEM),
	KIND(epoll_pwait, EINTR),
	KIND(eventfd2, EMFILE, ENOMEM),
	KIND(fchmod, EPERM),
	KIND(fchown, EPERM),
	KIND(fcntl, ENOLCK, EMFILE),
	KIND(fstat, ENOMEM),
	KIND(ftruncate, ENOSPC, EINTR),
	KIND(futex, EINTR),
	KIND(getdents64, EIO),
	KIND(getrandom, ENOSYS),
	KIND(getsockname, ENOBUFS),
	KIND(getsockopt, ENOBUFS),
	KIND(ioctl, EIO),
	KIND(listen, EADDRINUSE),
	KIND(lseek, EIO),
	KIND(madvise, ENOMEM, EINVAL),
	KIND(membarrier, ENOSYS),
	KIND(memfd_create, EMFILE, ENOMEM),
	KIND(mkdirat, ENOSPC, EACCES),
	KIND(mmap, ENOMEM),
	KIND(mprotect, ENOMEM),
	KIND(newfstatat, ENOENT, EACCES),
	KIND(openat, EMFILE, ENOENT),
	KIND(pidfd_open, EMFILE, ENOSYS),
	KIND(pipe2, EMFILE),
	KIND(ppoll, EINTR, ENOMEM),
	KIND(prctl, EINVAL),
	KIND(process_vm_readv, EPERM, ENOMEM),
	KIND(process_vm_writev, EPERM, ENOMEM),
	KIND(read, EINTR, EIO),
	KIND(readlinkat, ENOENT),
	KIND(recvfrom, EINTR, ENOMEM),
	KIND(recvmsg, EINTR, ENOMEM),
	KIND(renameat, ENOSPC),
	KIND(sendmsg, EINTR, ENOBUFS),
	KIND(sendto, EINTR, ENOBUFS),
	KIND(setsockopt, ENOMEM),
	KIND(socket, EMFILE, EAFNOSUPPORT),
	KIND(socketpair, EMFILE),
	KIND(statx, ENOENT, ENOSYS),
	KIND(unlinkat, EACCES),
	KIND(write, EINTR),
#ifdef __x86_64__
	KIND(access, EACCES),
	KIND(epoll_wait, EINTR),
	KIND(mkdir, ENOSPC, EACCES),
	KIND(open, EMFILE, ENOENT),
	KIND(poll, EINTR, ENOMEM),
	KIND(readlink, ENOENT),
	KIND(rename, ENOSPC),
	KIND(unlink, EACCES),
#endif
};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

/* Memory shared between the child and its parent. */
static struct shared {
	/* The kinds of all calls so far, in the order of the calls. */
	int count, kind[MOST];
	/* The errno of the call that failed. */
	int err;
} *shared;

static int listener = -1, nth, which;

static int kind_of(const struct seccomp_data *call)
{
	for (int i = 0; i < KINDS; i++)
		if (kinds[i].number == call->nr) {
			/* A signal interrupts only a sleep. */
			unsigned op = (unsigned)call->args[1] & FUTEX_CMD_MASK;
			return call->nr != SYS_futex || op == FUTEX_WAIT || op == FUTEX_WAIT_BITSET ? i : -1;
		}
	return -1;
}

/* The unfiltered thread, which answers each filtered call. The thread allocates nothing and takes
 * no lock, because a filtered thread may hold the lock. */
static void *decide(void *unused)
{
	struct seccomp_notif asked;
	struct seccomp_notif_resp said;

	while (__atomic_load_n(&listener, __ATOMIC_ACQUIRE) < 0)
		sched_yield();
	for (;;) {
		memset(&asked, 0, sizeof asked);
		if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &asked)) {
			/* ENOENT: a signal ended the call meanwhile. */
			if (errno == EINTR || errno == ENOENT)
				continue;
			return unused;
		}
		said = (struct seccomp_notif_resp){ .id = asked.id, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE };
		int kind = kind_of(&asked.data);
		if (kind >= 0 && shared->count < MOST) {
			shared->kind[shared->count++] = kind;
			if (shared->count == nth) {
				/* The order of threads differs between runs, and so may the kind of call n. */
				shared->err = kinds[kind].errnos[which] ? kinds[kind].errnos[which] : kinds[kind].errnos[0];
				said.error = -shared->err;
				said.flags = 0;
			}
		}
		ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &said);
	}
}

/* Installs the filter in the calling thread. Threads that it starts inherit the filter. */
static void filter(void)
{
	struct sock_filter code[KINDS + 5] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	};
	int n = 1;
	pthread_t thread;

	if (pthread_create(&thread, NULL, decide, NULL))
		die("pthread_create");
	for (int i = 0; i < KINDS; i++, n++)
		code[n] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)kinds[i].number, (unsigned char)(KINDS - i), 0);
	code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF);
	struct sock_fprog program = { (unsigned short)n, code };
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		die("prctl: %m");
	int fd = (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
	if (fd < 0)
		die("seccomp: %m");
	__atomic_store_n(&listener, fd, __ATOMIC_RELEASE);
}

/* ---- the children ---- */

/* The last output of a child. */
static char text[2000];

static int child(void)
{
	struct run_failure done = { 0 };

	filter();
	enum run_result end = first_to_last(&done);
	if (end == REFUSED && done.err == 0)
		end = WRONG;
	if (end != WORKED)
		fprintf(stderr, "%s: %d, %s; %s\n", done.verb ? done.verb : "no verb failed", done.err, strerror(done.err), done.wrong ? done.wrong : "");
	return end;
}

/* Runs a child whose call `n` fails with the errno of this index; returns the wait status. */
static int run(int n, int of_errnos)
{
	if (ftruncate(2, 0) || lseek(2, 0, SEEK_SET))
		die("stderr: %m");
	fflush(stdout);
	shared->count = shared->err = 0;
	nth = n;
	which = of_errnos;
	pid_t pid = fork();
	if (pid == 0) {
		/* The signal ends a child that hangs. */
		alarm(20);
		int status = child();
		/* Threads of the filter are not waited for. */
		fflush(stderr);
		syscall(SYS_exit_group, status);
	}
	int status = -1;
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		die("fork: %m");
	off_t size = lseek(2, 0, SEEK_END);
	ssize_t got = pread(2, text, sizeof text - 1, size > (off_t)sizeof text - 1 ? size - (off_t)sizeof text + 1 : 0);
	text[got > 0 ? got : 0] = 0;
	return status;
}

/* Whether the C library ended the child, for lack of thread-local data. */
static int libc_ended_it(void)
{
	return strstr(text, "cannot allocate memory for thread-local data") || strstr(text, "failed to register TLS destructor");
}

int main(int argc, char **argv)
{
	static int order[MOST];
	int file = memfd_create("stderr", 0), own = dup(2), bad = 0, refused = 0, runs = 0, by_libc = 0;

	setenv("FERROVERBS_QUIET", "1", 1);
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED || file < 0 || own < 0 || dup2(file, 2) < 0)
		die("memfd_create: %m");
	if (argc == 3) {
		int status = run(atoi(argv[1]), atoi(argv[2]));
		printf("status %#x, %s: %s\n", (unsigned)status, kinds[shared->kind[atoi(argv[1]) - 1]].name, text);
		return status != 0;
	}
	check_eq(run(0, 0), 0, "a program whose calls all succeed%s", text);
	int all = shared->count;
	check(all > 100 && all < MOST, "%d of its system calls may fail", all);
	memcpy(order, shared->kind, sizeof order);
	/* Some: the first and the last call of each kind, and one in `step` of all calls. */
	int step = argc == 2 && !strcmp(argv[1], "some") ? 1 + all * ERRNOS / RUNS_OF_SOME : 1;
	for (int n = 1; n <= all; n++) {
		int is_first = 1, is_last = 1;
		for (int i = 0; i < all; i++) {
			is_first &= i >= n - 1 || order[i] != order[n - 1];
			is_last &= i <= n - 1 || order[i] != order[n - 1];
		}
		if (n % step && !is_first && !is_last)
			continue;
		for (int e = 0; e < ERRNOS; e++) {
			if (!kinds[order[n - 1]].errnos[e])
				continue;
			int status = run(n, e), good = WIFEXITED(status) && WEXITSTATUS(status) <= REFUSED;
			int libc = !good && libc_ended_it();
			runs++;
			by_libc += libc;
			refused += good && WEXITSTATUS(status) == REFUSED;
			if (good || libc)
				continue;
			int kind = n <= shared->count ? shared->kind[n - 1] : order[n - 1];
			if (bad++ < 40)
				printf("call %d, %s, errno %d: %s %d: %s\n", n, kinds[kind].name, shared->err,
				       WIFEXITED(status) ? "status" : "signal", WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status), text);
		}
	}
	/* A child whose last calls fail leaves its files in the fabric. The next process removes them. */
	check_eq(run(0, 0), 0, "a program after all these%s", text);
	check(bad == 0, "%d of %d runs end badly", bad, runs);
	check(by_libc <= runs / 20, "the C library ends %d runs for lack of thread-local data", by_libc);
	check(refused > 0, "the program sees an error in %d runs", refused);
	return finish();
}
