/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A layer of librdmacm, by Ferroverbs: a shared object between a program and librdmacm.so.1. The
 * variable FERROVERBS_LAYERS names the layers (ferroverbs-layers(7), docs/reference/layers.md). The
 * same object may also be a layer of verbs (ferroverbs_layer.h). The Rust form is
 * abi/src/cm_layer.rs.
 */
#ifndef INFINIBAND_FERROVERBS_CM_LAYER_H
#define INFINIBAND_FERROVERBS_CM_LAYER_H

#include <rdma/rdma_cma.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The functions that a layer can replace, named without the prefix rdma_. New ones come last. */
struct ferroverbs_cm_calls {
	struct rdma_event_channel *(*create_event_channel)(void);
	void (*destroy_event_channel)(struct rdma_event_channel *channel);
	int (*get_cm_event)(struct rdma_event_channel *channel, struct rdma_cm_event **event);
	int (*ack_cm_event)(struct rdma_cm_event *event);
	int (*create_id)(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *context, enum rdma_port_space ps);
	int (*destroy_id)(struct rdma_cm_id *id);
	int (*migrate_id)(struct rdma_cm_id *id, struct rdma_event_channel *channel);
	int (*create_ep)(struct rdma_cm_id **id, struct rdma_addrinfo *res, struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
	void (*destroy_ep)(struct rdma_cm_id *id);
	int (*bind_addr)(struct rdma_cm_id *id, struct sockaddr *addr);
	int (*resolve_addr)(struct rdma_cm_id *id, struct sockaddr *src, struct sockaddr *dst, int timeout_ms);
	int (*resolve_route)(struct rdma_cm_id *id, int timeout_ms);
	int (*create_qp)(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
	int (*create_qp_ex)(struct rdma_cm_id *id, struct ibv_qp_init_attr_ex *attr);
	void (*destroy_qp)(struct rdma_cm_id *id);
	int (*create_srq)(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_srq_init_attr *attr);
	int (*create_srq_ex)(struct rdma_cm_id *id, struct ibv_srq_init_attr_ex *attr);
	void (*destroy_srq)(struct rdma_cm_id *id);
	int (*connect)(struct rdma_cm_id *id, struct rdma_conn_param *param);
	int (*establish)(struct rdma_cm_id *id);
	int (*listen)(struct rdma_cm_id *id, int backlog);
	int (*get_request)(struct rdma_cm_id *listener, struct rdma_cm_id **id);
	int (*accept)(struct rdma_cm_id *id, struct rdma_conn_param *param);
	int (*reject)(struct rdma_cm_id *id, const void *data, uint8_t length);
	int (*reject_ece)(struct rdma_cm_id *id, const void *data, uint8_t length);
	int (*disconnect)(struct rdma_cm_id *id);
	int (*notify)(struct rdma_cm_id *id, enum ibv_event_type event);
	int (*join_multicast)(struct rdma_cm_id *id, struct sockaddr *addr, void *context);
	int (*join_multicast_ex)(struct rdma_cm_id *id, struct rdma_cm_join_mc_attr_ex *attr, void *context);
	int (*leave_multicast)(struct rdma_cm_id *id, struct sockaddr *addr);
	int (*set_option)(struct rdma_cm_id *id, int level, int option, void *value, size_t length);
	int (*init_qp_attr)(struct rdma_cm_id *id, struct ibv_qp_attr *attr, int *mask);
	int (*set_local_ece)(struct rdma_cm_id *id, struct ibv_ece *ece);
	int (*get_remote_ece)(struct rdma_cm_id *id, struct ibv_ece *ece);
	int (*write_cm_event)(struct rdma_cm_id *id, enum rdma_cm_event_type event, int status, uint64_t arg);
	int (*getaddrinfo)(const char *node, const char *service, const struct rdma_addrinfo *hints, struct rdma_addrinfo **res);
	void (*freeaddrinfo)(struct rdma_addrinfo *res);
	int (*resolve_addrinfo)(struct rdma_cm_id *id, const char *node, const char *service, const struct rdma_addrinfo *hints);
	int (*query_addrinfo)(struct rdma_cm_id *id, struct rdma_addrinfo **info);
	struct ibv_context **(*get_devices)(int *count);
	void (*free_devices)(struct ibv_context **list);
};

struct ferroverbs_cm_layer {
	size_t size;		/* of this structure, as the layer knows it */
	size_t calls;		/* of struct ferroverbs_cm_calls, as the layer knows it: later calls are passed on */
	const char *name;	/* for diagnoses */
	/*
	 * Called once in a process, by the first call that creates an object. The layer must not
	 * call librdmacm in it.
	 * next: the functions beneath the layer. No entry is NULL, and no entry changes.
	 * mine: all NULL. A function that the layer stores here is called instead of the entry of
	 * next. Calls of entries that stay NULL are passed on.
	 * Both tables live as long as the process. 0, or an errno: the layer is left out.
	 */
	int (*attach)(const struct ferroverbs_cm_calls *next, struct ferroverbs_cm_calls *mine);
};

/* Defined by the layer, as data that never changes. */
extern const struct ferroverbs_cm_layer ferroverbs_cm_layer_v1;

#ifdef __cplusplus
}
#endif

#endif
