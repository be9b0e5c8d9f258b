/*
 * UD: address handles, the 40 bytes in front of each message, Q_Keys, and what is dropped silently.
 * ibv_post_send(3), ibv_create_ah(3), ibv_create_ah_from_wc(3), IBTA 1.7 9.8.3.
 */
#include "rig.h"

static struct end *a, *b;
static struct address aa, ba;

static struct request message(uint64_t id, uint32_t offset, uint32_t len)
{
	struct request r = one_piece(IBV_WR_SEND, id, offset, len);
	r.qpn = ba.qpn;
	r.qkey = ba.qkey;
	return r;
}

static void data(int grh)
{
	static const uint32_t sizes[] = { 0, 1, 23, 24, 64, 255, 1023, 1024 };
	struct options o = defaults();
	o.type = IBV_QPT_UD;
	o.grh = grh;
	o.inl = 64;
	pair_open(a, b, o, &aa, &ba);
	for (unsigned i = 0; i < 8; i++)
		for (int k = 0; k < 3; k++) {
			uint32_t len = sizes[i];
			struct request s = message(i, 0, len), r = { .id = 100 + i, .pieces = 1, .piece = { { 0x8000, 40 + len, 0 } } };
			if (k == 1) {
				r.pieces = 3; /* the first ends within the 40 bytes */
				r.piece[0] = (struct piece){ 0x8000, 16, 0 };
				r.piece[1] = (struct piece){ 0x8010, 24 + len / 2, 0 };
				r.piece[2] = (struct piece){ 0x8028 + len / 2, len - len / 2, 0 };
				s.op = IBV_WR_SEND_WITH_IMM;
				s.imm = 0x11223344;
			}
			if (k == 2) {
				if (len > aa.max_inline)
					continue;
				s.flags |= IBV_SEND_INLINE;
			}
			end_fill(a, 0, len, i + 1);
			end_fill(b, 0x8028, len + 8, i + 900);
			end_recv(b, r);
			if (end_send(a, s)) {
				check(0, "ibv_post_send of %u bytes", len);
				continue;
			}
			struct ibv_wc w = end_wait(a, SENDS);
			check(w.status == IBV_WC_SUCCESS && w.wr_id == i && w.opcode == IBV_WC_SEND, "%u bytes, kind %d: sent", len, k);
			w = end_wait(b, RECVS);
			check(w.status == IBV_WC_SUCCESS && w.wr_id == 100 + i && w.byte_len == 40 + len && w.src_qp == aa.qpn && w.qp_num == ba.qpn &&
				      w.opcode == IBV_WC_RECV && !!(w.wc_flags & IBV_WC_WITH_IMM) == (k == 1) && (k != 1 || w.imm_data == s.imm),
			      "%u bytes, kind %d: received, length %u, from %x (%s)", len, k, w.byte_len, w.src_qp, ibv_wc_status_str(w.status));
			check(!grh || (w.wc_flags & IBV_WC_GRH), "%u bytes, kind %d: the completion tells of a GRH", len, k);
			check(end_verify(b, 0x8028, len, i + 1) < 0, "%u bytes, kind %d: data behind 40 bytes", len, k);
		}
	pair_close(a, b);
}

static void dropped(void)
{
	struct options o = defaults();
	struct ibv_wc w;
	o.type = IBV_QPT_UD;
	pair_open(a, b, o, &aa, &ba);
	end_recv(b, one_piece(0, 1, 0, 2048));
	struct request s = message(1, 0, 100);
	s.qkey ^= 1;
	end_send(a, s);
	check_eq(end_wait(a, SENDS).status, IBV_WC_SUCCESS, "a message with a wrong Q_Key is sent");
	check(!end_try(b, RECVS, &w, QUIET_US), "and not received");
	s = message(2, 0, 100);
	s.qpn ^= 0x3f;
	end_send(a, s);
	check_eq(end_wait(a, SENDS).status, IBV_WC_SUCCESS, "a message to a QP that is not there is sent");
	check(!end_try(b, RECVS, &w, QUIET_US), "and not received");
	end_send(a, message(3, 0, 100));
	w = end_wait(b, RECVS);
	check(w.status == IBV_WC_SUCCESS && w.wr_id == 1 && w.byte_len == 140, "a right one is received, by the receive that waited");
	end_wait(a, SENDS);
	/* No receive: dropped, and the sender does not know. */
	end_send(a, message(4, 0, 100));
	check_eq(end_wait(a, SENDS).status, IBV_WC_SUCCESS, "a message without a receive is sent");
	check(!end_try(b, RECVS, &w, QUIET_US), "and dropped");
	end_recv(b, one_piece(0, 2, 0, 2048));
	check(!end_try(b, RECVS, &w, QUIET_US), "a later receive does not get it");
	end_fill(a, 0, 100, 5);
	end_send(a, message(5, 0, 100));
	w = end_wait(b, RECVS);
	check(w.wr_id == 2 && end_verify(b, 40, 100, 5) < 0, "it gets the next one");
	end_wait(a, SENDS);
	/* The highest bit of a Q_Key stands for the sending QP's own. */
	end_recv(b, one_piece(0, 3, 0, 2048));
	s = message(6, 0, 100);
	s.qkey = 0x80000000;
	end_send(a, s);
	check_eq(end_wait(a, SENDS).status, IBV_WC_SUCCESS, "with a controlled Q_Key");
	check(end_try(b, RECVS, &w, WAIT_US) && w.wr_id == 3, "the sending QP's own Q_Key is used");
	check_eq(end_state(a), IBV_QPS_RTS, "the sender's state after all this");
	check_eq(end_state(b), IBV_QPS_RTS, "the receiver's state after all this");
	/* More than the MTU: never sent. */
	end_recv(b, one_piece(0, 4, 0, 100000));
	check_eq(end_send(a, message(7, 0, 4097)), 0, "more than the MTU: posted");
	check_eq(end_wait(a, SENDS).status, IBV_WC_LOC_LEN_ERR, "more than the MTU: completion");
	check_eq(end_state_soon(a, IBV_QPS_SQE), IBV_QPS_SQE, "more than the MTU: the sender's state");
	end_send(a, message(8, 0, 100));
	check_eq(end_wait(a, SENDS).status, IBV_WC_WR_FLUSH_ERR, "more than the MTU: what follows");
	check(!end_try(b, RECVS, &w, QUIET_US), "more than the MTU: not received");
	check_eq(end_modify(a, IBV_QPS_RTS), 0, "from SQE to RTS");
	end_send(a, message(9, 0, 4096));
	check_eq(end_wait(a, SENDS).status, IBV_WC_SUCCESS, "as much as the MTU");
	check_eq(end_wait(b, RECVS).byte_len, 4096 + 40, "and received");
	pair_close(a, b);
}

/* A message and its answer. */
static void talk(struct ibv_pd *pd, struct ibv_cq *cq, struct ibv_mr *mr, struct ibv_qp **qp, union ibv_gid gid, int index)
{
	unsigned char *buf = mr->addr;
	struct ibv_ah_attr ga = { .is_global = 1, .grh = { .dgid = gid, .hop_limit = 3, .sgid_index = (uint8_t)index }, .port_num = 1 };
	struct ibv_ah *there = ibv_create_ah(pd, &ga), *back;
	if (!there)
		die("ibv_create_ah: %s", strerror(errno));
	struct ibv_sge sg = { (uintptr_t)buf + 2048, 10, mr->lkey };
	struct ibv_send_wr sw = { .wr_id = 7, .sg_list = &sg, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	sw.wr.ud.ah = there;
	sw.wr.ud.remote_qpn = qp[1]->qp_num;
	sw.wr.ud.remote_qkey = 0x99;
	if (ibv_post_send(qp[0], &sw, &bad))
		die("ibv_post_send");
	struct ibv_wc w, r = { .wr_id = 99 };
	for (int i = 0; i < 2; i++) {
		wait_completion(cq, &w);
		if (w.wr_id == 1)
			r = w;
	}
	check(r.wr_id == 1 && r.status == IBV_WC_SUCCESS && r.src_qp == qp[0]->qp_num, "the first message came");
	/* The service level holds the packet type, as with mlx5: RoCE v2 over IPv4 or IPv6. */
	uint64_t words[2];
	memcpy(words, gid.raw, sizeof words);
	int ipv4 = !words[0] && !memcmp(gid.raw + 8, "\0\0\377\377", 4);
	check_eq(r.sl, ipv4 ? 8 | 2 : 8 | 1, "the kind of packet");
	check(ipv4 ? buf[1024 + 20] == 0x45 && !memcmp(buf + 1024 + 36, gid.raw + 12, 4) : !memcmp(buf + 1024 + 24, gid.raw, 16), "its destination is where that kind has it");
	back = ibv_create_ah_from_wc(pd, &r, (struct ibv_grh *)(buf + 1024), 1);
	if (check(back != NULL, "ibv_create_ah_from_wc")) {
		sw.wr.ud.ah = back;
		sw.wr.ud.remote_qpn = r.src_qp;
		if (ibv_post_send(qp[1], &sw, &bad))
			die("ibv_post_send");
		r.wr_id = 99;
		for (int i = 0; i < 2; i++) {
			wait_completion(cq, &w);
			if (w.wr_id == 0)
				r = w;
		}
		check(r.wr_id == 0 && r.status == IBV_WC_SUCCESS && r.src_qp == qp[1]->qp_num, "the answer came");
		check_eq(ibv_destroy_ah(back), 0, "ibv_destroy_ah");
	}
	check_eq(ibv_destroy_ah(there), 0, "ibv_destroy_ah");
	ibv_destroy_qp(qp[0]);
	ibv_destroy_qp(qp[1]);
}

/*
 * Answers the source address of a message, in one process, by the GID with this index if it exists.
 */
static int answer(int index)
{
	struct ibv_context *ctx = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
	static unsigned char buf[4096];
	struct ibv_mr *mr = ibv_reg_mr(pd, buf, sizeof buf, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_qp *qp[2];
	union ibv_gid gid;
	if (!pd || !cq || !mr)
		die("set up");
	int last = ibv_query_gid(ctx, 1, index, &gid) || !gid.global.interface_id;
	for (int i = 0; i < 2 && !last; i++) {
		struct ibv_qp_init_attr qa = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD, .cap = { 4, 4, 1, 1, 0 } };
		qp[i] = ibv_create_qp(pd, &qa);
		if (!qp[i])
			die("ibv_create_qp");
		struct ibv_qp_attr at = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x99 };
		int err = ibv_modify_qp(qp[i], &at, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
		at.qp_state = IBV_QPS_RTR;
		err = err ? err : ibv_modify_qp(qp[i], &at, IBV_QP_STATE);
		at.qp_state = IBV_QPS_RTS;
		err = err ? err : ibv_modify_qp(qp[i], &at, IBV_QP_STATE | IBV_QP_SQ_PSN);
		if (err)
			die("ibv_modify_qp");
		struct ibv_sge sg = { (uintptr_t)buf + 1024u * (unsigned)i, 512, mr->lkey };
		struct ibv_recv_wr rw = { .wr_id = (uint64_t)i, .sg_list = &sg, .num_sge = 1 }, *bad;
		if (ibv_post_recv(qp[i], &rw, &bad))
			die("ibv_post_recv");
	}
	if (!last)
		talk(pd, cq, mr, qp, gid, index);
	ibv_destroy_cq(cq);
	ibv_dereg_mr(mr);
	check_eq(ibv_dealloc_pd(pd), 0, "ibv_dealloc_pd");
	ibv_close_device(ctx);
	return !last;
}

int main(int argc, char **argv)
{
	int two = two_processes(argc, argv);
	a = end_new(0);
	b = end_new(two);
	data(1);
	if (has_lids())
		data(0);
	dropped();
	for (int index = 0; !two && answer(index); index++)
		;
	end_free(b);
	end_free(a);
	return finish();
}
