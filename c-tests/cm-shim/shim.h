/*
 * A recording kernel for the connection manager, which answers from a script, and a libibverbs with
 * one device: the environment for librdmacm's kernel path. Descriptors of /dev/infiniband/rdma_cm
 * belong to the shim; all other descriptors go to the real kernel.
 */
#ifndef CM_SHIM_H
#define CM_SHIM_H

#include <stddef.h>
#include <stdint.h>
#include <rdma/rdma_user_cm.h>

/* How the kernel is. */
struct shim_kernel {
	/* Version of the commands; what sysfs says. */
	int abi;
	/* Supports the family AF_IB and its commands. */
	int any_family;
	/* Distinguishes devices with equal GUIDs by index. */
	int indices;
	/* This command fails with this errno; a negative errno is a short write. */
	int failing, error;
	/* The device is an iWARP device. */
	int iwarp;
	/* The device knows vendors' options. */
	int ece;
};
extern struct shim_kernel shim;

/* The next event of an id or a group, by the kernel's name of it. */
struct rdma_ucm_event_resp *shim_event(uint32_t handle, uint32_t kind, int status);
/* The name that the next id, group or request gets. */
uint32_t shim_next_handle(void);
/* A request to a listener; its event brings the new id. */
struct rdma_ucm_event_resp *shim_request(uint32_t listener);

/* Adds to the record, which is on stdout. */
void shim_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
void shim_bytes(const char *name, const void *bytes, size_t len);

#endif
