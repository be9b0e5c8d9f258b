/* Opens the first device. Prints a line at the start and for each event: the event and the GID
 * table, each entry as `INDEX=GID`. Ends when it is killed. */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <stdio.h>

static int tell(struct ibv_context *context, const char *what)
{
	struct ibv_port_attr port;

	if (ibv_query_port(context, 1, &port))
		return 1;
	fputs(what, stdout);
	for (int i = 0; i < port.gid_tbl_len; i++) {
		char text[INET6_ADDRSTRLEN];
		union ibv_gid gid;
		/*
		 * An unused entry has a GID of zeros, and an entry with a removed address has none.
		 */
		if (!ibv_query_gid(context, 1, i, &gid) && (gid.global.subnet_prefix || gid.global.interface_id))
			printf(" %d=%s", i, inet_ntop(AF_INET6, &gid, text, sizeof(text)));
	}
	puts(" .");
	return 0;
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = list && list[0] ? ibv_open_device(list[0]) : NULL;

	if (!context) {
		puts("no device");
		return 1;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	int bad = tell(context, "open");
	while (!bad) {
		struct ibv_async_event event;
		char name[80];

		if (ibv_get_async_event(context, &event))
			return 1;
		snprintf(name, sizeof(name), "%s", ibv_event_type_str(event.event_type));
		for (char *p = name; *p; p++)
			if (*p == ' ')
				*p = '_';
		ibv_ack_async_event(&event);
		bad = tell(context, name);
	}
	return 1;
}
