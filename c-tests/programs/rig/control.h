/*
 * The control pipe of soft (ferroverbs-soft(7), "Faults"), of this process: FERROVERBS_SOFT_CONTROL, which has %p at its end.
 */
#ifndef CONTROL_H
#define CONTROL_H

#include "rig.h"

/* Where it is. */
static inline const char *control_path(void)
{
	static char path[100];
	const char *setting = getenv("FERROVERBS_SOFT_CONTROL");
	const char *p = setting ? strstr(setting, "%p") : NULL;
	if (!p)
		die("FERROVERBS_SOFT_CONTROL names no pipe with %%p");
	snprintf(path, sizeof path, "%.*s%d", (int)(p - setting), setting, (int)getpid());
	return path;
}

/* Says a line to this process. */
static inline void control(const char *line)
{
	FILE *f = fopen(control_path(), "w");
	if (!f || fprintf(f, "%s\n", line) < 0 || fclose(f))
		die("%s: %s", control_path(), strerror(errno));
}

/* Whether the next event of `ctx` is this one, of its port. That an interface of the host got or lost an address is nothing to the port's state. */
static inline int next_of_port(struct ibv_context *ctx, enum ibv_event_type wanted)
{
	struct ibv_async_event ev = { .event_type = -1 };
	do {
		if (!readable(ctx->async_fd, 10000) || ibv_get_async_event(ctx, &ev))
			return 0;
		ibv_ack_async_event(&ev);
	} while (ev.event_type == IBV_EVENT_GID_CHANGE && wanted != IBV_EVENT_GID_CHANGE);
	return ev.event_type == wanted && ev.element.port_num == 1;
}

#endif
