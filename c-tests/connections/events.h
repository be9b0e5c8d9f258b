/*
 * The next event of a channel: of which type it is to be, and whose it is.
 */
#ifndef CONNECTIONS_EVENTS_H
#define CONNECTIONS_EVENTS_H

#include "checks.h"
#include <rdma/rdma_cma.h>

static inline struct rdma_cm_id *next(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;

	NEED(!rdma_get_cm_event(channel, &event));
	if (event->event != type)
		printf("FAILED: %s, %d came\n", rdma_event_str(event->event), event->status);
	check(event->event == type, rdma_event_str(type));
	struct rdma_cm_id *id = event->id;

	CHECK(!rdma_ack_cm_event(event));
	return id;
}

#endif
