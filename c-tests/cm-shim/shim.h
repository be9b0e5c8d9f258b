/*
 * A kernel's connection manager that answers from a script and writes down what it was asked, and a libibverbs with one
 * device: what a program needs to drive librdmacm's kernel path. Descriptors of /dev/infiniband/rdma_cm are the shim's
 * own; everything else goes to the real kernel.
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
	/* Knows the family AF_IB, and the commands that came with it. */
	int any_family;
	/* Says which of devices with one GUID is meant. */
	int indices;
	/* This command fails with this errno; a negative one is a write that comes back short. */
	int failing, error;
	/* The device is iWARP's. */
	int iwarp;
	/* The device knows vendors' options. */
	int ece;
};
extern struct shim_kernel shim;

/* The next event of an id or a group, by the kernel's name of it. */
struct rdma_ucm_event_resp *shim_event(uint32_t handle, uint32_t kind, int status);
/* The name that the next id, group or request gets. */
uint32_t shim_next_handle(void);
/* A request to a listener: its event brings this new id. */
struct rdma_ucm_event_resp *shim_request(uint32_t listener);

/* Adds to the record, which is on stdout. */
void shim_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
void shim_bytes(const char *name, const void *bytes, size_t len);

#endif
