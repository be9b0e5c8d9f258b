/*
 * Checks of a program: each says what it saw; `failures` counts those that did not see it.
 */
#ifndef CONNECTIONS_CHECKS_H
#define CONNECTIONS_CHECKS_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures;

static inline void check(int ok, const char *what)
{
	printf("%s: %s\n", ok ? "ok" : "FAILED", what);
	failures += !ok;
}

#define CHECK(condition) check((condition), #condition)
#define REFUSED(call, why) CHECK((call) == -1 && errno == (why))

/* Without this the rest means nothing. */
static inline void need(int ok, const char *what)
{
	if (ok)
		return;
	printf("FAILED: %s: %s\n", what, strerror(errno));
	exit(1);
}

#define NEED(condition) need((condition), #condition)

#endif
