/*
 * The function that each inline function of verbs.h calls, its arguments, and the use of its
 * result. The objects are artificial, and their operations print their calls. Builds with
 * upstream's headers and with Ferroverbs', in C and in C++; the output must be equal.
 *
 * RELEASE: the rdma-core release whose headers have all names used here.
 *
 * Map of this file: the artificial objects and `of`, which gives their names; operations that print
 * their arguments. The operations of the context come first; functions of an extended CQ and of
 * `ibv_wr_*` follow. `INT`, `PTR` and `NONE` print a call; `fill` and `belong` set up a context.
 * `extended` calls operations of an extended context; `members` calls the other operations and
 * functions of objects. `numbers` tests computations; `sizes` tests verbs_get_ctx_op. `main`
 * repeats `extended` on a shorter context, an empty context and a plain one.
 */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- made-up objects ---- */

static struct verbs_context vctx;
static struct ibv_context plain;
static struct ibv_qp qp;
static struct ibv_qp_ex qpx;
static struct ibv_cq cq;
static struct ibv_cq_ex cqx;
static struct ibv_srq srq;
static struct ibv_pd pd, other_pd;
static struct ibv_mr mr;
static struct ibv_mw mw;
static struct ibv_wq wq;
static struct ibv_xrcd xrcd;
static struct ibv_td td;
static struct ibv_dm dm;
static struct ibv_ah ah;
static struct ibv_flow flow;
static struct ibv_flow_action action;
static struct ibv_counters counters;
static struct ibv_rwq_ind_table table;
static char memory[64];
static struct ibv_sge sge;
static struct ibv_data_buf buf;
static struct ibv_send_wr send_wr, *bad_send;
static struct ibv_recv_wr recv_wr, *bad_recv;
static struct ibv_ops_wr ops_wr, *bad_ops;
static struct ibv_wc wc;
static struct ibv_wc_tm_info tm_info;
static struct ibv_poll_cq_attr poll_attr;
static struct ibv_mw_bind_info bind_info;
static struct ibv_mw_bind mw_bind;
static struct ibv_port_attr port_attr;
static struct ibv_device_attr_ex device_attr;
static struct ibv_values_ex values;
static struct ibv_srq_init_attr_ex srq_attr;
static struct ibv_qp_init_attr_ex qp_attr;
static struct ibv_qp_open_attr open_attr;
static struct ibv_cq_init_attr_ex cq_attr;
static struct ibv_modify_cq_attr modify_cq_attr;
static struct ibv_xrcd_init_attr xrcd_attr;
static struct ibv_td_init_attr td_attr;
static struct ibv_parent_domain_init_attr domain_attr;
static struct ibv_alloc_dm_attr dm_attr;
static struct ibv_wq_init_attr wq_init_attr;
static struct ibv_wq_attr wq_attr;
static struct ibv_rwq_ind_table_init_attr table_attr;
static struct ibv_flow_attr flow_attr;
static struct ibv_flow_action_esp_attr esp_attr;
static struct ibv_counters_init_attr counters_attr;
static struct ibv_counter_attach_attr attach_attr;
static struct ibv_qp_rate_limit_attr rate_attr;
static uint64_t values64[2];
static uint32_t number;

/* The name of an object. */
static const char *of(const void *p)
{
#define IS(x) if (p == (const void *)&(x)) return #x;
	IS(vctx.context) IS(plain) IS(qp) IS(qpx) IS(cq) IS(cqx) IS(srq) IS(pd) IS(other_pd) IS(mr) IS(mw) IS(wq) IS(xrcd) IS(td) IS(dm)
	IS(ah) IS(flow) IS(action) IS(counters) IS(table) IS(memory) IS(sge) IS(buf) IS(send_wr) IS(bad_send) IS(recv_wr) IS(bad_recv)
	IS(ops_wr) IS(bad_ops) IS(wc) IS(tm_info) IS(poll_attr) IS(bind_info) IS(mw_bind) IS(port_attr) IS(device_attr) IS(values)
	IS(srq_attr) IS(qp_attr) IS(open_attr) IS(cq_attr) IS(modify_cq_attr) IS(xrcd_attr) IS(td_attr) IS(domain_attr) IS(dm_attr)
	IS(wq_init_attr) IS(wq_attr) IS(table_attr) IS(flow_attr) IS(esp_attr) IS(counters_attr) IS(attach_attr) IS(rate_attr)
	IS(values64) IS(number)
#undef IS
	return p ? "(unknown)" : "NULL";
}

/* ---- operations ---- */

#define SAY(...) (printf("    -> "), printf(__VA_ARGS__), putchar('\n'))
#define U(x) ((unsigned long long)(x))

static int result = 7;

static struct ibv_mw *alloc_mw(struct ibv_pd *p, enum ibv_mw_type type)
{
	SAY("alloc_mw(%s, %d)", of(p), (int)type);
	return &mw;
}
static int bind_mw(struct ibv_qp *q, struct ibv_mw *w, struct ibv_mw_bind *b)
{
	SAY("bind_mw(%s, %s, %s)", of(q), of(w), of(b));
	return result;
}
static int dealloc_mw(struct ibv_mw *w)
{
	SAY("dealloc_mw(%s)", of(w));
	return result;
}
static int poll_cq(struct ibv_cq *c, int n, struct ibv_wc *w)
{
	SAY("poll_cq(%s, %d, %s)", of(c), n, of(w));
	return result;
}
static int req_notify_cq(struct ibv_cq *c, int solicited)
{
	SAY("req_notify_cq(%s, %d)", of(c), solicited);
	return result;
}
static int post_srq_recv(struct ibv_srq *s, struct ibv_recv_wr *w, struct ibv_recv_wr **bad)
{
	SAY("post_srq_recv(%s, %s, %s)", of(s), of(w), of(bad));
	return result;
}
static int post_send(struct ibv_qp *q, struct ibv_send_wr *w, struct ibv_send_wr **bad)
{
	SAY("post_send(%s, %s, %s)", of(q), of(w), of(bad));
	return result;
}
static int post_recv(struct ibv_qp *q, struct ibv_recv_wr *w, struct ibv_recv_wr **bad)
{
	SAY("post_recv(%s, %s, %s)", of(q), of(w), of(bad));
	return result;
}
static int query_port(struct ibv_context *c, uint8_t port, struct ibv_port_attr *a, size_t len)
{
	SAY("query_port(%s, %d, %s, %d)", of(c), port, of(a), len == sizeof(*a));
	return result;
}
static int advise_mr(struct ibv_pd *p, enum ibv_advise_mr_advice advice, uint32_t flags, struct ibv_sge *s, uint32_t n)
{
	SAY("advise_mr(%s, %d, %u, %s, %u)", of(p), (int)advice, flags, of(s), n);
	return result;
}
static struct ibv_mr *alloc_null_mr(struct ibv_pd *p)
{
	SAY("alloc_null_mr(%s)", of(p));
	return &mr;
}
static int read_counters(struct ibv_counters *c, uint64_t *v, uint32_t n, uint32_t flags)
{
	SAY("read_counters(%s, %s, %u, %u)", of(c), of(v), n, flags);
	return result;
}
static int attach_counters(struct ibv_counters *c, struct ibv_counter_attach_attr *a, struct ibv_flow *f)
{
	SAY("attach_counters_point_flow(%s, %s, %s)", of(c), of(a), of(f));
	return result;
}
static struct ibv_counters *create_counters(struct ibv_context *c, struct ibv_counters_init_attr *a)
{
	SAY("create_counters(%s, %s)", of(c), of(a));
	return &counters;
}
static int destroy_counters(struct ibv_counters *c)
{
	SAY("destroy_counters(%s)", of(c));
	return result;
}
static struct ibv_mr *reg_dm_mr(struct ibv_pd *p, struct ibv_dm *d, uint64_t offset, size_t length, unsigned int access)
{
	SAY("reg_dm_mr(%s, %s, %llu, %llu, %u)", of(p), of(d), U(offset), U(length), access);
	return &mr;
}
static struct ibv_dm *alloc_dm(struct ibv_context *c, struct ibv_alloc_dm_attr *a)
{
	SAY("alloc_dm(%s, %s)", of(c), of(a));
	return &dm;
}
static int free_dm(struct ibv_dm *d)
{
	SAY("free_dm(%s)", of(d));
	return result;
}
static int memcpy_to_dm(struct ibv_dm *d, uint64_t offset, const void *host, size_t length)
{
	SAY("memcpy_to_dm(%s, %llu, %s, %llu)", of(d), U(offset), of(host), U(length));
	return result;
}
static int memcpy_from_dm(void *host, struct ibv_dm *d, uint64_t offset, size_t length)
{
	SAY("memcpy_from_dm(%s, %s, %llu, %llu)", of(host), of(d), U(offset), U(length));
	return result;
}
static int modify_esp(struct ibv_flow_action *a, struct ibv_flow_action_esp_attr *e)
{
	SAY("modify_flow_action_esp(%s, %s)", of(a), of(e));
	return result;
}
static int destroy_action(struct ibv_flow_action *a)
{
	SAY("destroy_flow_action(%s)", of(a));
	return result;
}
static struct ibv_flow_action *create_esp(struct ibv_context *c, struct ibv_flow_action_esp_attr *e)
{
	SAY("create_flow_action_esp(%s, %s)", of(c), of(e));
	return &action;
}
static int rate_limit(struct ibv_qp *q, struct ibv_qp_rate_limit_attr *a)
{
	SAY("modify_qp_rate_limit(%s, %s)", of(q), of(a));
	return result;
}
static struct ibv_pd *parent_domain(struct ibv_context *c, struct ibv_parent_domain_init_attr *a)
{
	SAY("alloc_parent_domain(%s, %s)", of(c), of(a));
	return &pd;
}
static int dealloc_td(struct ibv_td *t)
{
	SAY("dealloc_td(%s)", of(t));
	return result;
}
static struct ibv_td *alloc_td(struct ibv_context *c, struct ibv_td_init_attr *a)
{
	SAY("alloc_td(%s, %s)", of(c), of(a));
	return &td;
}
static int modify_cq(struct ibv_cq *c, struct ibv_modify_cq_attr *a)
{
	SAY("modify_cq(%s, %s)", of(c), of(a));
	return result;
}
static int post_srq_ops(struct ibv_srq *s, struct ibv_ops_wr *o, struct ibv_ops_wr **bad)
{
	SAY("post_srq_ops(%s, %s, %s)", of(s), of(o), of(bad));
	return result;
}
static int destroy_table(struct ibv_rwq_ind_table *t)
{
	SAY("destroy_rwq_ind_table(%s)", of(t));
	return result;
}
static struct ibv_rwq_ind_table *create_table(struct ibv_context *c, struct ibv_rwq_ind_table_init_attr *a)
{
	SAY("create_rwq_ind_table(%s, %s)", of(c), of(a));
	return &table;
}
static int destroy_wq(struct ibv_wq *w)
{
	SAY("destroy_wq(%s)", of(w));
	return result;
}
static int modify_wq(struct ibv_wq *w, struct ibv_wq_attr *a)
{
	SAY("modify_wq(%s, %s)", of(w), of(a));
	return result;
}
static struct ibv_wq *create_wq(struct ibv_context *c, struct ibv_wq_init_attr *a)
{
	SAY("create_wq(%s, %s)", of(c), of(a));
	return result ? &wq : NULL;
}
static int post_wq_recv(struct ibv_wq *w, struct ibv_recv_wr *r, struct ibv_recv_wr **bad)
{
	SAY("post_recv(%s, %s, %s)", of(w), of(r), of(bad));
	return result;
}
static int query_rt_values(struct ibv_context *c, struct ibv_values_ex *v)
{
	SAY("query_rt_values(%s, %s)", of(c), of(v));
	return result;
}
static struct ibv_cq_ex *create_cq_ex(struct ibv_context *c, struct ibv_cq_init_attr_ex *a)
{
	SAY("create_cq_ex(%s, %s)", of(c), of(a));
	return &cqx;
}
static int query_device_ex(struct ibv_context *c, const struct ibv_query_device_ex_input *input, struct ibv_device_attr_ex *a, size_t size)
{
	SAY("query_device_ex(%s, %s, %s, %d)", of(c), input ? "input" : "NULL", of(a), size == sizeof(*a));
	return result;
}
static int destroy_flow(struct ibv_flow *f)
{
	SAY("destroy_flow(%s)", of(f));
	return result;
}
static struct ibv_flow *create_flow(struct ibv_qp *q, struct ibv_flow_attr *a)
{
	SAY("create_flow(%s, %s)", of(q), of(a));
	return &flow;
}
static struct ibv_qp *open_qp(struct ibv_context *c, struct ibv_qp_open_attr *a)
{
	SAY("open_qp(%s, %s)", of(c), of(a));
	return &qp;
}
static struct ibv_qp *create_qp_ex(struct ibv_context *c, struct ibv_qp_init_attr_ex *a)
{
	SAY("create_qp_ex(%s, %s)", of(c), of(a));
	return &qp;
}
static int get_srq_num(struct ibv_srq *s, uint32_t *n)
{
	SAY("get_srq_num(%s, %s)", of(s), of(n));
	return result;
}
static struct ibv_srq *create_srq_ex(struct ibv_context *c, struct ibv_srq_init_attr_ex *a)
{
	SAY("create_srq_ex(%s, %s)", of(c), of(a));
	return &srq;
}
static struct ibv_xrcd *open_xrcd(struct ibv_context *c, struct ibv_xrcd_init_attr *a)
{
	SAY("open_xrcd(%s, %s)", of(c), of(a));
	return &xrcd;
}
static int close_xrcd(struct ibv_xrcd *x)
{
	SAY("close_xrcd(%s)", of(x));
	return result;
}

/* The extended CQ. */
static int start_poll(struct ibv_cq_ex *c, struct ibv_poll_cq_attr *a)
{
	SAY("start_poll(%s, %s)", of(c), of(a));
	return result;
}
static int next_poll(struct ibv_cq_ex *c)
{
	SAY("next_poll(%s)", of(c));
	return result;
}
static void end_poll(struct ibv_cq_ex *c)
{
	SAY("end_poll(%s)", of(c));
}
#define READ(type, name, value)                                                                                        \
	static type name(struct ibv_cq_ex *c)                                                                          \
	{                                                                                                              \
		SAY(#name "(%s)", of(c));                                                                              \
		return (type)(value);                                                                                  \
	}
READ(enum ibv_wc_opcode, read_opcode, IBV_WC_RECV)
READ(uint32_t, read_vendor_err, 0xfedcba98)
READ(uint32_t, read_byte_len, 0xfedcba97)
READ(__be32, read_imm_data, 0xfedcba96)
READ(uint32_t, read_qp_num, 0xfedcba95)
READ(uint32_t, read_src_qp, 0xfedcba94)
READ(unsigned int, read_wc_flags, 0xfedcba93)
READ(uint32_t, read_slid, 0xfedcba92)
READ(uint8_t, read_sl, 0xfe)
READ(uint8_t, read_dlid_path_bits, 0xfd)
READ(uint64_t, read_completion_ts, 0xfedcba9876543210)
READ(uint16_t, read_cvlan, 0xfedc)
READ(uint32_t, read_flow_tag, 0xfedcba91)
READ(uint64_t, read_completion_wallclock_ns, 0xfedcba9876543211)
static void read_tm_info(struct ibv_cq_ex *c, struct ibv_wc_tm_info *i)
{
	SAY("read_tm_info(%s, %s)", of(c), of(i));
}

/* The functions of an extended QP, which ibv_wr_* call. */
static void wr_atomic_cmp_swp(struct ibv_qp_ex *q, uint32_t rkey, uint64_t addr, uint64_t compare, uint64_t swap)
{
	SAY("wr_atomic_cmp_swp(%s, %u, %llu, %llu, %llu)", of(q), rkey, U(addr), U(compare), U(swap));
}
static void wr_atomic_fetch_add(struct ibv_qp_ex *q, uint32_t rkey, uint64_t addr, uint64_t add)
{
	SAY("wr_atomic_fetch_add(%s, %u, %llu, %llu)", of(q), rkey, U(addr), U(add));
}
static void wr_bind_mw(struct ibv_qp_ex *q, struct ibv_mw *w, uint32_t rkey, const struct ibv_mw_bind_info *i)
{
	SAY("wr_bind_mw(%s, %s, %u, %s)", of(q), of(w), rkey, of(i));
}
static void wr_local_inv(struct ibv_qp_ex *q, uint32_t rkey)
{
	SAY("wr_local_inv(%s, %u)", of(q), rkey);
}
static void wr_rdma_read(struct ibv_qp_ex *q, uint32_t rkey, uint64_t addr)
{
	SAY("wr_rdma_read(%s, %u, %llu)", of(q), rkey, U(addr));
}
static void wr_rdma_write(struct ibv_qp_ex *q, uint32_t rkey, uint64_t addr)
{
	SAY("wr_rdma_write(%s, %u, %llu)", of(q), rkey, U(addr));
}
static void wr_rdma_write_imm(struct ibv_qp_ex *q, uint32_t rkey, uint64_t addr, __be32 imm)
{
	SAY("wr_rdma_write_imm(%s, %u, %llu, %u)", of(q), rkey, U(addr), (unsigned)imm);
}
static void wr_send(struct ibv_qp_ex *q)
{
	SAY("wr_send(%s)", of(q));
}
static void wr_send_imm(struct ibv_qp_ex *q, __be32 imm)
{
	SAY("wr_send_imm(%s, %u)", of(q), (unsigned)imm);
}
static void wr_send_inv(struct ibv_qp_ex *q, uint32_t rkey)
{
	SAY("wr_send_inv(%s, %u)", of(q), rkey);
}
static void wr_send_tso(struct ibv_qp_ex *q, void *header, uint16_t size, uint16_t mss)
{
	SAY("wr_send_tso(%s, %s, %u, %u)", of(q), of(header), size, mss);
}
static void wr_set_ud_addr(struct ibv_qp_ex *q, struct ibv_ah *a, uint32_t qpn, uint32_t qkey)
{
	SAY("wr_set_ud_addr(%s, %s, %u, %u)", of(q), of(a), qpn, qkey);
}
static void wr_set_xrc_srqn(struct ibv_qp_ex *q, uint32_t srqn)
{
	SAY("wr_set_xrc_srqn(%s, %u)", of(q), srqn);
}
static void wr_set_inline_data(struct ibv_qp_ex *q, void *addr, size_t length)
{
	SAY("wr_set_inline_data(%s, %s, %llu)", of(q), of(addr), U(length));
}
static void wr_set_inline_data_list(struct ibv_qp_ex *q, size_t n, const struct ibv_data_buf *b)
{
	SAY("wr_set_inline_data_list(%s, %llu, %s)", of(q), U(n), of(b));
}
static void wr_set_sge(struct ibv_qp_ex *q, uint32_t lkey, uint64_t addr, uint32_t length)
{
	SAY("wr_set_sge(%s, %u, %llu, %u)", of(q), lkey, U(addr), length);
}
static void wr_set_sge_list(struct ibv_qp_ex *q, size_t n, const struct ibv_sge *s)
{
	SAY("wr_set_sge_list(%s, %llu, %s)", of(q), U(n), of(s));
}
static void wr_start(struct ibv_qp_ex *q)
{
	SAY("wr_start(%s)", of(q));
}
static int wr_complete(struct ibv_qp_ex *q)
{
	SAY("wr_complete(%s)", of(q));
	return result;
}
static void wr_abort(struct ibv_qp_ex *q)
{
	SAY("wr_abort(%s)", of(q));
}
static void wr_atomic_write(struct ibv_qp_ex *q, uint32_t rkey, uint64_t addr, const void *value)
{
	SAY("wr_atomic_write(%s, %u, %llu, %s)", of(q), rkey, U(addr), of(value));
}
#if RELEASE >= 45
static void wr_flush(struct ibv_qp_ex *q, uint32_t rkey, uint64_t addr, size_t len, uint8_t type, uint8_t level)
{
	SAY("wr_flush(%s, %u, %llu, %llu, %u, %u)", of(q), rkey, U(addr), U(len), type, level);
}
#endif

/* ---- calls ---- */

/* A call, its value, and the errno that it set. */
#define INT(call) (errno = 0, printf("%s = %d\n", #call, (int)(call)), tell_errno())
#define PTR(call) (errno = 0, printf("%s = %s\n", #call, of(call)), tell_errno())
#define NONE(call) (printf("%s\n", #call), (call))

static void tell_errno(void)
{
	if (errno)
		printf("    errno %d\n", errno);
}

/* Fills in all operations of an extended context. */
static void fill(void)
{
	struct ibv_context *ctx = &vctx.context;

	memset(&vctx, 0, sizeof(vctx));
	vctx.sz = sizeof(vctx);
	ctx->abi_compat = __VERBS_ABI_IS_EXTENDED;
	ctx->ops.alloc_mw = alloc_mw;
	ctx->ops.bind_mw = bind_mw;
	ctx->ops.dealloc_mw = dealloc_mw;
	ctx->ops.poll_cq = poll_cq;
	ctx->ops.req_notify_cq = req_notify_cq;
	ctx->ops.post_srq_recv = post_srq_recv;
	ctx->ops.post_send = post_send;
	ctx->ops.post_recv = post_recv;
	vctx.query_port = query_port;
	vctx.advise_mr = advise_mr;
	vctx.alloc_null_mr = alloc_null_mr;
	vctx.read_counters = read_counters;
	vctx.attach_counters_point_flow = attach_counters;
	vctx.create_counters = create_counters;
	vctx.destroy_counters = destroy_counters;
	vctx.reg_dm_mr = reg_dm_mr;
	vctx.alloc_dm = alloc_dm;
	vctx.free_dm = free_dm;
	vctx.modify_flow_action_esp = modify_esp;
	vctx.destroy_flow_action = destroy_action;
	vctx.create_flow_action_esp = create_esp;
	vctx.modify_qp_rate_limit = rate_limit;
	vctx.alloc_parent_domain = parent_domain;
	vctx.dealloc_td = dealloc_td;
	vctx.alloc_td = alloc_td;
	vctx.modify_cq = modify_cq;
	vctx.post_srq_ops = post_srq_ops;
	vctx.destroy_rwq_ind_table = destroy_table;
	vctx.create_rwq_ind_table = create_table;
	vctx.destroy_wq = destroy_wq;
	vctx.modify_wq = modify_wq;
	vctx.create_wq = create_wq;
	vctx.query_rt_values = query_rt_values;
	vctx.create_cq_ex = create_cq_ex;
	vctx.query_device_ex = query_device_ex;
	vctx.ibv_destroy_flow = destroy_flow;
	vctx.ibv_create_flow = create_flow;
	vctx.open_qp = open_qp;
	vctx.create_qp_ex = create_qp_ex;
	vctx.get_srq_num = get_srq_num;
	vctx.create_srq_ex = create_srq_ex;
	vctx.open_xrcd = open_xrcd;
	vctx.close_xrcd = close_xrcd;
}

/* Sets the context of all objects to `ctx`. */
static void belong(struct ibv_context *ctx)
{
	qp.context = ctx;
	cq.context = ctx;
	srq.context = ctx;
	pd.context = ctx;
	other_pd.context = ctx;
	mw.context = ctx;
	mw.pd = &pd;
	wq.context = ctx;
	xrcd.context = ctx;
	td.context = ctx;
	dm.context = ctx;
	flow.context = ctx;
	action.context = ctx;
	counters.context = ctx;
	table.context = ctx;
	mr.pd = &pd;
}

/* Every inline function that goes through the extended context. */
static void extended(struct ibv_context *ctx)
{
	PTR(verbs_get_ctx(ctx) ? &verbs_get_ctx(ctx)->context : NULL);
	PTR(ibv_create_flow(&qp, &flow_attr));
	INT(ibv_destroy_flow(&flow));
	PTR(ibv_create_flow_action_esp(ctx, &esp_attr));
	INT(ibv_modify_flow_action_esp(&action, &esp_attr));
	INT(ibv_destroy_flow_action(&action));
	PTR(ibv_open_xrcd(ctx, &xrcd_attr));
	INT(ibv_advise_mr(&pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH, &sge, 3));
	PTR(ibv_alloc_dm(ctx, &dm_attr));
	INT(ibv_free_dm(&dm));
	PTR(ibv_alloc_null_mr(&pd));
	PTR(ibv_reg_dm_mr(&pd, &dm, 5, 6, IBV_ACCESS_LOCAL_WRITE));
	PTR(ibv_create_cq_ex(ctx, &cq_attr));
	INT(ibv_modify_cq(&cq, &modify_cq_attr));
	INT(ibv_get_srq_num(&srq, &number));
	bad_ops = NULL;
	INT(ibv_post_srq_ops(&srq, &ops_wr, &bad_ops));
	printf("    bad_ops is %s\n", of(bad_ops));
	PTR(ibv_alloc_td(ctx, &td_attr));
	INT(ibv_dealloc_td(&td));
	PTR(ibv_alloc_parent_domain(ctx, &domain_attr));
	INT(ibv_query_rt_values_ex(ctx, &values));
	PTR(ibv_open_qp(ctx, &open_attr));
	INT(ibv_modify_qp_rate_limit(&qp, &rate_attr));
	wq.wq_context = NULL;
	wq.events_completed = 9;
	wq_init_attr.wq_context = memory;
	PTR(ibv_create_wq(ctx, &wq_init_attr));
	printf("    context %s, events %u\n", of(wq.wq_context), wq.events_completed);
	INT(ibv_modify_wq(&wq, &wq_attr));
	INT(ibv_destroy_wq(&wq));
	PTR(ibv_create_rwq_ind_table(ctx, &table_attr));
	INT(ibv_destroy_rwq_ind_table(&table));
	PTR(ibv_create_counters(ctx, &counters_attr));
	INT(ibv_attach_counters_point_flow(&counters, &attach_attr, &flow));
	INT(ibv_read_counters(&counters, values64, 2, IBV_READ_COUNTERS_ATTR_PREFER_CACHED));
	INT(ibv_destroy_counters(&counters));
	/* All masks except those for which the inline function creates a plain SRQ or QP. */
	for (uint32_t mask = 0; mask < 32; mask++)
		for (int type = IBV_SRQT_BASIC; type <= IBV_SRQT_TM; type++) {
			int basic = !(mask & IBV_SRQ_INIT_ATTR_TYPE) || type == IBV_SRQT_BASIC;

			if ((mask & ~3u) == 0 && (mask & IBV_SRQ_INIT_ATTR_PD) && basic)
				continue;
			memset(&srq_attr, 0, sizeof(srq_attr));
			srq_attr.comp_mask = mask;
			srq_attr.srq_type = (enum ibv_srq_type)type;
			printf("mask %u type %d: ", mask, type);
			PTR(ibv_create_srq_ex(ctx, &srq_attr));
		}
	for (uint32_t mask = 0; mask < 8; mask++) {
		if (mask == IBV_QP_INIT_ATTR_PD)
			continue;
		memset(&qp_attr, 0, sizeof(qp_attr));
		qp_attr.comp_mask = mask;
		printf("mask %u: ", mask);
		PTR(ibv_create_qp_ex(ctx, &qp_attr));
	}
}

static void members(void)
{
	INT(ibv_close_xrcd(&xrcd));
	INT(ibv_query_port(&vctx.context, 3, &port_attr));
	INT(ibv_query_device_ex(&vctx.context, NULL, &device_attr));
	struct ibv_query_device_ex_input input;
	memset(&input, 0, sizeof(input));
	INT(ibv_query_device_ex(&vctx.context, &input, &device_attr));
	input.comp_mask = 1;
	INT(ibv_query_device_ex(&vctx.context, &input, &device_attr));

	PTR(ibv_alloc_mw(&pd, IBV_MW_TYPE_2));
	INT(ibv_dealloc_mw(&mw));
	/* Combinations of the fields that ibv_bind_mw checks. */
	for (int type = IBV_MW_TYPE_1; type <= IBV_MW_TYPE_2; type++)
		for (int with = 0; with < 12; with++) {
			memset(&mw_bind, 0, sizeof(mw_bind));
			mw.type = (enum ibv_mw_type)type;
			mw_bind.bind_info.mr = with & 1 ? &mr : NULL;
			mw_bind.bind_info.addr = with & 2 ? 1 : 0;
			mw_bind.bind_info.length = with & 4 ? 1 : 0;
			mr.pd = with & 8 ? &other_pd : &pd;
			printf("type %d with %d: ", type, with);
			INT(ibv_bind_mw(&qp, &mw, &mw_bind));
		}
	vctx.context.ops.alloc_mw = NULL;
	PTR(ibv_alloc_mw(&pd, IBV_MW_TYPE_1));

	INT(ibv_poll_cq(&cq, 4, &wc));
	INT(ibv_req_notify_cq(&cq, 1));
	INT(ibv_post_srq_recv(&srq, &recv_wr, &bad_recv));
	INT(ibv_post_send(&qp, &send_wr, &bad_send));
	INT(ibv_post_recv(&qp, &recv_wr, &bad_recv));
	wq.post_recv = post_wq_recv;
	INT(ibv_post_wq_recv(&wq, &recv_wr, &bad_recv));
	dm.memcpy_to_dm = memcpy_to_dm;
	dm.memcpy_from_dm = memcpy_from_dm;
	INT(ibv_memcpy_to_dm(&dm, 11, memory, 12));
	INT(ibv_memcpy_from_dm(memory, &dm, 13, 14));

	cqx.start_poll = start_poll;
	cqx.next_poll = next_poll;
	cqx.end_poll = end_poll;
	cqx.read_opcode = read_opcode;
	cqx.read_vendor_err = read_vendor_err;
	cqx.read_byte_len = read_byte_len;
	cqx.read_imm_data = read_imm_data;
	cqx.read_qp_num = read_qp_num;
	cqx.read_src_qp = read_src_qp;
	cqx.read_wc_flags = read_wc_flags;
	cqx.read_slid = read_slid;
	cqx.read_sl = read_sl;
	cqx.read_dlid_path_bits = read_dlid_path_bits;
	cqx.read_completion_ts = read_completion_ts;
	cqx.read_cvlan = read_cvlan;
	cqx.read_flow_tag = read_flow_tag;
	cqx.read_tm_info = read_tm_info;
	cqx.read_completion_wallclock_ns = read_completion_wallclock_ns;
	INT(ibv_start_poll(&cqx, &poll_attr));
	INT(ibv_next_poll(&cqx));
	NONE(ibv_end_poll(&cqx));
	PTR(ibv_cq_ex_to_cq(&cqx));
#define VALUE(call) printf("%s = %llx\n", #call, U(call))
	VALUE(ibv_wc_read_opcode(&cqx));
	VALUE(ibv_wc_read_vendor_err(&cqx));
	VALUE(ibv_wc_read_byte_len(&cqx));
	VALUE(ibv_wc_read_imm_data(&cqx));
	VALUE(ibv_wc_read_invalidated_rkey(&cqx));
	VALUE(ibv_wc_read_qp_num(&cqx));
	VALUE(ibv_wc_read_src_qp(&cqx));
	VALUE(ibv_wc_read_wc_flags(&cqx));
	VALUE(ibv_wc_read_slid(&cqx));
	VALUE(ibv_wc_read_sl(&cqx));
	VALUE(ibv_wc_read_dlid_path_bits(&cqx));
	VALUE(ibv_wc_read_completion_ts(&cqx));
	VALUE(ibv_wc_read_completion_wallclock_ns(&cqx));
	VALUE(ibv_wc_read_cvlan(&cqx));
	VALUE(ibv_wc_read_flow_tag(&cqx));
	NONE(ibv_wc_read_tm_info(&cqx, &tm_info));

	qpx.wr_atomic_cmp_swp = wr_atomic_cmp_swp;
	qpx.wr_atomic_fetch_add = wr_atomic_fetch_add;
	qpx.wr_bind_mw = wr_bind_mw;
	qpx.wr_local_inv = wr_local_inv;
	qpx.wr_rdma_read = wr_rdma_read;
	qpx.wr_rdma_write = wr_rdma_write;
	qpx.wr_rdma_write_imm = wr_rdma_write_imm;
	qpx.wr_send = wr_send;
	qpx.wr_send_imm = wr_send_imm;
	qpx.wr_send_inv = wr_send_inv;
	qpx.wr_send_tso = wr_send_tso;
	qpx.wr_set_ud_addr = wr_set_ud_addr;
	qpx.wr_set_xrc_srqn = wr_set_xrc_srqn;
	qpx.wr_set_inline_data = wr_set_inline_data;
	qpx.wr_set_inline_data_list = wr_set_inline_data_list;
	qpx.wr_set_sge = wr_set_sge;
	qpx.wr_set_sge_list = wr_set_sge_list;
	qpx.wr_start = wr_start;
	qpx.wr_complete = wr_complete;
	qpx.wr_abort = wr_abort;
	qpx.wr_atomic_write = wr_atomic_write;
	NONE(ibv_wr_start(&qpx));
	NONE(ibv_wr_atomic_cmp_swp(&qpx, 1, 2, 3, 4));
	NONE(ibv_wr_atomic_fetch_add(&qpx, 1, 2, 3));
	NONE(ibv_wr_atomic_write(&qpx, 1, 2, memory));
	NONE(ibv_wr_bind_mw(&qpx, &mw, 1, &bind_info));
	NONE(ibv_wr_local_inv(&qpx, 1));
	NONE(ibv_wr_rdma_read(&qpx, 1, 2));
	NONE(ibv_wr_rdma_write(&qpx, 1, 2));
	NONE(ibv_wr_rdma_write_imm(&qpx, 1, 2, 3));
	NONE(ibv_wr_send(&qpx));
	NONE(ibv_wr_send_imm(&qpx, 1));
	NONE(ibv_wr_send_inv(&qpx, 1));
	NONE(ibv_wr_send_tso(&qpx, memory, 1, 2));
	NONE(ibv_wr_set_ud_addr(&qpx, &ah, 1, 2));
	NONE(ibv_wr_set_xrc_srqn(&qpx, 1));
	NONE(ibv_wr_set_inline_data(&qpx, memory, 1));
	NONE(ibv_wr_set_inline_data_list(&qpx, 1, &buf));
	NONE(ibv_wr_set_sge(&qpx, 1, 2, 3));
	NONE(ibv_wr_set_sge_list(&qpx, 1, &sge));
	INT(ibv_wr_complete(&qpx));
	NONE(ibv_wr_abort(&qpx));
#if RELEASE >= 45
	qpx.wr_flush = wr_flush;
	NONE(ibv_wr_flush(&qpx, 1, 2, 3, IBV_FLUSH_PERSISTENT, IBV_FLUSH_MR));
#endif
}

/* Inline functions that compute a number. */
static void numbers(void)
{
	for (uint64_t rkey = 0; rkey < 0x200000000; rkey += 0x00fedcb1)
		printf("inc_rkey %llx: %x\n", U(rkey), ibv_inc_rkey((uint32_t)rkey));
	for (uint32_t low = 0xf8; low < 0x108; low++)
		printf("inc_rkey %x: %x\n", low, ibv_inc_rkey(low));
	for (uint32_t label = 0; label <= 0xfffff; label += 97)
		printf("%u ", ibv_flow_label_to_udp_sport(label));
	printf("\n%u %u\n", ibv_flow_label_to_udp_sport(0xffffffff), ibv_flow_label_to_udp_sport(0x12345678));
	for (int type = 0; type < 32; type++)
		printf("%d%d%d%d ", ibv_is_qpt_supported(0, (enum ibv_qp_type)type), ibv_is_qpt_supported(0xffffffff, (enum ibv_qp_type)type),
		       ibv_is_qpt_supported(1u << IBV_QPT_UD, (enum ibv_qp_type)type), ibv_is_qpt_supported(0x80000704, (enum ibv_qp_type)type));
	putchar('\n');
	printf("%d %d\n", vext_field_avail(struct ibv_device_attr_ex, odp_caps, offsetof(struct ibv_device_attr_ex, odp_caps)),
	       vext_field_avail(struct ibv_device_attr_ex, odp_caps, offsetof(struct ibv_device_attr_ex, odp_caps) + 1));
}

/* verbs_get_ctx_op finds an operation only if the size of the context includes the operation. */
static void sizes(void)
{
#define REACHES(op)                                                                                                    \
	do {                                                                                                           \
		size_t needed = sizeof(vctx) - offsetof(struct verbs_context, op);                                     \
		vctx.sz = needed - 1;                                                                                  \
		int less = verbs_get_ctx_op(&vctx.context, op) != NULL;                                                \
		vctx.sz = needed;                                                                                      \
		int just = verbs_get_ctx_op(&vctx.context, op) == &vctx;                                               \
		printf("%s reaches: %d %d\n", #op, less, just);                                                        \
	} while (0)
	REACHES(query_port);
	REACHES(advise_mr);
	REACHES(alloc_dm);
	REACHES(post_srq_ops);
	REACHES(create_wq);
	REACHES(query_device_ex);
	REACHES(ibv_create_flow);
	REACHES(create_srq_ex);
	REACHES(open_xrcd);
	REACHES(close_xrcd);
	vctx.sz = sizeof(vctx);
}

int main(void)
{
	printf("== through an extended context\n");
	fill();
	belong(&vctx.context);
	extended(&vctx.context);
	printf("== an operation that gives nothing\n");
	result = 0;
	PTR(ibv_create_wq(&vctx.context, &wq_init_attr));
	result = 7;
	printf("== members\n");
	members();
	printf("== sizes\n");
	fill();
	sizes();
	printf("== numbers\n");
	numbers();
	printf("== an extended context that is shorter\n");
	vctx.sz = sizeof(vctx) - offsetof(struct verbs_context, close_xrcd);
	extended(&vctx.context);
	printf("== an extended context without operations\n");
	memset(&vctx, 0, sizeof(vctx));
	vctx.sz = sizeof(vctx);
	vctx.context.abi_compat = __VERBS_ABI_IS_EXTENDED;
	extended(&vctx.context);
	printf("== a context that is not extended\n");
	belong(&plain);
	extended(&plain);
	return 0;
}
