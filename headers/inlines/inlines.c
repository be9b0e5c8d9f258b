/*
 * The inline functions of <infiniband/verbs.h> as functions of a library, for language bindings
 * without a C compiler (docs/guide/debugging-tools.md).
 *
 * Include the header's own includes first: only the header's functions may lose `static inline`.
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
