/*
 * The next event of a channel, and of which type it is to be.
 */
#ifndef CONNECTIONS_EVENTS_H
#define CONNECTIONS_EVENTS_H

#include "checks.h"
#include <rdma/rdma_cma.h>

/* What it says is copied; its private data is gone. */
static inline struct rdma_cm_event next(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event, said;

	need(!rdma_get_cm_event(channel, &event), rdma_event_str(type));
	said = *event;
	if (said.event != type)
		printf("FAILED: %s, %d came\n", rdma_event_str(said.event), said.status);
	check(said.event == type, rdma_event_str(type));
	NEED(!rdma_ack_cm_event(event));
	return said;
}

#endif
