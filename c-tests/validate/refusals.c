/*
 * Calls that are refused by EINVAL, EFAULT, ENOMEM or EBUSY: refusals CASE wrong|right. Without
 * arguments the program lists the cases. `refusals all` makes one call after the other and checks
 * that JSON (in the environment) explains each, with the argument that is wrong. `refusals forks`
 * does the same for a registration that fork support refuses.
 */
#include "pair.h"
#include <sys/mman.h>

static void mr_19(void)
{
	char *page = mmap(NULL, 4096, PROT_READ | (wrong ? 0 : PROT_WRITE), MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	want(page != MAP_FAILED, "mmap");
	second = ibv_reg_mr(pd, page, 4096, IBV_ACCESS_LOCAL_WRITE);
	want(wrong ? !second && errno == EFAULT : second != NULL, "ibv_reg_mr");
}

static union ibv_gid group(void)
{
	return (union ibv_gid){ .raw = { 0xff, 0x0e, [15] = 1 } };
}

static void qp_21(void)
{
	union ibv_gid gid = group();
	a = make(IBV_QPT_UD, cq, NULL, 0);
	to_init(a);
	want(wrong || !ibv_attach_mcast(a, &gid, 0), "ibv_attach_mcast");
	want(ibv_detach_mcast(a, &gid, 0) == (wrong ? EINVAL : 0), "ibv_detach_mcast");
}

static void wr_18(void)
{
	pair();
	struct ibv_sge sge = piece(64);
	int result = post(a, request(wrong ? IBV_WR_DRIVER1 : IBV_WR_RDMA_WRITE, &sge, 1));
	want(result == (wrong ? EINVAL : 0), "ibv_post_send");
	if (!wrong)
		ok(cq);
}

static void cq_14(void)
{
	struct ibv_cq *more = ibv_create_cq(ctx, 8, NULL, NULL, wrong ? ctx->num_comp_vectors : 0);
	want(wrong ? !more && errno == EINVAL : more != NULL, "ibv_create_cq");
	want(!more || !ibv_destroy_cq(more), "ibv_destroy_cq");
}

static void ob_07(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_srq_attr attr = { .srq_limit = wrong ? 100 : 8 };
	shared = ibv_create_srq(pd, &init);
	want(shared != NULL, "ibv_create_srq");
	want(ibv_modify_srq(shared, &attr, IBV_SRQ_LIMIT) == (wrong ? EINVAL : 0), "ibv_modify_srq");
}

static void ob_08(void)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = wrong ? 9 : 1 };
	want(!ibv_query_gid(ctx, 1, 0, &attr.grh.dgid), "ibv_query_gid");
	struct ibv_ah *ah = ibv_create_ah(pd, &attr);
	want(wrong ? !ah && errno == EINVAL : ah != NULL, "ibv_create_ah");
	want(!ah || !ibv_destroy_ah(ah), "ibv_destroy_ah");
}

static void ob_09(void)
{
	struct ibv_port_attr attr;
	want(ibv_query_port(ctx, wrong ? 9 : 1, &attr) == (wrong ? EINVAL : 0), "ibv_query_port");
}

static const struct misuse cases[] = {
	{ "MR-19", mr_19 }, { "QP-21", qp_21 }, { "WR-18", wr_18 }, { "CQ-14", cq_14 }, { "OB-07", ob_07 }, { "OB-08", ob_08 }, { "OB-09", ob_09 },
};

/* ---- all ---- */

static int unexplained;

/* What the layer wrote since the last time. */
static const char *news(void)
{
	static char text[8192];
	static long read_to;
	FILE *file = fopen(getenv("JSON"), "r");
	text[0] = 0;
	if (file && !fseek(file, read_to, SEEK_SET)) {
		text[fread(text, 1, sizeof(text) - 1, file)] = 0;
		read_to = ftell(file);
	}
	if (file)
		fclose(file);
	return text;
}

static void explained(const char *what, int refused, const char *argument)
{
	int error = errno;
	const char *told = news();
	int is_told = strstr(told, argument) && strstr(told, "\"remedy\":\"");
	if (refused && is_told)
		return;
	unexplained++;
	fprintf(stderr, "refusals: %s: %s (%s), told: %s\n", what, refused ? "refused" : "not refused", strerror(error), told);
}

#define NULL_OF(call, argument) do { errno = 0; explained(#call, !(call), argument); } while (0)
#define ERRNO_OF(call, argument) do { int result_ = (call); errno = result_; explained(#call, result_ != 0, argument); } while (0)

/* glibc's own function, which the replacement below calls. */
extern void *__libc_calloc(size_t count, size_t size);

/* The size of the only allocation that fails; 0 for none. */
static size_t failing_size;

/* libibverbs takes the structures that programs see from calloc(3), and hence from here. */
void *calloc(size_t count, size_t size)
{
	if (failing_size && count * size == failing_size) {
		failing_size = 0;
		errno = ENOMEM;
		return NULL;
	}
	return __libc_calloc(count, size);
}

/* The front-end has no memory for the structure of an object, and the provider is not asked. */
static void no_memory(void)
{
	failing_size = sizeof(struct ibv_comp_channel);
	NULL_OF(ibv_create_comp_channel(ctx), "ENOMEM: the completion channel cannot be allocated");
	want(!failing_size, "an allocation of the channel");
	int devices;
	struct ibv_device **list = ibv_get_device_list(&devices);
	want(list != NULL, "ibv_get_device_list");
	ibv_free_device_list(list);
	failing_size = (size_t)(devices + 1) * sizeof(*list);
	NULL_OF(ibv_get_device_list(NULL), "ENOMEM: the list of devices cannot be allocated");
	want(!failing_size, "an allocation of the list");
}

/* Calls that libibverbs refuses itself, so that they reach no operation of a provider. */
static void front_end(void)
{
	NULL_OF(ibv_open_device(NULL), "device is NULL");
	NULL_OF(ibv_alloc_pd(NULL), "context is NULL");
	ERRNO_OF(ibv_dealloc_pd(NULL), "pd is NULL");
	NULL_OF(ibv_reg_mr(NULL, buf, 64, 0), "pd is NULL");
	ERRNO_OF(ibv_dereg_mr(NULL), "mr is NULL");
	NULL_OF(ibv_create_srq(pd, NULL), "srq_init_attr is NULL");
	NULL_OF(ibv_create_cq(NULL, 1, NULL, NULL, 0), "context is NULL");
	ERRNO_OF(ibv_resize_cq(NULL, 1), "cq is NULL");
	ERRNO_OF(ibv_destroy_cq(NULL), "cq is NULL");
	ERRNO_OF(ibv_destroy_qp(NULL), "qp is NULL");
	ERRNO_OF(ibv_destroy_srq(NULL), "srq is NULL");
	NULL_OF(ibv_create_ah(NULL, NULL), "pd is NULL");
	ERRNO_OF(ibv_destroy_comp_channel(NULL), "channel is NULL");
	struct ibv_wc wc = { .wc_flags = IBV_WC_GRH };
	struct ibv_ah_attr reply;
	ERRNO_OF(ibv_init_ah_from_wc(ctx, 1, &wc, NULL, &reply), "grh is NULL");
	ERRNO_OF(ibv_init_ah_from_wc(ctx, 1, &wc, &(struct ibv_grh){ 0 }, &reply), "grh has no address of this port");
	ERRNO_OF(ibv_init_ah_from_wc(ctx, 1, NULL, NULL, &reply), "wc is NULL");
	union ibv_gid gid;
	ERRNO_OF(ibv_query_gid(ctx, 1, 1000, &gid), "index 1000 (0x3e8) is not in the table");
	ERRNO_OF(ibv_query_gid(ctx, 9, 0, &gid), "from 1 to phys_port_cnt");
	ERRNO_OF(ibv_query_gid(ctx, 1, 0, NULL), "gid is NULL");
	__be16 pkey;
	ERRNO_OF(ibv_query_pkey(ctx, 1, 1000, &pkey), "index 1000 (0x3e8) is not in the table");
	ERRNO_OF(ibv_get_pkey_index(ctx, 1, htobe16(0x1234)), "pkey 4660 (0x1234) is not in the P_Key table");
	NULL_OF(ibv_import_device(-1), "cmd_fd");
	struct ibv_mr_init_attr description = { .length = 64, .comp_mask = IBV_REG_MR_MASK_BUF };
	NULL_OF(ibv_reg_mr_ex(pd, &description), "mr_init_attr->buf is NULL");
	NULL_OF(ibv_reg_mr_ex(pd, NULL), "mr_init_attr is NULL");
	ERRNO_OF(ibv_rereg_mr(mr, 1 << 20, NULL, NULL, 0, 0), "flags has unknown bits");
	ERRNO_OF(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, NULL, 0, 0), "addr or length is 0");
	ERRNO_OF(ibv_set_ece(a, &(struct ibv_ece){ 0 }), "ece->vendor_id is 0");
	struct ibv_async_event event;
	ERRNO_OF(ibv_get_async_event(NULL, &event), "context is NULL");
	struct ibv_comp_channel *channel = ibv_create_comp_channel(ctx);
	struct ibv_cq *waiting = ibv_create_cq(ctx, 1, NULL, channel, 0);
	want(channel && waiting, "ibv_create_cq");
	struct ibv_cq *found;
	void *cq_context;
	ERRNO_OF(ibv_get_cq_event(channel, NULL, &cq_context), "cq is NULL");
	ERRNO_OF(ibv_get_cq_event(NULL, &found, &cq_context), "channel is NULL");
	ERRNO_OF(ibv_destroy_comp_channel(channel), "channel 1 (0x1) is used by completion queues");
	want(!ibv_destroy_cq(waiting) && !ibv_destroy_comp_channel(channel), "ibv_destroy_comp_channel");
	no_memory();
}

/* Fork support excludes memory from children before the provider sees the registration. */
static void forks(void)
{
	const char *reason = ibv_is_fork_initialized() == IBV_FORK_ENABLED ? "addr 4096 (0x1000) begins a range" : "0x1000";
	NULL_OF(ibv_reg_mr(pd, (void *)0x1000, 4096, IBV_ACCESS_LOCAL_WRITE), reason);
	ERRNO_OF(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, (void *)0x1000, 4096, 0), reason);
	if (unexplained)
		exit(1);
}

static void all(void)
{
	struct ibv_device_attr device;
	want(!ibv_query_device(ctx, &device), "ibv_query_device");
	NULL_OF(ibv_create_cq(ctx, 0, NULL, NULL, 0), "cqe 0");
	NULL_OF(ibv_create_cq(ctx, device.max_cqe + 1, NULL, NULL, 0), "max_cqe");
	NULL_OF(ibv_create_cq(ctx, 8, NULL, NULL, 7), "comp_vector 7");
	ERRNO_OF(ibv_resize_cq(cq, 0), "cqe 0");
	ERRNO_OF(ibv_modify_cq(cq, &(struct ibv_modify_cq_attr){ .attr_mask = 8 }), "attr_mask 0x8");
	struct ibv_cq_init_attr_ex extended = { .cqe = 0 };
	NULL_OF(ibv_create_cq_ex(ctx, &extended), "cqe 0");

	NULL_OF(ibv_reg_mr(pd, (void *)0x1000, 4096, IBV_ACCESS_LOCAL_WRITE), "the page 0x1000 is not mapped");
	char *page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	want(page != MAP_FAILED, "mmap");
	NULL_OF(ibv_reg_mr(pd, page, 4096, IBV_ACCESS_LOCAL_WRITE), "has the rights r--p");
	NULL_OF(ibv_reg_mr(pd, buf, 64, 1 | 1 << 12), "bits 0x1000");
	NULL_OF(ibv_reg_mr(pd, (void *)-64L, 128, IBV_ACCESS_LOCAL_WRITE), "address space");
	NULL_OF(ibv_reg_mr(pd, buf, 64, IBV_ACCESS_REMOTE_WRITE), "LOCAL_WRITE");
	NULL_OF(ibv_alloc_mw(pd, 9), "type 9");
	ERRNO_OF(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, NULL, 0), "num_sge 0");
	struct ibv_alloc_dm_attr memory = { .length = 64, .log_align_req = 99 };
	NULL_OF(ibv_alloc_dm(ctx, &memory), "log_align_req 99");
	struct ibv_mw *window = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	want(window != NULL, "ibv_alloc_mw");
	pair();
	struct ibv_mw_bind bind = { .send_flags = IBV_SEND_SIGNALED,
		.bind_info = { .mr = mr, .addr = (uintptr_t)buf, .length = 64, .mw_access_flags = IBV_ACCESS_REMOTE_READ } };
	want(!ibv_bind_mw(a, window, &bind), "ibv_bind_mw");
	ok(cq);
	ERRNO_OF(ibv_dereg_mr(mr), "windows");
	want(!ibv_dealloc_mw(window), "ibv_dealloc_mw");

	struct ibv_srq_init_attr queue = { .attr = { .max_wr = 1 << 30, .max_sge = 1 } };
	NULL_OF(ibv_create_srq(pd, &queue), "attr.max_wr 1073741824");
	queue.attr = (struct ibv_srq_attr){ .max_wr = 8, .max_sge = 1000 };
	NULL_OF(ibv_create_srq(pd, &queue), "attr.max_sge 1000");
	queue.attr.max_sge = 1;
	shared = ibv_create_srq(pd, &queue);
	want(shared != NULL, "ibv_create_srq");
	ERRNO_OF(ibv_modify_srq(shared, &(struct ibv_srq_attr){ .srq_limit = 100 }, IBV_SRQ_LIMIT), "srq_limit 100");
	struct ibv_ops_wr tags = { .opcode = IBV_WR_TAG_SYNC }, *bad_tags;
	ERRNO_OF(ibv_post_srq_ops(shared, &tags, &bad_tags), "matches no tags");
	struct ibv_srq_init_attr_ex special = { .attr = queue.attr, .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD, .srq_type = IBV_SRQT_XRC, .pd = pd };
	NULL_OF(ibv_create_srq_ex(ctx, &special), "IBV_SRQ_INIT_ATTR_XRCD");

	struct ibv_ah_attr address = { .port_num = 1, .is_global = 1, .grh = { .sgid_index = 31 } };
	NULL_OF(ibv_create_ah(pd, &address), "sgid_index 31");
	address.port_num = 9;
	NULL_OF(ibv_create_ah(pd, &address), "port_num 9");
	union ibv_gid gid = group();
	ERRNO_OF(ibv_attach_mcast(a, &gid, 0), "only UD");
	struct ibv_qp *datagrams = make(IBV_QPT_UD, cq, NULL, 0);
	ERRNO_OF(ibv_detach_mcast(datagrams, &gid, 0), "not attached");
	ERRNO_OF(ibv_attach_mcast(datagrams, &(union ibv_gid){ .raw = { 0xfe, 0x80 } }, 0), "no group");
	want(!ibv_destroy_qp(datagrams), "ibv_destroy_qp");

	struct ibv_port_attr port;
	ERRNO_OF(ibv_query_port(ctx, 2, &port), "port_num 2");
	ERRNO_OF(ibv_query_rt_values_ex(ctx, &(struct ibv_values_ex){ .comp_mask = 4 }), "comp_mask 0x4 has the bits 0x4");
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };
	NULL_OF(ibv_create_qp(pd, &init), "send_cq is NULL");
	init = (struct ibv_qp_init_attr){ .qp_type = IBV_QPT_RC, .send_cq = cq, .recv_cq = cq, .cap = { 1 << 30, 1, 1, 1, 0 } };
	NULL_OF(ibv_create_qp(pd, &init), "cap.max_send_wr 1073741824");
	struct ibv_qp_open_attr open = { .comp_mask = IBV_QP_OPEN_ATTR_NUM };
	NULL_OF(ibv_open_qp(ctx, &open), "comp_mask 0x1 lacks");
	struct ibv_xrcd_init_attr domain = { .comp_mask = IBV_XRCD_INIT_ATTR_FD, .fd = -1 };
	NULL_OF(ibv_open_xrcd(ctx, &domain), "comp_mask 0x1 lacks");
	struct ibv_wq_init_attr work = { .wq_type = IBV_WQT_RQ, .max_wr = 1, .max_sge = 1, .pd = pd };
	NULL_OF(ibv_create_wq(ctx, &work), "cq is NULL");
	struct ibv_rwq_ind_table_init_attr table = { .log_ind_tbl_size = 40 };
	NULL_OF(ibv_create_rwq_ind_table(ctx, &table), "log_ind_tbl_size 40");
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS };
	ERRNO_OF(ibv_modify_qp(a, &(struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT }, IBV_QP_STATE), "no change");
	ERRNO_OF(ibv_modify_qp(a, &attr, IBV_QP_STATE | IBV_QP_PORT), "IBV_QP_PORT");
	struct ibv_sge sge = piece(64);
	ERRNO_OF(post(a, request(IBV_WR_DRIVER1, &sge, 1)), "send_flags");
	ERRNO_OF(ibv_dealloc_pd(pd), "still used by");
	ERRNO_OF(ibv_destroy_cq(cq), "still used by");
	front_end();
	if (unexplained)
		exit(1);
}

int main(int argc, char **argv)
{
	static const struct misuse every[] = { { "all", all }, { "forks", forks } };
	if (argc > 1 && !strcmp(argv[1], "forks"))
		want(!ibv_fork_init(), "ibv_fork_init");
	if (argc > 1 && (!strcmp(argv[1], "all") || !strcmp(argv[1], "forks")))
		return run_case(argc, argv, every, 2);
	return run_case(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
