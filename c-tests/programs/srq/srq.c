/*
 * An SRQ of several QPs, over shared memory: distribution of receives, limit event, full queue,
 * queries. ibv_create_srq(3), ibv_modify_srq(3), ibv_post_srq_recv(3).
 */
#include "rig.h"

enum { PEERS = 3, DEPTH = 32 };

int main(int argc, char **argv)
{
	int two = two_processes(argc, argv);
	struct end *peer[PEERS];
	for (int i = 0; i < PEERS; i++)
		peer[i] = end_new(two);

	struct ibv_context *ctx = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_cq *cq = ibv_create_cq(ctx, 256, NULL, NULL, 0);
	static unsigned char buf[DEPTH * 4096];
	struct ibv_mr *mr = ibv_reg_mr(pd, buf, sizeof buf, IBV_ACCESS_LOCAL_WRITE);
	union ibv_gid gid;
	struct ibv_port_attr port;
	if (!pd || !cq || !mr || ibv_query_gid(ctx, 1, hosts_differ(), &gid) || ibv_query_port(ctx, 1, &port))
		die("set up");
	struct ibv_srq_init_attr sa = { .srq_context = &gid, .attr = { .max_wr = DEPTH, .max_sge = 2 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &sa);
	if (!srq)
		die("ibv_create_srq: %s", strerror(errno));
	check(sa.attr.max_wr >= DEPTH && sa.attr.max_sge >= 2, "the size is at least what was asked for");
	check(srq->context == ctx && srq->pd == pd && srq->srq_context == &gid, "the fields of an SRQ");
	struct ibv_srq_attr at;
	check_eq(ibv_query_srq(srq, &at), 0, "ibv_query_srq");
	check(at.max_wr >= sa.attr.max_wr && at.max_sge >= sa.attr.max_sge && at.srq_limit == 0, "query: %u, %u, %u", at.max_wr, at.max_sge, at.srq_limit);

	/* What is refused, and changed. */
	struct ibv_srq_init_attr wrong = { .attr = { .max_wr = 0, .max_sge = 1 } };
	check(!ibv_create_srq(pd, &wrong) && errno == EINVAL, "an SRQ without room");
	struct ibv_device_attr dev;
	if (ibv_query_device(ctx, &dev))
		die("ibv_query_device");
	wrong.attr = (struct ibv_srq_attr){ .max_wr = dev.max_srq_wr + 1u, .max_sge = 1 };
	check(!ibv_create_srq(pd, &wrong) && errno == EINVAL, "an SRQ larger than max_srq_wr");
	wrong.attr = (struct ibv_srq_attr){ .max_wr = 1, .max_sge = dev.max_srq_sge + 1u };
	check(!ibv_create_srq(pd, &wrong) && errno == EINVAL, "more ranges than max_srq_sge");
	struct ibv_srq_init_attr_ex ex = { .srq_context = &port, .attr = { .max_wr = 4, .max_sge = 1 }, .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD, .srq_type = IBV_SRQT_BASIC, .pd = pd };
	struct ibv_srq *basic = ibv_create_srq_ex(ctx, &ex);
	check(basic && basic->pd == pd && basic->context == ctx && basic->srq_context == &port, "ibv_create_srq_ex of IBV_SRQT_BASIC");
	ex.comp_mask |= IBV_SRQ_INIT_ATTR_CQ;
	ex.cq = cq;
	struct ibv_srq *queued = ibv_create_srq_ex(ctx, &ex);
	check(queued && queued->pd == pd && queued->context == ctx && queued->srq_context == &port, "with an attribute that it does not need");
	uint32_t number[2] = { 0, 0 };
	check(!ibv_get_srq_num(basic, &number[0]) && !ibv_get_srq_num(queued, &number[1]) && number[0] != number[1], "ibv_get_srq_num");
	check_eq(ibv_destroy_srq(queued), 0, "ibv_destroy_srq");
	ex.comp_mask = IBV_SRQ_INIT_ATTR_TYPE;
	check(!ibv_create_srq_ex(ctx, &ex) && errno == EINVAL, "ibv_create_srq_ex without a domain");
	ex.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
	ex.srq_type = 77;
	check(!ibv_create_srq_ex(ctx, &ex) && errno == EINVAL, "ibv_create_srq_ex of no known type");

	struct ibv_sge three[3] = { { (uintptr_t)buf, 1, mr->lkey }, { (uintptr_t)buf, 1, mr->lkey }, { (uintptr_t)buf, 1, mr->lkey } };
	struct ibv_recv_wr list[3] = { { .wr_id = 1, .next = &list[1], .sg_list = three, .num_sge = 1 },
				       { .wr_id = 2, .next = &list[2], .sg_list = three, .num_sge = 3 },
				       { .wr_id = 3, .sg_list = three, .num_sge = 1 } };
	struct ibv_recv_wr *failed = NULL;
	check(ibv_post_srq_recv(basic, list, &failed) == EINVAL && failed == &list[1], "a list whose second receive has too many ranges");
	struct ibv_srq_attr m = { .max_wr = 4, .srq_limit = 5 };
	check_eq(ibv_modify_srq(basic, &m, IBV_SRQ_LIMIT), EINVAL, "a limit above the size");
	check_eq(ibv_modify_srq(basic, &m, 1 << 7), EINVAL, "an unknown attribute");
	check(dev.device_cap_flags & IBV_DEVICE_SRQ_RESIZE, "IBV_DEVICE_SRQ_RESIZE");
	m.max_wr = dev.max_srq_wr + 1u;
	check_eq(ibv_modify_srq(basic, &m, IBV_SRQ_MAX_WR), EINVAL, "resizing beyond max_srq_wr");
	m.max_wr = 9;
	check_eq(ibv_modify_srq(basic, &m, IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT), 0, "resizing, with a limit that fits then");
	check(!ibv_query_srq(basic, &m) && m.max_wr >= 9 && m.srq_limit == 5, "query: %u, %u", m.max_wr, m.srq_limit);
	unsigned room = m.max_wr - 1;
	for (unsigned i = 0; i < room; i++)
		check_eq(ibv_post_srq_recv(basic, &list[2], &failed), 0, "receive %u of a resized SRQ", i);
	check(ibv_post_srq_recv(basic, &list[2], &failed) == ENOMEM && failed == &list[2], "and no more");
	m.max_wr = 2;
	check_eq(ibv_modify_srq(basic, &m, IBV_SRQ_MAX_WR), EINVAL, "resizing below what waits");
	m.srq_limit = 0;
	check_eq(ibv_modify_srq(basic, &m, IBV_SRQ_LIMIT), 0, "disarming the limit");
	check_eq(ibv_destroy_srq(basic), 0, "destroying an SRQ with receives in it");

	struct ibv_qp *qp[PEERS];
	for (int i = 0; i < PEERS; i++) {
		struct options o = defaults();
		struct address his = end_open(peer[i], o);
		struct ibv_qp_init_attr qa = { .send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC, .cap = { 4, 0, 1, 0, 0 } };
		qp[i] = ibv_create_qp(pd, &qa);
		if (!qp[i])
			die("ibv_create_qp: %s", strerror(errno));
		struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
		if (ibv_modify_qp(qp[i], &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
			die("to INIT");
		a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR,
					  .path_mtu = port.active_mtu,
					  .dest_qp_num = his.qpn,
					  .rq_psn = his.psn,
					  .max_dest_rd_atomic = 1,
					  .min_rnr_timer = 1,
					  .ah_attr = { .is_global = 1, .grh = { .dgid = his.gid, .hop_limit = 1, .sgid_index = (uint8_t)hosts_differ() }, .port_num = 1 } };
		if (ibv_modify_qp(qp[i], &a,
				  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
					  IBV_QP_MIN_RNR_TIMER))
			die("to RTR");
		/* To RTS as well: a message in RTR would give an event. */
		a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .max_rd_atomic = 1, .retry_cnt = 7, .rnr_retry = 7, .timeout = 14 };
		if (ibv_modify_qp(qp[i], &a, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_TIMEOUT))
			die("to RTS");
		struct address mine = { .qpn = qp[i]->qp_num, .psn = qp[i]->qp_num * 77 & 0xffffff, .lid = port.lid, .gid = gid };
		end_connect(peer[i], mine);
	}
	check_eq(ibv_destroy_srq(srq), EBUSY, "destroying an SRQ that QPs use");

	/* Fill it. */
	unsigned posted = 0;
	struct ibv_recv_wr w, *bad;
	for (;;) {
		struct ibv_sge sg[2] = { { (uintptr_t)buf + posted % DEPTH * 4096, 100, mr->lkey }, { (uintptr_t)buf + posted % DEPTH * 4096 + 100, 3996, mr->lkey } };
		w = (struct ibv_recv_wr){ .wr_id = posted, .sg_list = sg, .num_sge = 2 };
		bad = NULL;
		int err = ibv_post_srq_recv(srq, &w, &bad);
		if (err) {
			check_eq(err, ENOMEM, "a full SRQ");
			check(bad == &w, "a full SRQ: bad_wr");
			break;
		}
		if (++posted > 100000)
			die("an SRQ of %u never fills", sa.attr.max_wr);
	}
	check(posted >= sa.attr.max_wr, "an SRQ of %u takes %u receives", sa.attr.max_wr, posted);
	/* Receives beyond DEPTH share buffers: only the first DEPTH are looked at. */

	/* One event when fewer than the limit are left. */
	at.srq_limit = posted - 3;
	check_eq(ibv_modify_srq(srq, &at, IBV_SRQ_LIMIT), 0, "ibv_modify_srq");
	check_eq(ibv_query_srq(srq, &at), 0, "ibv_query_srq");
	check_eq(at.srq_limit, posted - 3, "query: the limit is set");
	for (unsigned i = 0; i < 12; i++) {
		unsigned p = i % PEERS;
		uint32_t len = i * 300 % 4000;
		end_fill(peer[p], 0, len, i);
		end_send(peer[p], one_piece(IBV_WR_SEND, i, 0, len));
		if (i == 2)
			check(!readable(ctx->async_fd, 30), "no event while the limit is not passed");
		struct ibv_wc c;
		wait_completion(cq, &c);
		check(c.status == IBV_WC_SUCCESS && c.wr_id == i && c.qp_num == qp[p]->qp_num && c.byte_len == len && verify(buf + i % DEPTH * 4096, len, i) < 0,
		      "message %u: %s, id %llu, length %u", i, ibv_wc_status_str(c.status), (unsigned long long)c.wr_id, c.byte_len);
		check_eq(end_wait(peer[p], SENDS).status, IBV_WC_SUCCESS, "message %u: sent", i);
	}
	void *element = NULL;
	check_eq(async_event(ctx, &element), IBV_EVENT_SRQ_LIMIT_REACHED, "the event at the limit");
	check(element == srq, "the event's SRQ");
	check(!readable(ctx->async_fd, 30), "one event only");
	check_eq(ibv_query_srq(srq, &at), 0, "ibv_query_srq");
	check_eq(at.srq_limit, 0, "query: the limit is disarmed");
	/* One limit event for each arming; a resized queue keeps its receives. */
	struct ibv_srq_attr again = { .max_wr = posted + 50, .srq_limit = posted - 12 };
	check_eq(ibv_modify_srq(srq, &again, IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT), 0, "resizing a queue in use, and arming it again");

	/* All send at once: each receive is used once. */
	for (unsigned i = 0; i < 9; i++)
		end_send(peer[i % PEERS], one_piece(IBV_WR_SEND, i, 0, 50));
	uint64_t seen = 0;
	for (unsigned i = 0; i < 9; i++) {
		struct ibv_wc c;
		wait_completion(cq, &c);
		if (c.wr_id >= 12 && c.wr_id < 21)
			seen |= 1ull << c.wr_id;
	}
	check_eq((long long)seen, 0x1ffll << 12, "nine messages took nine receives");
	check_eq(async_event(ctx, &element), IBV_EVENT_SRQ_LIMIT_REACHED, "the event of the second arming");
	check(!readable(ctx->async_fd, 30), "one event only");

	/* An error of one QP leaves the remaining QPs intact. */
	struct ibv_qp_attr e = { .qp_state = IBV_QPS_ERR };
	check_eq(ibv_modify_qp(qp[0], &e, IBV_QP_STATE), 0, "one QP to ERR");
	end_fill(peer[1], 0, 50, 77);
	for (unsigned i = 0; i < 3; i++)
		end_wait(peer[1], SENDS);
	end_send(peer[1], one_piece(IBV_WR_SEND, 5, 0, 50));
	struct ibv_wc c;
	wait_completion(cq, &c);
	check(c.status == IBV_WC_SUCCESS && c.qp_num == qp[1]->qp_num, "another QP still receives: %s", ibv_wc_status_str(c.status));
	for (int i = 0; i < PEERS; i++) {
		check_eq(ibv_destroy_qp(qp[i]), 0, "ibv_destroy_qp");
		end_close(peer[i]);
		end_free(peer[i]);
	}
	check_eq(ibv_destroy_srq(srq), 0, "ibv_destroy_srq");
	check_eq(ibv_destroy_cq(cq), 0, "ibv_destroy_cq");
	check_eq(ibv_dereg_mr(mr), 0, "ibv_dereg_mr");
	check_eq(ibv_dealloc_pd(pd), 0, "ibv_dealloc_pd");
	check_eq(ibv_close_device(ctx), 0, "ibv_close_device");
	return finish();
}
