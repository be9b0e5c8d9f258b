/*
 * The control pipe of soft (ferroverbs-soft(7), "Faults") in this process, and port events. The
 * setting FERROVERBS_SOFT_CONTROL names the pipe and ends in %p.
 */
#ifndef CONTROL_H
#define CONTROL_H

#include "rig.h"

/* The path of the pipe. */
const char *control_path(void);
/* Writes a line to the pipe. */
void control(const char *line);
/* Returns 1 if the next event of `ctx` is `wanted` on port 1. Skips IBV_EVENT_GID_CHANGE, which
 * reports new addresses of the host and not a state of the port. */
int next_of_port(struct ibv_context *ctx, enum ibv_event_type wanted);

#endif
