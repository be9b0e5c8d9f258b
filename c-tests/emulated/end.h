/*
 * What the programs over an emulated device share: one device with a PD, a region, a CQ and an
 * address handle, and checks that print a line when they fail.
 */
#ifndef END_H
#define END_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>

#define QKEY 0x11111111

/* Whether a check of this process failed. */
extern int failed;
/* The name of this process in messages. */
extern const char *who;

/* Prints a line when the condition is false, and goes on. */
#define CHECK(condition)                                                            \
	do {                                                                        \
		if (!(condition)) {                                                 \
			printf("%s line %d: %s\n", who, __LINE__, #condition);      \
			failed = 1;                                                 \
		}                                                                   \
	} while (0)

/* Prints a line with errno when the condition is false, and ends the process. */
#define MUST(condition)                                                                     \
	do {                                                                                \
		if (!(condition)) {                                                         \
			printf("%s line %d: %s (errno %d)\n", who, __LINE__, #condition, errno); \
			exit(1);                                                            \
		}                                                                           \
	} while (0)

extern struct ibv_context *context;
extern struct ibv_pd *pd;
extern struct ibv_mr *mr;
extern struct ibv_cq *cq;
extern struct ibv_ah *ah;
/* The bytes of `mr`. */
extern char *memory;

/* Moves a QP to a state, with the attributes that this transition requires. */
void to_state(struct ibv_qp *qp, enum ibv_qp_state state);

/* Moves a new QP to RTS, and returns it. */
struct ibv_qp *ready(struct ibv_qp *qp);

/* Polls `cq` until it has a completion; the process ends after 60 seconds. */
struct ibv_wc completion(void);

/* The size of `memory` in bytes. */
#define AREA 65536

/* Opens the only device, which must have this name, and makes `memory`, `pd` and `mr`. */
void open_end(const char *name, int access);

/* Destroys `ah` and what open_end made. The program has destroyed its QPs and CQs. */
void close_end(void);

/*
 * Starts a process that runs `child` with a socket and ends with its result. Returns the parent's
 * socket.
 */
int start_child(int (*child)(int socket), pid_t *pid);

/* Sends `own` to the other process and receives `other` from it, `length` bytes each. */
void exchange(int socket, const void *own, void *other, size_t length);

/* Waits until both processes have called this function. */
void step(int socket);

#endif
