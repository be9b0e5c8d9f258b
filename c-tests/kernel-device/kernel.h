/*
 * Helpers of the programs that use a kernel device. The output must be equal over the system's
 * library and Ferroverbs', so the programs print nothing that varies between runs. They run as root
 * of a virtual machine.
 */
#ifndef KERNEL_H
#define KERNEL_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The test itself cannot go on. */
#define die(...) (printf("cannot go on: " __VA_ARGS__), printf("\n"), exit(2))

/* Runs a shell line, which must succeed. */
void shell(const char *line);

/* The device named `name`, or NULL. */
struct ibv_device *find(struct ibv_device **list, const char *name);

/* Opens the device named `name`. */
struct ibv_context *open_named(const char *name);

/* Waits for a port to be in a state; prints what it came to. */
void port_becomes(struct ibv_context *ctx, enum ibv_port_state wanted);

/* Two connected RC QPs of one device. */
struct loop {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct ibv_qp *qp[2];
};

/* Makes and connects the QPs; `with_srq`: their receives come from one SRQ. */
void loop_open(struct loop *l, struct ibv_context *ctx, int with_srq);

/* Sends from the first QP to the second, one piece each; prints both completions. */
void loop_send(struct loop *l, struct ibv_mr *mr, void *from, uint32_t len);

/* Posts one receive to the second QP or to the SRQ. */
void receive(struct loop *l, struct ibv_mr *mr, void *to, uint32_t len);

/* Destroys everything; prints what each call returns. */
void loop_close(struct loop *l);

#endif
