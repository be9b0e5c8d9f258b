/* Results of rdma-core's configuration on this system, as far as its examples need them. */
#define HAVE_STATEMENT_EXPR 1
#define HAVE_TYPEOF 1
#define HAVE_BUILTIN_TYPES_COMPATIBLE_P 1
#define HAVE_ISBLANK 1
