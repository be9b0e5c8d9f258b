/* Packet headers, checksums and the Toeplitz hash, byte by byte. */
#include "packets.h"

unsigned char *be(unsigned char *p, uint64_t value, int bytes)
{
	for (int i = 0; i < bytes; i++)
		p[i] = (unsigned char)(value >> 8 * (bytes - 1 - i));
	return p + bytes;
}

unsigned char *eth(unsigned char *p, uint64_t dst, uint64_t src, int vlan, uint16_t type)
{
	p = be(be(p, dst, 6), src, 6);
	if (vlan >= 0)
		p = be(be(p, 0x8100, 2), (uint64_t)vlan, 2);
	return be(p, type, 2);
}

unsigned char *ipv4(unsigned char *p, uint32_t src, uint32_t dst, uint8_t proto, uint8_t tos, uint16_t payload)
{
	p = be(be(be(p, 0x45, 1), tos, 1), 20u + payload, 2);
	p = be(be(p, 0x1234, 2), 0x4000, 2);
	return be(be(be(be(be(p, 64, 1), proto, 1), 0, 2), src, 4), dst, 4);
}

unsigned char *ipv6(unsigned char *p, const uint8_t *src, const uint8_t *dst, uint8_t next, uint32_t label, uint16_t payload)
{
	p = be(be(be(be(p, 0x60000000u | label, 4), payload, 2), next, 1), 64, 1);
	memcpy(p, src, 16);
	memcpy(p + 16, dst, 16);
	return p + 32;
}

unsigned char *udp(unsigned char *p, uint16_t src, uint16_t dst, uint16_t payload)
{
	return be(be(be(be(p, src, 2), dst, 2), 8u + payload, 2), 0, 2);
}

unsigned char *tcp(unsigned char *p, uint16_t src, uint16_t dst, uint32_t seq, uint8_t flags)
{
	p = be(be(be(be(p, src, 2), dst, 2), seq, 4), 0, 4);
	return be(be(be(be(be(p, 0x50, 1), flags, 1), 0x1000, 2), 0, 2), 0, 2);
}

uint32_t ones(const unsigned char *p, uint32_t len, uint32_t sum)
{
	for (uint32_t i = 0; i < len; i++)
		sum += (uint32_t)p[i] << (i & 1 ? 0 : 8);
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

uint8_t rss_key[40] = { 0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb,
			   0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa };

uint32_t toeplitz(const uint8_t *key, const uint8_t *data, unsigned len)
{
	uint32_t hash = 0;
	for (unsigned bit = 0; bit < 8 * len; bit++)
		if (data[bit / 8] >> (7 - bit % 8) & 1)
			for (unsigned i = 0; i < 32; i++)
				if (key[(bit + i) / 8] >> (7 - (bit + i) % 8) & 1)
					hash ^= 1u << (31 - i);
	return hash;
}
