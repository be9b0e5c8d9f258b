/* The control pipe of soft in this process, and port events. */
#include "control.h"

const char *control_path(void)
{
	static char path[100];
	const char *setting = getenv("FERROVERBS_SOFT_CONTROL");
	const char *p = setting ? strstr(setting, "%p") : NULL;
	if (!p)
		die("FERROVERBS_SOFT_CONTROL names no pipe with %%p");
	snprintf(path, sizeof path, "%.*s%d", (int)(p - setting), setting, (int)getpid());
	return path;
}

void control(const char *line)
{
	FILE *f = fopen(control_path(), "w");
	if (!f || fprintf(f, "%s\n", line) < 0 || fclose(f))
		die("%s: %s", control_path(), strerror(errno));
}

int next_of_port(struct ibv_context *ctx, enum ibv_event_type wanted)
{
	struct ibv_async_event ev = { .event_type = -1 };
	do {
		if (!readable(ctx->async_fd, 10000) || ibv_get_async_event(ctx, &ev))
			return 0;
		ibv_ack_async_event(&ev);
	} while (ev.event_type == IBV_EVENT_GID_CHANGE && wanted != IBV_EVENT_GID_CHANGE);
	return ev.event_type == wanted && ev.element.port_num == 1;
}
