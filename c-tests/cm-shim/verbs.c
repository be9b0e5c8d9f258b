/*
 * A libibverbs with one device that only records operations on QPs, so that the test sees librdmacm
 * alone. It exports the names that librdmacm uses (verbs.map).
 */
#define _GNU_SOURCE
#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <infiniband/sa.h>
#include <infiniband/verbs.h>
#include <rdma/ib_user_sa.h>
#include <rdma/ib_user_verbs.h>

#include "shim.h"

static struct verbs_context the_context;
/* As libibverbs has it. No plugin announced the device, so it is the kernel's. */
static struct { struct ibv_device device; const void *ops, *others[6]; } the_whole = {
	.device = { .node_type = IBV_NODE_CA, .name = "recorded0", .dev_name = "uverbs0" },
};
#define the_device the_whole.device
static struct ibv_qp the_qp = { .qp_num = 0x1234 };
static struct ibv_cq the_cq;
static struct ibv_srq the_srq;
static struct ibv_comp_channel the_channel = { .fd = -1 };
static struct ibv_pd the_pd;
static struct ibv_device *devices[] = { &the_device, NULL };

#undef ibv_get_device_list
struct ibv_device **ibv_get_device_list(int *count)
{
	the_device.transport_type = shim.iwarp ? IBV_TRANSPORT_IWARP : IBV_TRANSPORT_IB;
	if (count)
		*count = 1;
	return devices;
}
void ibv_free_device_list(struct ibv_device **list) { (void)list; }

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	shim_note("  open the device\n");
	the_context.sz = sizeof(the_context);
	the_context.context.device = device;
	the_context.context.abi_compat = __VERBS_ABI_IS_EXTENDED;
	the_pd.context = the_qp.context = the_cq.context = &the_context.context;
	the_qp.pd = &the_pd;
	return &the_context.context;
}
int ibv_close_device(struct ibv_context *context) { (void)context; return 0; }
__be64 ibv_get_device_guid(struct ibv_device *device) { (void)device; return 0x0100000000000080ull; }
int ibv_get_device_index(struct ibv_device *device) { (void)device; return shim.indices ? 7 : -1; }

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	(void)context;
	memset(attr, 0, sizeof(*attr));
	attr->phys_port_cnt = 1;
	attr->max_qp_rd_atom = 9;
	attr->max_qp_init_rd_atom = 10;
	attr->max_qp_wr = 100;
	return 0;
}
#undef ibv_query_port
int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attr)
{
	struct ibv_port_attr known = { .state = IBV_PORT_ACTIVE, .link_layer = IBV_LINK_LAYER_ETHERNET };

	(void)context;
	(void)port;
	/* The oldest form ends behind the link layer and its padding. */
	memcpy(attr, &known, offsetof(struct ibv_port_attr, flags) + 1);
	return 0;
}
int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid)
{
	(void)context;
	(void)port;
	memset(gid, index, sizeof(*gid));
	return 0;
}
ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries, size_t most, uint32_t flags, size_t size);
ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries, size_t most, uint32_t flags, size_t size)
{
	(void)context;
	(void)entries;
	(void)most;
	(void)flags;
	(void)size;
	return 0;
}
#undef ibv_get_pkey_index
int ibv_get_pkey_index(struct ibv_context *context, uint8_t port, __be16 pkey)
{
	(void)context;
	shim_note("  P_Key index of %#x at port %u\n", pkey, port);
	return 3;
}
struct ibv_pd *ibv_alloc_pd(struct ibv_context *context) { (void)context; return &the_pd; }
int ibv_dealloc_pd(struct ibv_pd *pd) { (void)pd; return 0; }
#undef ibv_reg_mr
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t len, int access)
{
	(void)pd;
	(void)addr;
	(void)len;
	(void)access;
	errno = ENOMEM;
	return NULL;
}
int ibv_dereg_mr(struct ibv_mr *mr) { (void)mr; return 0; }
struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context) { (void)context; return &the_channel; }
int ibv_destroy_comp_channel(struct ibv_comp_channel *channel) { (void)channel; return 0; }
struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context, struct ibv_comp_channel *channel, int vector)
{
	(void)context;
	(void)cqe;
	(void)cq_context;
	(void)vector;
	the_cq.channel = channel;
	return &the_cq;
}
int ibv_destroy_cq(struct ibv_cq *cq) { (void)cq; return 0; }
int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
	(void)channel;
	(void)cq;
	(void)cq_context;
	return -1;
}
void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int count) { (void)cq; (void)count; }
struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr) { (void)pd; (void)attr; return &the_srq; }
int ibv_destroy_srq(struct ibv_srq *srq) { (void)srq; return 0; }
struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr) { (void)pd; (void)attr; return NULL; }
int ibv_destroy_ah(struct ibv_ah *ah) { (void)ah; return 0; }

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	(void)pd;
	shim_note("  create queue pair of type %d\n", attr->qp_type);
	the_qp.qp_type = attr->qp_type;
	the_qp.srq = attr->srq;
	return &the_qp;
}
int ibv_destroy_qp(struct ibv_qp *qp) { (void)qp; shim_note("  destroy queue pair\n"); return 0; }

/* Records the attributes in the mask. */
int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	(void)qp;
	shim_note("  modify %#x to %u", mask, attr->qp_state);
#define MAYBE(bit, field)				\
	if (mask & (bit))				\
		shim_bytes(#field, &attr->field, sizeof(attr->field))
	MAYBE(IBV_QP_ACCESS_FLAGS, qp_access_flags);
	MAYBE(IBV_QP_PKEY_INDEX, pkey_index);
	MAYBE(IBV_QP_PORT, port_num);
	MAYBE(IBV_QP_QKEY, qkey);
	MAYBE(IBV_QP_PATH_MTU, path_mtu);
	MAYBE(IBV_QP_TIMEOUT, timeout);
	MAYBE(IBV_QP_RETRY_CNT, retry_cnt);
	MAYBE(IBV_QP_RNR_RETRY, rnr_retry);
	MAYBE(IBV_QP_RQ_PSN, rq_psn);
	MAYBE(IBV_QP_SQ_PSN, sq_psn);
	MAYBE(IBV_QP_MAX_QP_RD_ATOMIC, max_rd_atomic);
	MAYBE(IBV_QP_MAX_DEST_RD_ATOMIC, max_dest_rd_atomic);
	MAYBE(IBV_QP_MIN_RNR_TIMER, min_rnr_timer);
	MAYBE(IBV_QP_DEST_QPN, dest_qp_num);
	if (mask & IBV_QP_AV) {
		struct ibv_ah_attr *ah = &attr->ah_attr;

		shim_bytes("dgid", &ah->grh.dgid, 16);
		shim_note(" flow %u index %u hops %u class %u lid %u sl %u bits %u rate %u global %u port %u", ah->grh.flow_label,
			  ah->grh.sgid_index, ah->grh.hop_limit, ah->grh.traffic_class, ah->dlid, ah->sl, ah->src_path_bits,
			  ah->static_rate, ah->is_global, ah->port_num);
	}
	shim_note("\n");
	return 0;
}
int ibv_attach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	(void)qp;
	shim_bytes(" attach", gid, 16);
	shim_note(" lid %u\n", lid);
	return 0;
}
int ibv_detach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	(void)qp;
	shim_bytes(" detach", gid, 16);
	shim_note(" lid %u\n", lid);
	return 0;
}
int ibv_query_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
	(void)qp;
	if (!shim.ece)
		return EOPNOTSUPP;
	ece->vendor_id = 0x15b3;
	ece->options = 0x70;
	return 0;
}
int ibv_set_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
	(void)qp;
	shim_note("  set ECE %#x %#x\n", ece->vendor_id, ece->options);
	return shim.ece ? 0 : EOPNOTSUPP;
}

const char *ibv_get_sysfs_path(void) { return "/sys"; }
int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size)
{
	(void)dir;
	if (strcmp(file, "class/misc/rdma_cm/abi_version") != 0)
		return -1;
	return snprintf(buf, size, "%d", shim.abi);
}

/* Structures of the kernel, as the library of release 44 unpacks them. */
void ibv_copy_ah_attr_from_kern(struct ibv_ah_attr *to, struct ib_uverbs_ah_attr *from);
void ibv_copy_ah_attr_from_kern(struct ibv_ah_attr *to, struct ib_uverbs_ah_attr *from)
{
	memset(to, 0, sizeof(*to));
	memcpy(&to->grh.dgid, from->grh.dgid, 16);
	to->grh.flow_label = from->grh.flow_label;
	to->grh.sgid_index = from->grh.sgid_index;
	to->grh.hop_limit = from->grh.hop_limit;
	to->grh.traffic_class = from->grh.traffic_class;
	to->dlid = from->dlid;
	to->sl = from->sl;
	to->src_path_bits = from->src_path_bits;
	to->static_rate = from->static_rate;
	to->is_global = from->is_global;
	to->port_num = from->port_num;
}
void ibv_copy_qp_attr_from_kern(struct ibv_qp_attr *to, struct ib_uverbs_qp_attr *from);
void ibv_copy_qp_attr_from_kern(struct ibv_qp_attr *to, struct ib_uverbs_qp_attr *from)
{
#define SAME(field) to->field = from->field
	SAME(cur_qp_state);
	SAME(path_mtu);
	SAME(path_mig_state);
	SAME(qkey);
	SAME(rq_psn);
	SAME(sq_psn);
	SAME(dest_qp_num);
	SAME(qp_access_flags);
	SAME(pkey_index);
	SAME(alt_pkey_index);
	SAME(en_sqd_async_notify);
	SAME(sq_draining);
	SAME(max_rd_atomic);
	SAME(max_dest_rd_atomic);
	SAME(min_rnr_timer);
	SAME(port_num);
	SAME(timeout);
	SAME(retry_cnt);
	SAME(rnr_retry);
	SAME(alt_port_num);
	SAME(alt_timeout);
	ibv_copy_ah_attr_from_kern(&to->ah_attr, &from->ah_attr);
	ibv_copy_ah_attr_from_kern(&to->alt_ah_attr, &from->alt_ah_attr);
}
void ibv_copy_path_rec_from_kern(struct ibv_sa_path_rec *to, struct ib_user_path_rec *from);
void ibv_copy_path_rec_from_kern(struct ibv_sa_path_rec *to, struct ib_user_path_rec *from)
{
	memcpy(&to->dgid, from->dgid, 16);
	memcpy(&to->sgid, from->sgid, 16);
	SAME(dlid);
	SAME(slid);
	SAME(raw_traffic);
	SAME(flow_label);
	SAME(hop_limit);
	SAME(traffic_class);
	SAME(reversible);
	SAME(numb_path);
	SAME(pkey);
	SAME(sl);
	SAME(mtu_selector);
	SAME(mtu);
	SAME(rate_selector);
	SAME(rate);
	SAME(packet_life_time_selector);
	SAME(packet_life_time);
	SAME(preference);
}
