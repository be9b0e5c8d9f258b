/* Results of perftest's configuration on this system, as far as its verbs code needs them. */
#define VERSION "test"
#define PACKAGE_VERSION "test"
#define HAVE_EX 1
#define HAVE_IBV_WR_API 1
#define HAVE_XRCD 1
#define HAVE_RAW_ETH 1
#define HAVE_IPV4_EXT 1
#define HAVE_IPV6 1
#define HAVE_SNIFFER 1
#define HAVE_TD_API 1
#define HAVE_GID_ATTR 1
#define HAVE_GID_TYPE 1
#define HAVE_RO 1
#define HAVE_PACKET_PACING 1
#define HAVE_REG_DMABUF_MR 1
#define HAVE_GID_TYPE_DECLARED 1
