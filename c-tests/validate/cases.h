/*
 * What the programs that misuse verbs and librdmacm share. JSON in the environment is the output
 * file of the layer `validate`.
 */
#ifndef VALIDATE_CASES_H
#define VALIDATE_CASES_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The case itself cannot go on without this condition: the process ends with status 2. */
void want(int ok, const char *what);

/* A thread that calls the function `then` when the layer has reported something. */
void *after_report(void *then);

/* A thread that calls the function `then` after 50 ms: meanwhile another thread begins to wait. */
void *after_delay(void *then);

#endif
