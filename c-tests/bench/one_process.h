/* Device and connection for benchmarks with QPs connected within one process. */
#ifndef ONE_PROCESS_H
#define ONE_PROCESS_H

#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static uint16_t lid;

__attribute__((noinline)) static void fail(const char *what)
{
	perror(what);
	exit(1);
}

/* Opens the first device: ctx, pd, lid. */
static void open_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_port_attr port;

	ctx = list && *list ? ibv_open_device(*list) : NULL;
	pd = ctx ? ibv_alloc_pd(ctx) : NULL;
	if (!pd || ibv_query_port(ctx, 1, &port))
		fail("the device");
	lid = port.lid;
}

/* Takes an RC QP to RTS, with QP number `to` of this process at the other end. */
static void connect_qp(struct ibv_qp *q, uint32_t to)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1,
				 .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };

	if (ibv_modify_qp(q, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		fail("INIT");
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = to, .max_dest_rd_atomic = 1,
				  .min_rnr_timer = 12, .ah_attr = { .dlid = lid, .port_num = 1 } };
	if (ibv_modify_qp(q, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		fail("RTR");
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 };
	if (ibv_modify_qp(q, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					 IBV_QP_MAX_QP_RD_ATOMIC))
		fail("RTS");
}

#endif
