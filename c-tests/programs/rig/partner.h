/*
 * Two processes that run one script side by side: the parent and a forked child, each with a device of its own, step by step.
 */
#ifndef PARTNER_H
#define PARTNER_H

#include "rig.h"

/* 0 in the parent, 1 in the child. Set by partner_fork. */
extern int role;
/* The child's process id, in the parent; 0 in the child. */
extern pid_t partner_pid;
/* The socket to the other process. */
extern int partner_fd;
/* Forks; must be called before any verb. */
void partner_fork(void);
/* Waits until the other process gets here too. */
void meet(void);
/* The other's bytes for ours. */
void swap(const void *ours, void *theirs, size_t len);
/* The exit status for main: the parent's, which includes the child's. */
int partner_finish(void);

#endif
