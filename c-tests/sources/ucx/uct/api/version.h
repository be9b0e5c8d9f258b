/* Replaces a header that UCX's configuration generates: the encoding of versions as numbers. */
#ifndef UCT_VERSION_H_
#define UCT_VERSION_H_
#define UCT_MINOR_BIT 16UL
#define UCT_MAJOR_BIT 24UL
#define UCT_VERSION(major, minor) (((major) << UCT_MAJOR_BIT) | ((minor) << UCT_MINOR_BIT))
#define UCT_API UCT_VERSION(1L, 13L)
#endif
