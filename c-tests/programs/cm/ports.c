/*
 * Ports of ids: unspecified ports come from the kernel's ephemeral range, and reserved ports need
 * CAP_NET_BIND_SERVICE, for any user.
 */
#include "checks.h"

#include <linux/capability.h>
#include <rdma/rdma_cma.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static struct rdma_event_channel *channel;

/* Numbers of a file of the kernel. */
static int read_two(const char *path, int *one, int *two)
{
	FILE *file = fopen(path, "r");
	int count = file ? fscanf(file, "%d %d", one, two) : -1;

	if (file)
		fclose(file);
	return count;
}

/* 0, or the errno with which an id is not bound to a port; then its port. */
static int bound(int *port)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons((uint16_t)*port) };
	struct rdma_cm_id *id;

	CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_IB));
	int why = rdma_bind_addr(id, (struct sockaddr *)&at) ? errno : 0;

	*port = ntohs(rdma_get_src_port(id));
	CHECK(!rdma_destroy_id(id));
	return why;
}

/* Whether the capability is in effect; `give_up`: drops the capability first. */
static int has_capability(int give_up)
{
	struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct sets[2];
	unsigned it = 1u << CAP_NET_BIND_SERVICE;

	CHECK(!syscall(SYS_capget, &header, sets));
	int had = (sets[0].effective & it) != 0;

	if (give_up) {
		sets[0].effective &= ~it;
		CHECK(!syscall(SYS_capset, &header, sets));
	}
	return had;
}

int main(void)
{
	int first = 32768, last = 60999, begin = 1024, none, port = 0;

	read_two("/proc/sys/net/ipv4/ip_local_port_range", &first, &last);
	read_two("/proc/sys/net/ipv4/ip_unprivileged_port_start", &begin, &none);
	channel = rdma_create_event_channel();
	for (int i = 0; i < 8; i++) {
		port = 0;
		CHECK(!bound(&port));
		CHECK(first <= port && port <= last);
	}
	CHECK(!bound(&port));
	if (begin > 1) {
		port = begin - 1;
		if (has_capability(1))
			printf("it was in effect until now\n");
		CHECK(bound(&port) == EACCES);
		port = begin;
		CHECK(!bound(&port));
	}
	return failures != 0;
}
