/* Packet headers, checksums and the Toeplitz hash that chooses a receive queue, byte by byte. */
#ifndef PACKETS_H
#define PACKETS_H

#include <stdint.h>
#include <string.h>

/* The key of Microsoft's "Verifying the RSS Hash Calculation". */
extern uint8_t rss_key[40];

/* Headers are written to p; each returns what comes behind. */
unsigned char *be(unsigned char *p, uint64_t value, int bytes);
unsigned char *eth(unsigned char *p, uint64_t dst, uint64_t src, int vlan, uint16_t type);
unsigned char *ipv4(unsigned char *p, uint32_t src, uint32_t dst, uint8_t proto, uint8_t tos, uint16_t payload);
unsigned char *ipv6(unsigned char *p, const uint8_t *src, const uint8_t *dst, uint8_t next, uint32_t label, uint16_t payload);
unsigned char *udp(unsigned char *p, uint16_t src, uint16_t dst, uint16_t payload);
unsigned char *tcp(unsigned char *p, uint16_t src, uint16_t dst, uint32_t seq, uint8_t flags);
/* The one's complement sum of `p` added to `sum`; 0xffff for data with a correct checksum. */
uint32_t ones(const unsigned char *p, uint32_t len, uint32_t sum);
/*
 * The Toeplitz hash by definition: XOR of the 32 key bits that begin at each set bit of the data.
 */
uint32_t toeplitz(const uint8_t *key, const uint8_t *data, unsigned len);

#endif
