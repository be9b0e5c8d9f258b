/*
 * The control pipe of soft (ferroverbs-soft(7), "Faults"), of this process: FERROVERBS_SOFT_CONTROL, which has %p at its end.
 */
#ifndef CONTROL_H
#define CONTROL_H

#include "rig.h"

/* Where it is. */
const char *control_path(void);
/* Says a line to this process. */
void control(const char *line);
/* Whether the next event of `ctx` is this one, of its port. That an interface of the host got or lost an address is nothing to the port's state. */
int next_of_port(struct ibv_context *ctx, enum ibv_event_type wanted);

#endif
