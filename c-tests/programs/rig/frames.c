/* A device with an extended CQ, RAW_PACKET QPs and Ethernet frames for the tests of frames. */
#include "frames.h"

#define PLACES 64u

struct ibv_context *ctx;
struct ibv_pd *pd;
struct ibv_cq_ex *cqx;
struct ibv_cq *cq;
struct ibv_mr *mr;
unsigned char *buf;

void frames_open(void)
{
	struct ibv_cq_init_attr_ex ca = { .cqe = 256, .wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_FLOW_TAG | IBV_WC_EX_WITH_CVLAN };
	ctx = open_device();
	pd = ibv_alloc_pd(ctx);
	cqx = ibv_create_cq_ex(ctx, &ca);
	buf = calloc(PLACES, FRAME);
	if (!pd || !cqx || !buf)
		die("set up: %s", strerror(errno));
	cq = ibv_cq_ex_to_cq(cqx);
	mr = ibv_reg_mr(pd, buf, PLACES * FRAME, IBV_ACCESS_LOCAL_WRITE);
	if (!mr)
		die("ibv_reg_mr");
}

void frames_close(void)
{
	check_eq(ibv_dereg_mr(mr) | ibv_destroy_cq(cq) | ibv_dealloc_pd(pd) | ibv_close_device(ctx), 0, "everything is closed");
	free(buf);
}

struct ibv_qp *raw_qp(uint32_t create_flags, uint16_t tso_header)
{
	struct ibv_qp_init_attr_ex ia = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { 32, 32, 4, 4, 64 },
		.qp_type = IBV_QPT_RAW_PACKET,
		.comp_mask = IBV_QP_INIT_ATTR_PD | (create_flags ? IBV_QP_INIT_ATTR_CREATE_FLAGS : 0) | (tso_header ? IBV_QP_INIT_ATTR_MAX_TSO_HEADER : 0) |
			     IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.create_flags = create_flags,
		.max_tso_header = tso_header,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | (tso_header ? IBV_QP_EX_WITH_TSO : 0),
	};
	struct ibv_qp *qp = ibv_create_qp_ex(ctx, &ia);
	if (!qp)
		die("ibv_create_qp_ex of RAW_PACKET: %s", strerror(errno));
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	int err = ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PORT);
	a.qp_state = IBV_QPS_RTR;
	err = err ? err : ibv_modify_qp(qp, &a, IBV_QP_STATE);
	a.qp_state = IBV_QPS_RTS;
	err = err ? err : ibv_modify_qp(qp, &a, IBV_QP_STATE);
	if (err)
		die("ibv_modify_qp: %s", strerror(err));
	return qp;
}

void frame_recv(struct ibv_qp *qp, uint64_t id)
{
	struct ibv_sge sg = { (uintptr_t)buf + FRAME * id, FRAME, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sg, .num_sge = 1 }, *bad;
	int err = ibv_post_recv(qp, &wr, &bad);
	if (err)
		die("ibv_post_recv: %s", strerror(err));
}

int frame_send(struct ibv_qp *qp, const void *frame, uint32_t len, unsigned flags)
{
	unsigned char *at = buf + FRAME * (PLACES - 1);
	struct ibv_sge sg = { (uintptr_t)at, len, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 99, .sg_list = &sg, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = flags }, *bad;
	memcpy(at, frame, len);
	return ibv_post_send(qp, &wr, &bad);
}

int frames_arrive(struct arrival *a, int wanted, int most)
{
	int n = 0;
	while (n < most) {
		uint64_t end = now_us() + (n < wanted ? WAIT_US : QUIET_US);
		struct ibv_poll_cq_attr pa = { 0 };
		int err;
		while ((err = ibv_start_poll(cqx, &pa)) == ENOENT && now_us() < end)
			;
		if (err == ENOENT)
			break;
		if (err)
			die("ibv_start_poll: %d", err);
		a[n].id = cqx->wr_id;
		a[n].status = cqx->status;
		a[n].opcode = ibv_wc_read_opcode(cqx);
		a[n].len = ibv_wc_read_byte_len(cqx);
		a[n].tag = ibv_wc_read_flow_tag(cqx);
		a[n].cvlan = ibv_wc_read_cvlan(cqx);
		a[n].flags = ibv_wc_read_wc_flags(cqx);
		a[n].qpn = ibv_wc_read_qp_num(cqx);
		ibv_end_poll(cqx);
		n++;
	}
	return n;
}

const char *who(struct arrival *a, int n)
{
	static char text[400];
	char *at = text;
	*at = 0;
	for (int i = 0; i < n; i++)
		for (int k = i + 1; k < n; k++)
			if (a[k].id < a[i].id) {
				struct arrival x = a[i];
				a[i] = a[k];
				a[k] = x;
			}
	for (int i = 0; i < n; i++)
		at += sprintf(at, "%s%llu", i ? " " : "", (unsigned long long)a[i].id);
	return text;
}

uint32_t udp_frame(unsigned char *p, uint64_t dst, uint64_t src, int vlan, uint32_t sip, uint32_t dip, uint16_t sport, uint16_t dport,
				 uint16_t payload, uint32_t seed)
{
	unsigned char *at = eth(p, dst, src, vlan, 0x0800);
	at = ipv4(at, sip, dip, 17, 0x20, (uint16_t)(payload + 8));
	at = udp(at, sport, dport, payload);
	fill(at, payload, seed);
	return (uint32_t)(at - p) + payload;
}

int checksums(const unsigned char *p)
{
	uint32_t len = (uint32_t)p[2] << 8 | p[3];
	uint32_t pseudo = ones(p + 12, 8, p[9] + len - 20);
	return ones(p, 20, 0) == 0xffff && ones(p + 20, len - 20, pseudo) == 0xffff;
}
