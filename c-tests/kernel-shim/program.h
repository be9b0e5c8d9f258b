/* Shared parts of the program: printing, stale memory, and the objects of commands. */
#ifndef PROGRAM_H
#define PROGRAM_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "private.h"
#include "shim.h"

/* errno before each call; shows calls that do not set errno. */
#define UNTOUCHED 77
#define DRIVER_DATA 24

extern struct ibv_context *context;
/* Whether the kernel of this run has an ioctl for each object. */
extern int knows_methods;
/* Whether the kernel has the ioctl that wraps write commands. */
extern int knows_wrapper;

/* Each command works on objects with these handles, whatever became of earlier commands. */
extern struct ibv_pd pd, other_pd;
extern struct verbs_mr mr;
extern struct ibv_mw mw;
extern struct verbs_cq cq;
extern struct verbs_qp qp;
extern struct verbs_srq srq;
extern struct verbs_xrcd xrcd;
extern unsigned char memory[4096];

/* Prints an object in words; addresses of the library's own memory differ from run to run. */
void dump(const char *name, const void *object, size_t size);
#define DUMP(object) dump(#object, &(object), sizeof(object))
#define DUMP_DRIVER(frame) dump(#frame ".driver", (frame).driver, sizeof((frame).driver))

#define CALL(call)							\
	({								\
		int result_;						\
									\
		shim_note("%s", #call);					\
		shim_print();						\
		errno = UNTOUCHED;					\
		result_ = (call);					\
		if (result_)						\
			shim_note("  = %d errno %d", result_, errno);	\
		result_;						\
	})

/* As CALL, where errno and what a failed call leaves behind are by accident. */
#define RESULT(call)							\
	({								\
		int result_;						\
									\
		shim_note("%s", #call);					\
		result_ = (call);					\
		shim_note("  = %d", result_);				\
		result_;						\
	})

/* Fills an object so that bytes which a call leaves alone are visible. */
#define STALE(object) memset(&(object), 0xa5, sizeof(object))

/* A command as a plugin keeps it on its stack: stale core, then driver data. */
#define REQUEST(type)					\
	struct {					\
		struct type core;			\
		unsigned char driver[DRIVER_DATA];	\
	} __attribute__((packed, aligned(8)))

#define FILL(frame, seed)									\
	do {											\
		memset(&(frame), 0x5c, sizeof(frame));						\
		for (size_t fill_ = 0; fill_ < sizeof((frame).driver); fill_++)			\
			(frame).driver[fill_] = (unsigned char)((seed) + fill_);		\
	} while (0)


/*
 * Attributes as inline code of rdma-core chains them: one driver attribute by address, one inline,
 * one answer in a second buffer.
 */
struct link {
	struct ibv_command_buffer buffer;
	struct ib_uverbs_attr attrs[8];
};
void link_init(struct link *link, uint16_t object, uint16_t method, struct ibv_command_buffer *next);
struct ib_uverbs_attr *link_attr(struct link *link, uint16_t id, uint16_t len, uint64_t data);
struct ibv_command_buffer *driver_chain(uint16_t object, uint16_t method);
void dump_chain(void);

/* The commands, part by part. */
void device(void);
void gids(void);
void address_helpers(void);
void domains(void);
void regions(void);
void device_memory(void);
void all_counters(void);
void completion_queues(void);
void shared_receive_queues(void);
void new_queue_pairs(void);
void queue_pairs(void);
void work_queues(void);
void posting(void);
void addresses(void);
void flows(void);
void flow_actions(void);
void chains(void);
void newer(void);

#endif
