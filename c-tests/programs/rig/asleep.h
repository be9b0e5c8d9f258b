/*
 * Threads that must not go on before something has happened: they are waited for until they sleep in the kernel, and go on sleeping.
 *
 * That something does not happen cannot be waited for; it is looked at a number of times. A thread that goes on in spite of it is awake, or has been
 * switched to, at one of the looks, however much the machine has to do.
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

/* A call that is made by a thread of its own. */
struct call {
	int (*make)(void *);
	void *object;
	pthread_t thread;
	pid_t tid;
	int result, over;
};

/* Waits, for 20 s at most, until a thread of this process goes on sleeping, or `over` is set. 1: it sleeps. */
int stays_asleep(pid_t tid, const int *over);
/* Makes the call. 1: it sleeps until something else happens; 0: it has returned, or does not sleep. */
int call_sleeps(struct call *c);
/* What it returns, when it does. */
int call_result(struct call *c);

#endif
