/*
 * The private provider ABI of rdma-core, as far as a plugin that only sends commands needs it.
 * RELEASE selects 44 (number 34), 56 (the same number with another ABI) or 65 (number 65). Written
 * from layouts and prototypes that binaries agree on; Debian does not install rdma-core's own
 * header. Assertions check the sizes. Works with public headers of release 44 and later; newer
 * names are declared here.
 *
 * Map of this file: structures of devices and providers, with the table of operations; structures
 * of objects that wrap public ones. Structures that are newer than release 44 follow; `COMMAND`
 * declares the requests of write commands. `ibv_command_buffer` holds ioctl attributes of a driver.
 * The prototypes stand last: registration and contexts, then the functions `ibv_cmd_*`, one for
 * each command.
 */
#ifndef PRIVATE_H
#define PRIVATE_H

#ifndef RELEASE
#define RELEASE 44
#endif

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <infiniband/verbs.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_user_ioctl_cmds.h>

/* --- devices --- */

struct verbs_sysfs_dev {
	void *list[2];
	void *provider_data;
	const void *match;
	unsigned int flags;
	char sysfs_name[64];
	uint64_t sysfs_cdev;
	char ibdev_name[64];
	char ibdev_path[256];
	char modalias[512];
	uint64_t node_guid;
	uint32_t driver_id;
	int node_type;
	int ibdev_idx;
	uint32_t num_ports;
	uint32_t abi_ver;
	struct timespec time_created;
};
static_assert(sizeof(struct verbs_sysfs_dev) == 992, "rdma-core 44");

struct verbs_device {
	struct ibv_device device;
	const struct verbs_device_ops *ops;
	int refcount;
	void *list[2];
	struct verbs_sysfs_dev *sysfs;
	uint64_t core_support;
};
static_assert(sizeof(struct verbs_device) == 712, "rdma-core 44");

struct verbs_device_ops {
	const char *name;
	uint32_t match_min_abi_version;
	uint32_t match_max_abi_version;
	const void *match_table;
	const void **static_providers;
	bool (*match_device)(struct verbs_sysfs_dev *sysfs_dev);
	struct verbs_context *(*alloc_context)(struct ibv_device *device, int cmd_fd, void *private_data);
	struct verbs_context *(*import_context)(struct ibv_device *device, int cmd_fd);
	struct verbs_device *(*alloc_device)(struct verbs_sysfs_dev *sysfs_dev);
	void (*uninit_device)(struct verbs_device *device);
};
static_assert(sizeof(struct verbs_device_ops) == 72, "rdma-core 44");

/* Operations, sorted by name; free_context is one of them. */
#if RELEASE >= 65
#define OPS 93
#define OP_FREE_CONTEXT 46
/* verbs_context has grown at its front. */
#define OLDER_VERBS_CONTEXT 48
#define PABI(name) name##_65
#else
#define OPS 76
#define OP_FREE_CONTEXT 39
#define OLDER_VERBS_CONTEXT 0
#define PABI(name) name##_34
#endif
struct verbs_context_ops {
	void *op[OPS];
};

/* --- objects --- */

struct verbs_mr {
	struct ibv_mr ibv_mr;
	unsigned int mr_type;
	int access;
};
struct verbs_xrcd {
	struct ibv_xrcd xrcd;
	uint32_t comp_mask;
	uint32_t handle;
};
struct verbs_srq {
	struct ibv_srq srq;
	unsigned int srq_type;
	struct verbs_xrcd *xrcd;
	struct ibv_cq *cq;
	uint32_t srq_num;
};
/* The public structures have grown at their ends. The room for them depends on RELEASE, not on the
 * installed header. */
struct verbs_qp {
	union {
		struct ibv_qp qp;
		/* struct ibv_qp_ex */
		uint64_t ex[RELEASE >= 45 ? 45 : 44];
	};
	uint32_t comp_mask;
	struct verbs_xrcd *xrcd;
};
struct verbs_cq {
	union {
		struct ibv_cq cq;
		/* struct ibv_cq_ex */
		uint64_t ex[36];
	};
};
struct verbs_dm {
	struct ibv_dm dm;
	uint32_t handle;
};
struct verbs_counters {
	struct ibv_counters counters;
	uint32_t handle;
};
struct verbs_flow_action {
	struct ibv_flow_action action;
	uint32_t handle;
	unsigned int type;
};
static_assert(sizeof(struct verbs_mr) == 56, "rdma-core 44");
static_assert(sizeof(struct verbs_xrcd) == 16, "rdma-core 44");
static_assert(sizeof(struct verbs_srq) == 160, "rdma-core 44");
static_assert(sizeof(struct verbs_qp) == (RELEASE >= 45 ? 376 : 368), "since rdma-core 45");
static_assert(sizeof(struct verbs_cq) == 288, "rdma-core 44");
static_assert(sizeof(struct verbs_dm) == 40, "rdma-core 44");
static_assert(sizeof(struct verbs_counters) == 16, "rdma-core 44");
static_assert(sizeof(struct verbs_flow_action) == 16, "rdma-core 44");

enum { CREATE_CQ_CMD_FLAGS_TS_IGNORED_EX = 1, CREATE_CQ_CMD_FLAGS_WITH_MEM_VA = 2, CREATE_CQ_CMD_FLAGS_WITH_MEM_DMABUF = 4 };

/* --- names newer than release 44 --- */

/* From <rdma/ib_user_ioctl_cmds.h>, renamed because the header may define it. */
#define OBJECT_COMP_CNTR 19

struct ibv_fd_arr {
	int *arr;
	uint32_t count;
};

struct verbs_create_cq_prov_attr {
	uint64_t length;
	union {
		uint8_t *ptr;
		struct {
			uint64_t offset;
			int fd;
		} dmabuf;
	};
};

struct verbs_dmah {
	struct ibv_context *context;
	uint32_t handle;
};

struct ibv_dmah_init_attr {
	uint32_t comp_mask;
	uint32_t cpu_id;
	uint8_t ph;
	uint8_t tph_mem_type;
};

struct ibv_mr_init_attr {
	size_t length;
	int access;
	uint64_t comp_mask;
	uint64_t iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
	struct verbs_dmah *dmah;
	void *buf;
};
enum { REG_MR_IOVA = 1, REG_MR_ADDR = 2, REG_MR_FD = 4, REG_MR_FD_OFFSET = 8, REG_MR_DMAH = 16 };

struct ibv_comp_cntr {
	struct ibv_context *context;
	uint32_t handle;
};

struct ibv_comp_cntr_caps {
	uint64_t max_value;
	uint32_t max_counters;
	uint32_t supported_qp_attach_ops;
};

struct ibv_qp_attach_comp_cntr_attr {
	uint32_t comp_mask;
	uint32_t op_mask;
};
static_assert(sizeof(struct verbs_create_cq_prov_attr) == 24, "rdma-core 59");
static_assert(sizeof(struct verbs_dmah) == 16, "rdma-core 59");
static_assert(sizeof(struct ibv_dmah_init_attr) == 12, "rdma-core 59");
static_assert(sizeof(struct ibv_mr_init_attr) == 72, "rdma-core 64");
static_assert(sizeof(struct ibv_comp_cntr) == 16, "rdma-core 65");
static_assert(sizeof(struct ibv_comp_cntr_caps) == 16, "rdma-core 65");
static_assert(sizeof(struct ibv_qp_attach_comp_cntr_attr) == 8, "rdma-core 65");

/* --- commands: header and core request --- */

struct ex_hdr {
	struct ib_uverbs_cmd_hdr hdr;
	struct ib_uverbs_ex_cmd_hdr ex_hdr;
};

#define COMMAND(name, header, core)		\
	struct ibv_##name {			\
		struct header hdr;		\
		struct core core_payload;	\
	}

COMMAND(alloc_mw, ib_uverbs_cmd_hdr, ib_uverbs_alloc_mw);
COMMAND(alloc_pd, ib_uverbs_cmd_hdr, ib_uverbs_alloc_pd);
COMMAND(create_cq, ib_uverbs_cmd_hdr, ib_uverbs_create_cq);
COMMAND(create_cq_ex, ex_hdr, ib_uverbs_ex_create_cq);
COMMAND(create_qp, ib_uverbs_cmd_hdr, ib_uverbs_create_qp);
COMMAND(create_qp_ex, ex_hdr, ib_uverbs_ex_create_qp);
COMMAND(create_srq, ib_uverbs_cmd_hdr, ib_uverbs_create_srq);
COMMAND(create_wq, ex_hdr, ib_uverbs_ex_create_wq);
COMMAND(create_xsrq, ib_uverbs_cmd_hdr, ib_uverbs_create_xsrq);
COMMAND(get_context, ib_uverbs_cmd_hdr, ib_uverbs_get_context);
COMMAND(modify_cq, ex_hdr, ib_uverbs_ex_modify_cq);
COMMAND(modify_qp, ib_uverbs_cmd_hdr, ib_uverbs_modify_qp);
COMMAND(modify_qp_ex, ex_hdr, ib_uverbs_ex_modify_qp);
COMMAND(modify_srq, ib_uverbs_cmd_hdr, ib_uverbs_modify_srq);
COMMAND(modify_wq, ex_hdr, ib_uverbs_ex_modify_wq);
COMMAND(open_qp, ib_uverbs_cmd_hdr, ib_uverbs_open_qp);
COMMAND(open_xrcd, ib_uverbs_cmd_hdr, ib_uverbs_open_xrcd);
COMMAND(query_port, ib_uverbs_cmd_hdr, ib_uverbs_query_port);
COMMAND(query_qp, ib_uverbs_cmd_hdr, ib_uverbs_query_qp);
COMMAND(query_srq, ib_uverbs_cmd_hdr, ib_uverbs_query_srq);
COMMAND(reg_mr, ib_uverbs_cmd_hdr, ib_uverbs_reg_mr);
COMMAND(rereg_mr, ib_uverbs_cmd_hdr, ib_uverbs_rereg_mr);
COMMAND(resize_cq, ib_uverbs_cmd_hdr, ib_uverbs_resize_cq);

/* --- chained attributes --- */

struct ibv_command_buffer {
	struct ibv_command_buffer *next;
	struct ib_uverbs_attr *next_attr;
	struct ib_uverbs_attr *last_attr;
	uint8_t uhw_in_idx;
	uint8_t uhw_out_idx;
	uint8_t uhw_in_headroom_dwords;
	uint8_t uhw_out_headroom_dwords;
	uint8_t buffer_error : 1;
	uint8_t fallback_require_ex : 1;
	uint8_t fallback_ioctl_only : 1;
	struct ib_uverbs_ioctl_hdr hdr;
};
static_assert(sizeof(struct ibv_command_buffer) == 56, "rdma-core 44");

/* --- functions that the library exports to plugins --- */

#define verbs_register_driver PABI(verbs_register_driver)
void verbs_register_driver(const struct verbs_device_ops *ops);
void *_verbs_init_and_alloc_context(struct ibv_device *device, int cmd_fd, size_t size, struct verbs_context *offset,
				    uint32_t driver_id);
void verbs_uninit_context(struct verbs_context *context);
void verbs_set_ops(struct verbs_context *context, const struct verbs_context_ops *ops);
int ibv_query_gid_type(struct ibv_context *context, uint8_t port, unsigned int index, unsigned int *type);
void verbs_init_cq(struct ibv_cq *cq, struct ibv_context *context, struct ibv_comp_channel *channel, void *cq_context);
unsigned int __ioctl_final_num_attrs(unsigned int num_attrs, struct ibv_command_buffer *link);
int execute_ioctl(struct ibv_context *context, struct ibv_command_buffer *cmd);

/* Arguments that later releases added, in the middle or at the end of a prototype. */
#if RELEASE >= 57
#define SINCE_57(...) __VA_ARGS__
#else
#define SINCE_57(...)
#endif
#if RELEASE >= 59
#define SINCE_59(...) __VA_ARGS__
#else
#define SINCE_59(...)
#endif
#if RELEASE >= 54
#define SINCE_54(...) __VA_ARGS__
#else
#define SINCE_54(...)
#endif
#if RELEASE >= 64
#define SINCE_64(...) __VA_ARGS__
#else
#define SINCE_64(...)
#endif

int ibv_cmd_get_context(struct verbs_context *context, struct ibv_get_context *cmd,
			size_t cmd_size SINCE_57(, struct ibv_fd_arr *fds), struct ib_uverbs_get_context_resp *resp,
			size_t resp_size);
int ibv_cmd_query_context(struct ibv_context *context, struct ibv_command_buffer *driver);
int ibv_cmd_query_device_any(struct ibv_context *context, const struct ibv_query_device_ex_input *input,
			     struct ibv_device_attr_ex *attr, size_t attr_size,
			     struct ib_uverbs_ex_query_device_resp *resp, size_t *resp_size);
int ibv_cmd_query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr,
		       struct ibv_query_port *cmd, size_t cmd_size);
int ibv_cmd_alloc_pd(struct ibv_context *context, struct ibv_pd *pd, struct ibv_alloc_pd *cmd, size_t cmd_size,
		     struct ib_uverbs_alloc_pd_resp *resp, size_t resp_size);
int ibv_cmd_dealloc_pd(struct ibv_pd *pd);
int ibv_cmd_open_xrcd(struct ibv_context *context, struct verbs_xrcd *xrcd, int xrcd_size,
		      struct ibv_xrcd_init_attr *attr, struct ibv_open_xrcd *cmd, size_t cmd_size,
		      struct ib_uverbs_open_xrcd_resp *resp, size_t resp_size);
int ibv_cmd_close_xrcd(struct verbs_xrcd *xrcd);
int ibv_cmd_reg_mr(struct ibv_pd *pd, void *addr, size_t length, uint64_t hca_va, int access, struct verbs_mr *mr,
		   struct ibv_reg_mr *cmd, size_t cmd_size, struct ib_uverbs_reg_mr_resp *resp, size_t resp_size);
int ibv_cmd_rereg_mr(struct verbs_mr *mr, uint32_t flags, void *addr, size_t length, uint64_t hca_va, int access,
		     struct ibv_pd *pd, struct ibv_rereg_mr *cmd, size_t cmd_size, struct ib_uverbs_rereg_mr_resp *resp,
		     size_t resp_size);
int ibv_cmd_dereg_mr(struct verbs_mr *mr);
int ibv_cmd_query_mr(struct ibv_pd *pd, struct verbs_mr *mr, uint32_t handle);
int ibv_cmd_advise_mr(struct ibv_pd *pd, enum ibv_advise_mr_advice advice, uint32_t flags, struct ibv_sge *sg_list,
		      uint32_t num_sge);
int ibv_cmd_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access,
			  struct verbs_mr *mr SINCE_54(, struct ibv_command_buffer *driver));
int ibv_cmd_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type, struct ibv_mw *mw, struct ibv_alloc_mw *cmd,
		     size_t cmd_size, struct ib_uverbs_alloc_mw_resp *resp, size_t resp_size);
int ibv_cmd_dealloc_mw(struct ibv_mw *mw);
int ibv_cmd_create_cq(struct ibv_context *context, int cqe, struct ibv_comp_channel *channel, int comp_vector,
		      struct ibv_cq *cq, struct ibv_create_cq *cmd, size_t cmd_size,
		      struct ib_uverbs_create_cq_resp *resp, size_t resp_size);
int ibv_cmd_create_cq_ex(struct ibv_context *context,
			 const struct ibv_cq_init_attr_ex *attr SINCE_59(, struct verbs_create_cq_prov_attr *prov_attr),
			 struct verbs_cq *cq, struct ibv_create_cq_ex *cmd, size_t cmd_size,
			 struct ib_uverbs_ex_create_cq_resp *resp, size_t resp_size, uint32_t cmd_flags);
int ibv_cmd_destroy_cq(struct ibv_cq *cq);
int ibv_cmd_resize_cq(struct ibv_cq *cq, int cqe, struct ibv_resize_cq *cmd, size_t cmd_size,
		      struct ib_uverbs_resize_cq_resp *resp, size_t resp_size);
int ibv_cmd_modify_cq(struct ibv_cq *cq, struct ibv_modify_cq_attr *attr, struct ibv_modify_cq *cmd, size_t cmd_size);
int ibv_cmd_poll_cq(struct ibv_cq *cq, int ne, struct ibv_wc *wc);
int ibv_cmd_req_notify_cq(struct ibv_cq *cq, int solicited_only);
int ibv_cmd_create_qp(struct ibv_pd *pd, struct ibv_qp *qp, struct ibv_qp_init_attr *attr, struct ibv_create_qp *cmd,
		      size_t cmd_size, struct ib_uverbs_create_qp_resp *resp, size_t resp_size);
int ibv_cmd_create_qp_ex(struct ibv_context *context, struct verbs_qp *qp, struct ibv_qp_init_attr_ex *attr,
			 struct ibv_create_qp *cmd, size_t cmd_size, struct ib_uverbs_create_qp_resp *resp,
			 size_t resp_size);
int ibv_cmd_create_qp_ex2(struct ibv_context *context, struct verbs_qp *qp, struct ibv_qp_init_attr_ex *attr,
			  struct ibv_create_qp_ex *cmd, size_t cmd_size, struct ib_uverbs_ex_create_qp_resp *resp,
			  size_t resp_size SINCE_64(, struct ibv_command_buffer *driver));
int ibv_cmd_open_qp(struct ibv_context *context, struct verbs_qp *qp, int qp_size, struct ibv_qp_open_attr *attr,
		    struct ibv_open_qp *cmd, size_t cmd_size, struct ib_uverbs_create_qp_resp *resp, size_t resp_size);
int ibv_cmd_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_modify_qp *cmd,
		      size_t cmd_size);
int ibv_cmd_modify_qp_ex(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_modify_qp_ex *cmd,
			 size_t cmd_size, struct ib_uverbs_ex_modify_qp_resp *resp, size_t resp_size);
int ibv_cmd_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init_attr,
		     struct ibv_query_qp *cmd, size_t cmd_size);
int ibv_cmd_destroy_qp(struct ibv_qp *qp);
int ibv_cmd_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr);
int ibv_cmd_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr);
int ibv_cmd_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr);
int ibv_cmd_attach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid);
int ibv_cmd_detach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid);
int ibv_cmd_create_srq(struct ibv_pd *pd, struct ibv_srq *srq, struct ibv_srq_init_attr *attr,
		       struct ibv_create_srq *cmd, size_t cmd_size, struct ib_uverbs_create_srq_resp *resp,
		       size_t resp_size);
int ibv_cmd_create_srq_ex(struct ibv_context *context, struct verbs_srq *srq, struct ibv_srq_init_attr_ex *attr,
			  struct ibv_create_xsrq *cmd, size_t cmd_size, struct ib_uverbs_create_srq_resp *resp,
			  size_t resp_size);
int ibv_cmd_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr, int mask, struct ibv_modify_srq *cmd,
		       size_t cmd_size);
int ibv_cmd_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr, struct ibv_query_srq *cmd, size_t cmd_size);
int ibv_cmd_destroy_srq(struct ibv_srq *srq);
int ibv_cmd_create_wq(struct ibv_context *context, struct ibv_wq_init_attr *attr, struct ibv_wq *wq,
		      struct ibv_create_wq *cmd, size_t cmd_size, struct ib_uverbs_ex_create_wq_resp *resp,
		      size_t resp_size);
int ibv_cmd_modify_wq(struct ibv_wq *wq, struct ibv_wq_attr *attr, struct ibv_modify_wq *cmd, size_t cmd_size);
int ibv_cmd_destroy_wq(struct ibv_wq *wq);
int ibv_cmd_create_rwq_ind_table(struct ibv_context *context, struct ibv_rwq_ind_table_init_attr *attr,
				 struct ibv_rwq_ind_table *table, struct ib_uverbs_ex_create_rwq_ind_table_resp *resp,
				 size_t resp_size);
int ibv_cmd_destroy_rwq_ind_table(struct ibv_rwq_ind_table *table);
int ibv_cmd_create_ah(struct ibv_pd *pd, struct ibv_ah *ah, struct ibv_ah_attr *attr,
		      struct ib_uverbs_create_ah_resp *resp, size_t resp_size);
int ibv_cmd_destroy_ah(struct ibv_ah *ah);
int ibv_cmd_create_flow(struct ibv_qp *qp, struct ibv_flow *flow, struct ibv_flow_attr *attr, void *ucmd,
			size_t ucmd_size);
int ibv_cmd_destroy_flow(struct ibv_flow *flow);
int ibv_cmd_create_flow_action_esp(struct ibv_context *context, struct ibv_flow_action_esp_attr *attr,
				   struct verbs_flow_action *action, struct ibv_command_buffer *driver);
int ibv_cmd_modify_flow_action_esp(struct verbs_flow_action *action, struct ibv_flow_action_esp_attr *attr,
				   struct ibv_command_buffer *driver);
int ibv_cmd_destroy_flow_action(struct verbs_flow_action *action);
int ibv_cmd_create_counters(struct ibv_context *context, struct ibv_counters_init_attr *attr,
			    struct verbs_counters *counters, struct ibv_command_buffer *link);
int ibv_cmd_destroy_counters(struct verbs_counters *counters);
int ibv_cmd_read_counters(struct verbs_counters *counters, uint64_t *values, uint32_t count, uint32_t flags,
			  struct ibv_command_buffer *link);
int ibv_cmd_alloc_dm(struct ibv_context *context, const struct ibv_alloc_dm_attr *attr, struct verbs_dm *dm,
		     struct ibv_command_buffer *link);
int ibv_cmd_free_dm(struct verbs_dm *dm);
int ibv_cmd_reg_dm_mr(struct ibv_pd *pd, struct verbs_dm *dm, uint64_t offset, size_t length, unsigned int access,
		      struct verbs_mr *mr, struct ibv_command_buffer *link);

int ibv_cmd_create_cq_ex2(struct ibv_context *context,
			  const struct ibv_cq_init_attr_ex *attr SINCE_59(, struct verbs_create_cq_prov_attr *prov_attr),
			  struct verbs_cq *cq, struct ibv_create_cq_ex *cmd, size_t cmd_size,
			  struct ib_uverbs_ex_create_cq_resp *resp, size_t resp_size, uint32_t cmd_flags,
			  struct ibv_command_buffer *driver);
int ibv_cmd_alloc_dmah(struct ibv_context *context, struct verbs_dmah *dmah, struct ibv_dmah_init_attr *attr);
int ibv_cmd_free_dmah(struct verbs_dmah *dmah);
int ibv_cmd_reg_mr_ex(struct ibv_pd *pd, struct verbs_mr *mr, struct ibv_mr_init_attr *attr);
int ibv_cmd_export_dmabuf_fd(struct ibv_context *context, off_t page_offset);
int ibv_cmd_query_port_speed(struct ibv_context *context, uint32_t port, uint64_t *speed);
int ibv_cmd_create_comp_cntr(struct ibv_context *context, struct ibv_comp_cntr *counter, struct ibv_command_buffer *link);
int ibv_cmd_destroy_comp_cntr(struct ibv_comp_cntr *counter);
int ibv_cmd_set_comp_cntr(struct ibv_comp_cntr *counter, uint64_t value);
int ibv_cmd_set_err_comp_cntr(struct ibv_comp_cntr *counter, uint64_t value);
int ibv_cmd_inc_comp_cntr(struct ibv_comp_cntr *counter, uint64_t amount);
int ibv_cmd_inc_err_comp_cntr(struct ibv_comp_cntr *counter, uint64_t amount);
int ibv_cmd_read_comp_cntr(struct ibv_comp_cntr *counter, uint64_t *value);
int ibv_cmd_read_err_comp_cntr(struct ibv_comp_cntr *counter, uint64_t *value);
int ibv_cmd_qp_attach_comp_cntr(struct ibv_qp *qp, struct ibv_comp_cntr *counter,
				struct ibv_qp_attach_comp_cntr_attr *attr);
int ibv_cmd_query_comp_cntr_caps(struct ibv_context *context, struct ibv_comp_cntr_caps *caps, size_t size);

#endif
