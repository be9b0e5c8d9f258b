/* Asynchronous events of a kernel's device: of its port, of an SRQ, of a QP. */
#include <fcntl.h>
#include <pthread.h>

#include "asleep.h"
#include "kernel.h"

/* The next event that is not about addresses, of which there are as many as the kernel likes. */
static void next_event(struct ibv_context *ctx, struct ibv_async_event *event)
{
	for (;;) {
		struct pollfd p = { .fd = ctx->async_fd, .events = POLLIN };
		if (poll(&p, 1, 10000) != 1)
			die("no event came");
		if (ibv_get_async_event(ctx, event))
			die("ibv_get_async_event: %s", strerror(errno));
		if (event->event_type != IBV_EVENT_GID_CHANGE)
			break;
		ibv_ack_async_event(event);
	}
	printf("event: %s", ibv_event_type_str(event->event_type));
}

static void port_event(struct ibv_context *ctx)
{
	struct ibv_async_event event;
	next_event(ctx, &event);
	printf(" of port %d\n", event.element.port_num);
	ibv_ack_async_event(&event);
}

static void *acknowledge(void *event)
{
	/* The main thread destroys the QP meanwhile. A destroy that does not wait prints its line
	 * first. */
	stays_asleep(getpid(), NULL);
	printf("acknowledging\n");
	ibv_ack_async_event(event);
	return NULL;
}

int main(void)
{
	shell("ip link add evt0 address 02:00:00:77:00:20 type dummy && ip link set evt0 up");
	shell("rdma link add rxevt type rxe netdev evt0");
	struct ibv_context *ctx = open_named("rxevt");
	struct ibv_async_event event;
	port_becomes(ctx, IBV_PORT_ACTIVE);

	/* A non-blocking descriptor does not wait. */
	int flags = fcntl(ctx->async_fd, F_GETFL);
	fcntl(ctx->async_fd, F_SETFL, flags | O_NONBLOCK);
	while (!ibv_get_async_event(ctx, &event))
		ibv_ack_async_event(&event);
	printf("nothing happened: %s\n", strerror(errno));
	fcntl(ctx->async_fd, F_SETFL, flags);

	shell("ip link set evt0 down");
	port_event(ctx);
	port_becomes(ctx, IBV_PORT_DOWN);
	shell("ip link set evt0 up");
	port_event(ctx);
	port_becomes(ctx, IBV_PORT_ACTIVE);

	/* An SRQ that runs low. */
	struct loop l;
	char buffer[256] = "hello";
	loop_open(&l, ctx, 1);
	struct ibv_mr *mr = ibv_reg_mr(l.pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE);
	if (!mr)
		die("ibv_reg_mr: %s", strerror(errno));
	for (int i = 0; i < 3; i++)
		receive(&l, mr, buffer + 128, 64);
	struct ibv_srq_attr attr = { .srq_limit = 3 };
	printf("ibv_modify_srq: %d\n", ibv_modify_srq(l.srq, &attr, IBV_SRQ_LIMIT));
	printf("ibv_query_srq: %d", ibv_query_srq(l.srq, &attr));
	printf(", limit %u\n", attr.srq_limit);
	loop_send(&l, mr, buffer, 64);
	next_event(ctx, &event);
	printf(" of the SRQ: %d\n", event.element.srq == l.srq);
	ibv_ack_async_event(&event);
	printf("the limit is spent: %d", ibv_query_srq(l.srq, &attr));
	printf(", limit %u\n", attr.srq_limit);

	/* The last event of a QP; ibv_destroy_qp waits for its acknowledgement. */
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
	printf("to ERR: %d\n", ibv_modify_qp(l.qp[1], &error, IBV_QP_STATE));
	struct pollfd p = { .fd = ctx->async_fd, .events = POLLIN };
	if (poll(&p, 1, 2000) == 1) {
		next_event(ctx, &event);
		printf(" of the QP: %d\n", event.element.qp == l.qp[1]);
		pthread_t thread;
		pthread_create(&thread, NULL, acknowledge, &event);
		printf("ibv_destroy_qp: %d\n", ibv_destroy_qp(l.qp[1]));
		l.qp[1] = NULL;
		pthread_join(thread, NULL);
	} else {
		printf("no event of the QP\n");
	}
	printf("ibv_dereg_mr: %d\n", ibv_dereg_mr(mr));
	loop_close(&l);
	printf("ibv_close_device: %d\n", ibv_close_device(ctx));
	shell("rdma link delete rxevt && ip link delete evt0");
	return 0;
}
