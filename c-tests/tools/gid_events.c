/* Opens the first device, and prints the addresses that its GID table gains and loses, by GID
 * events. Ends when the address in the argument came and went. */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <string.h>

static int has(struct ibv_context *context, const union ibv_gid *wanted)
{
	struct ibv_port_attr port;
	union ibv_gid gid;

	if (ibv_query_port(context, 1, &port))
		return -1;
	for (int i = 0; i < port.gid_tbl_len; i++)
		if (!ibv_query_gid(context, 1, i, &gid) && !memcmp(&gid, wanted, sizeof(gid)))
			return 1;
	return 0;
}

int main(int argc, char **argv)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = list && list[0] ? ibv_open_device(list[0]) : NULL;
	union ibv_gid wanted;
	int before = 0;

	if (!context || argc != 2 || inet_pton(AF_INET6, argv[1], &wanted) != 1) {
		puts("no device, or no address");
		return 1;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	puts("open");
	for (;;) {
		struct ibv_async_event event;
		int now;

		if (ibv_get_async_event(context, &event))
			return 1;
		if (event.event_type == IBV_EVENT_GID_CHANGE) {
			now = has(context, &wanted);
			if (now && !before)
				puts("it came");
			if (!now && before)
				puts("it went");
			ibv_ack_async_event(&event);
			if (!now && before)
				break;
			before = now;
		} else {
			ibv_ack_async_event(&event);
		}
	}
	ibv_close_device(context);
	ibv_free_device_list(list);
	return 0;
}
