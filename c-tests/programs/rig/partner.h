/* Two processes run one script in step: the parent and a forked child, each with its own device. */
#ifndef PARTNER_H
#define PARTNER_H

#include "rig.h"

/* 0 in the parent, 1 in the child. Set by partner_fork. */
extern int role;
/* The child's process id, in the parent; 0 in the child. */
extern pid_t partner_pid;
/* The socket to the partner process. */
extern int partner_fd;
/* Forks; must be called before any verb. */
void partner_fork(void);
/* Waits until the partner process calls meet() too. */
void meet(void);
/* Sends `ours` to the partner process and receives as many bytes into `theirs`. */
void swap(const void *ours, void *theirs, size_t len);
/* Ends the test and returns the exit status for main. The parent's status includes the child's. */
int partner_finish(void);

#endif
