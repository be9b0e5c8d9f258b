/*
 * A preload with an RDMA netlink family that answers nonsense: nearly valid messages (an RDMA
 * device, its character device, an end) with wrong lengths, types and strings, cut short, repeated,
 * or empty. NONSENSE in the environment is the seed. All further sockets are real.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define AF_NETLINK_ 16
#define NETLINK_RDMA_ 20

static int fds[64], fd_count;
static uint64_t state;

static uint32_t rnd(void)
{
	if (!state) {
		const char *seed = getenv("NONSENSE");

		state = strtoull(seed ? seed : "1", NULL, 0) * 0x9e3779b97f4a7c15ull | 1;
	}
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (uint32_t)(state >> 16);
}

int socket(int domain, int type, int protocol)
{
	int pair[2];

	if (domain != AF_NETLINK_ || protocol != NETLINK_RDMA_ || fd_count == 64)
		return (int)syscall(SYS_socket, domain, type, protocol);
	/* Any descriptor does; nothing goes through it. */
	if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, pair))
		return -1;
	close(pair[1]);
	fds[fd_count++] = pair[0];
	return pair[0];
}

static int is_ours(int fd)
{
	for (int i = 0; i < fd_count; i++)
		if (fds[i] == fd)
			return 1;
	return 0;
}

ssize_t send(int fd, const void *buf, size_t len, int flags)
{
	if (is_ours(fd))
		return rnd() % 32 ? (ssize_t)len : 0;
	return (ssize_t)syscall(SYS_sendto, fd, buf, len, flags, NULL, 0);
}

static size_t put_attr(unsigned char *at, uint16_t kind, const void *value, size_t len)
{
	uint16_t size = (uint16_t)(4 + len);

	memset(at, 0, (size + 3u) & ~3u);
	memcpy(at, &size, 2);
	memcpy(at + 2, &kind, 2);
	memcpy(at + 4, value, len);
	return (size + 3u) & ~3u;
}

static size_t put_message(unsigned char *at, uint16_t kind)
{
	static const char *const names[] = { "rxe0", "", "../../../../etc/passwd", "a/b", "\xff\xfe\x01",
					     "a-name-that-is-much-longer-than-any-name-a-device-can-have-in-this-life-or-the-next-one" };
	const char *name = names[rnd() % 6];
	uint32_t index = rnd() % 4, ports = rnd() % 3 ? 1 : rnd(), driver = rnd() % 40;
	uint64_t guid = rnd(), dev = rnd() % 2 ? 0xe7c0 : rnd(), abi = rnd() % 8;
	unsigned char type = (unsigned char)rnd();
	size_t len = 16;
	uint32_t total;

	memset(at, 0, 16);
	len += put_attr(at + len, 1, &index, 4);
	len += put_attr(at + len, 2, name, strlen(name) + rnd() % 2);
	len += put_attr(at + len, 3, &ports, 4);
	len += put_attr(at + len, 6, &guid, 8);
	len += put_attr(at + len, 14, &type, 1);
	len += put_attr(at + len, 70, "uverbs0", 8);
	len += put_attr(at + len, 71, &abi, 8);
	len += put_attr(at + len, 72, &dev, 8);
	len += put_attr(at + len, 73, &driver, 4);
	len += put_attr(at + len, 93, &type, 1);
	total = (uint32_t)len;
	memcpy(at, &total, 4);
	memcpy(at + 4, &kind, 2);
	return len;
}

static size_t answer(unsigned char *at)
{
	static const uint32_t lengths[] = { 0, 1, 15, 16, 17, 0xffff, 0x7fffffff, 0xffffffff };
	size_t len = 0;
	uint16_t done = 3, error = 2;

	switch (rnd() % 12) {
	case 0:
		return 0;
	case 1: /* noise */
		len = rnd() % 400;
		for (size_t i = 0; i < len; i++)
			at[i] = (unsigned char)rnd();
		return len;
	default:
		break;
	}
	for (unsigned n = 1 + rnd() % 3; n--;)
		len += put_message(at + len, (uint16_t)(5 << 10 | rnd() % 20));
	if (rnd() % 2) {
		int code = rnd() % 2 ? 0 : -(int)(rnd() % 200);

		memset(at + len, 0, 20);
		at[len] = 20;
		memcpy(at + len + 4, rnd() % 2 ? &done : &error, 2);
		memcpy(at + len + 16, &code, 4);
		len += 20;
	}
	for (unsigned n = rnd() % 4; n--;) {
		if (rnd() % 2)
			memcpy(at, &lengths[rnd() % 8], 4);	/* the first message's length */
		else
			at[rnd() % len] = (unsigned char)rnd();
	}
	return rnd() % 4 ? len : rnd() % (len + 1);
}

ssize_t recv(int fd, void *buf, size_t room, int flags)
{
	static unsigned char bytes[4096];
	size_t len;

	if (!is_ours(fd))
		return (ssize_t)syscall(SYS_recvfrom, fd, buf, room, flags, NULL, NULL);
	if (rnd() % 16 == 0) {
		errno = rnd() % 2 ? EAGAIN : ENOBUFS;
		return -1;
	}
	len = answer(bytes);
	if (len > room)
		len = room;
	memcpy(buf, bytes, len);
	return (ssize_t)len;
}
