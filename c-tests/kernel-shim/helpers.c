/*
 * Address functions of the library without the kernel's RDMA part: the reply address of a received
 * datagram (ibv_init_ah_from_wc(3)), and the Ethernet address of a GID.
 */
#include <arpa/inet.h>

#include "program.h"

int ibv_resolve_eth_l2_from_gid(struct ibv_context *context, struct ibv_ah_attr *attr, uint8_t eth_mac[6], uint16_t *vid);

static uint64_t state;

static uint32_t rnd(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (uint32_t)(state >> 16);
}

/* An address of the device's table, or any. */
static void some_gid(unsigned char *gid)
{
	static const char *const table[] = { "fe80::202:c9ff:fe12:3456", "::ffff:10.0.0.1", "::ffff:127.0.0.1", "::1",
					     "::", "ff0e::ffff:224.0.0.9" };
	unsigned pick = rnd() % 8;

	if (pick < sizeof(table) / sizeof(table[0]))
		inet_pton(AF_INET6, table[pick], gid);
	else
		for (int i = 0; i < 16; i++)
			gid[i] = (unsigned char)rnd();
}

static void v6_header(unsigned char *h)
{
	static const unsigned char next[] = { 0x1b, 17, 6, 0 };

	for (int i = 0; i < 8; i++)
		h[i] = (unsigned char)rnd();
	if (rnd() % 8)
		h[0] = (unsigned char)(0x60 | (h[0] & 0xf));
	h[6] = next[rnd() % 4];
	some_gid(h + 8);
	some_gid(h + 24);
}

/* The header fills the second half of the 40 bytes; the first half keeps its content. */
static void v4_header(unsigned char *h)
{
	static const unsigned char addresses[4][4] = { { 10, 0, 0, 1 }, { 127, 0, 0, 1 }, { 224, 0, 0, 9 }, { 192, 0, 2, 7 } };
	unsigned char *ip = h + 20;
	uint32_t sum = 0;

	for (int i = 0; i < 40; i++)
		h[i] = (unsigned char)rnd();
	if (rnd() % 2)
		h[0] = 0x60;
	ip[0] = rnd() % 8 ? 0x45 : (unsigned char)(0x40 | rnd() % 16);
	ip[9] = rnd() % 4 ? 17 : (unsigned char)rnd();
	memcpy(ip + 12, addresses[rnd() % 4], 4);
	memcpy(ip + 16, addresses[rnd() % 4], 4);
	ip[10] = ip[11] = 0;
	for (int i = 0; i < 20; i += 2)
		sum += (uint32_t)ip[i] << 8 | ip[i + 1];
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = ~sum & 0xffff;
	if (rnd() % 4 == 0)
		sum ^= 1u << rnd() % 16;
	ip[10] = (unsigned char)(sum >> 8);
	ip[11] = (unsigned char)sum;
}

static void replies(void)
{
	static struct ibv_wc wc;
	static struct ibv_ah_attr attr;
	static union {
		struct ibv_grh grh;
		unsigned char raw[40];
	} header;

	state = 0x0123456789abcdefull;
	for (int i = 0; i < 400; i++) {
		memset(&wc, 0, sizeof(wc));
		wc.slid = (uint16_t)rnd();
		wc.sl = (uint8_t)rnd();
		wc.dlid_path_bits = (uint8_t)rnd();
		wc.src_qp = rnd();
		wc.wc_flags = rnd() % 8 ? IBV_WC_GRH : 0;
		if (rnd() % 2)
			v6_header(header.raw);
		else
			v4_header(header.raw);
		STALE(attr);
		shim_note("reply %d", i);
		if (RESULT(ibv_init_ah_from_wc(context, 1, &wc, &header.grh, &attr)) == 0)
			DUMP(attr);
		shim_print();
	}
}

static void ethernet_addresses(void)
{
	static const char *const targets[] = { "::ffff:127.0.0.1", "::ffff:127.1.2.3", "::ffff:224.0.0.9", "ff0e::ffff:224.0.0.9",
					       "::ffff:239.129.2.3", "::1", "ff02::1", "ff0e::1", "fe80::202:c9ff:fe12:3456" };
	static struct ibv_ah_attr attr;
	static uint8_t mac[6];
	uint16_t vid;

	for (unsigned i = 0; i < sizeof(targets) / sizeof(targets[0]); i++) {
		for (uint8_t source = 0; source < 7; source++) {
			memset(&attr, 0, sizeof(attr));
			attr.port_num = 1;
			attr.is_global = 1;
			attr.grh.sgid_index = source;
			inet_pton(AF_INET6, targets[i], attr.grh.dgid.raw);
			STALE(mac);
			vid = 0xa5a5;
			shim_note("%s from %u", targets[i], source);
			if (RESULT(ibv_resolve_eth_l2_from_gid(context, &attr, mac, &vid)) == 0) {
				DUMP(mac);
				DUMP(vid);
			}
			shim_print();
		}
	}
}

void address_helpers(void)
{
	/* The recording kernel has a GID for every index, so a search of its table would not end;
	 * the table in sysfs ends. */
	if (knows_methods)
		return;
	replies();
	ethernet_addresses();
}
