/* Checks of the programs in this folder: each prints a line; `failures` counts the failed ones. */
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

/* A condition for the rest of the test; exits if it fails. */
static inline void need(int ok, const char *what)
{
	if (ok)
		return;
	printf("FAILED: %s: %s\n", what, strerror(errno));
	exit(1);
}

#define NEED(condition) need((condition), #condition)

#endif
