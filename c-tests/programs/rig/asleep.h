/*
 * Waits until a thread of this process sleeps in the kernel and stays asleep.
 *
 * A test cannot wait for an event that must not happen. These functions read the state of the
 * thread in /proc many times instead. A thread that runs on by mistake is awake, or has another
 * count of context switches, at one of the samples. The result does not depend on the load of the
 * machine.
 */
#ifndef ASLEEP_H
#define ASLEEP_H

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

/* A call in a thread of its own. */
struct call {
	int (*make)(void *);
	void *object;
	pthread_t thread;
	pid_t tid;
	int result, over;
};

/* Waits up to 20 s until thread `tid` stays asleep. Returns 1 then, 0 if `over` was set first or
 * time ran out. */
int stays_asleep(pid_t tid, const int *over);
/* Starts the call. Returns 1 once the thread stays asleep, 0 if the call returned or does not
 * sleep. */
int call_sleeps(struct call *c);
/* Waits for the end of the call and returns the call's result. */
int call_result(struct call *c);

#endif
