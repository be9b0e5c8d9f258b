/*
 * The inline functions of <infiniband/verbs.h> as functions of a library: for bindings of other languages, which have no C compiler to
 * inline them (docs/guide/debugging-tools.md).
 *
 * What that header includes comes first, so that its own functions alone lose `static inline`.
 */
#include <errno.h>
#include <linux/types.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <infiniband/verbs_api.h>

#define static
#define inline

#include <infiniband/verbs.h>
