/*
 * A preload that refuses UDP_SEGMENT. REFUSES in the environment is "interface" or "kernel".
 * "interface": like interfaces without checksum offload before Linux 6.11, where a segmented send
 * fails with EIO whatever the options said. "kernel": like kernels before 4.18, without UDP_SEGMENT
 * and UDP_GRO, where a segmented send goes as one oversized datagram. The process prints the number
 * of refusals. Everything else reaches the real kernel.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/* linux/udp.h; the C library has them in newer releases only. */
enum { SEGMENT = 103, GRO = 104 };

static atomic_uint options, sends;

static int by_kernel(void)
{
	const char *what = getenv("REFUSES");

	return what && !strcmp(what, "kernel");
}

static int asks(const struct msghdr *m)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR((struct msghdr *)m, c))
		if (c->cmsg_level == IPPROTO_UDP && c->cmsg_type == SEGMENT)
			return 1;
	return 0;
}

static long refuse(atomic_uint *count, int why)
{
	atomic_fetch_add(count, 1);
	errno = why;
	return -1;
}

static long real(long number, const long *a)
{
	static _Atomic(long (*)(long, ...)) next;

	if (!next)
		next = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
	return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

/* soft sends by the numbers of the calls. */
long syscall(long number, ...)
{
	va_list list;
	long a[6];

	va_start(list, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(list, long);
	va_end(list);
	if (number == SYS_sendmsg && asks((const struct msghdr *)a[1]))
		return refuse(&sends, by_kernel() ? EMSGSIZE : EIO);
	if (number == SYS_sendmmsg) {
		const struct mmsghdr *m = (const struct mmsghdr *)a[1];
		unsigned n = 0;

		while (n < (unsigned)a[2] && !asks(&m[n].msg_hdr))
			n++;
		if (!n && a[2])
			return refuse(&sends, by_kernel() ? EMSGSIZE : EIO);
		/* Those before it go. */
		a[2] = n;
	}
	return real(number, a);
}

int setsockopt(int fd, int level, int name, const void *value, socklen_t len)
{
	if (by_kernel() && level == IPPROTO_UDP && (name == SEGMENT || name == GRO))
		return (int)refuse(&options, ENOPROTOOPT);
	return (int)real(SYS_setsockopt, (long[6]){ fd, level, name, (long)value, len });
}

static void __attribute__((destructor)) tell(void)
{
	if (options || sends)
		fprintf(stderr, "no_offloads: %u options and %u sends refused\n", options, sends);
}
