/*
 * The address at which the ids of a program meet: loopback over soft, or the device addresses in
 * MEET and MEET6. The kernel has no RoCE route to loopback addresses.
 */
#ifndef CONNECTIONS_PLACE_H
#define CONNECTIONS_PLACE_H

#include "checks.h"

#include <arpa/inet.h>

static inline int is_kernels(void)
{
	return getenv("MEET") != NULL;
}

static inline const char *here_text(void)
{
	return is_kernels() ? getenv("MEET") : "127.0.0.1";
}

static inline const char *here6_text(void)
{
	return is_kernels() ? getenv("MEET6") : "::1";
}

static inline struct in_addr here(void)
{
	struct in_addr at;

	NEED(inet_pton(AF_INET, here_text(), &at) == 1);
	return at;
}

#endif
