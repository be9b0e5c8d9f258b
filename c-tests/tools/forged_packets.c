/*
 * A hostile machine in the network: sends RoCE v2 packets with any source address, which needs root
 * (raw(7)).
 *
 * forged_packets VICTIM PEER FOREIGN BUSY_QPN SLOW_QPN SLOW_PSN
 *
 * VICTIM is attacked with the source address PEER, to which its QPs are connected, or FOREIGN, a
 * local address without a connected QP. BUSY_QPN is a QP whose PSNs are not predictable. SLOW_QPN
 * is a QP near SLOW_PSN. Prints a line for each kind of packet, and at the end the number of
 * packets from VICTIM to FOREIGN, which a raw socket receives.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define EACH 500
#define FLOOD 100000
#define LONGEST 1024

static int out, in;
static struct in_addr victim, peer, foreign;
static unsigned sent_in_all, answers;
static uint64_t state = 88172645463325252u;

static void die(const char *what)
{
	fprintf(stderr, "forged_packets: %s: %s\n", what, strerror(errno));
	exit(2);
}

static uint32_t any(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (uint32_t)(state >> 16);
}

/* ITU-T V.42, as Ethernet has it. */
static uint32_t crc(uint32_t sum, const unsigned char *p, size_t len)
{
	while (len--) {
		sum ^= *p++;
		for (int bit = 0; bit < 8; bit++)
			sum = sum & 1 ? sum >> 1 ^ 0xedb88320 : sum >> 1;
	}
	return sum;
}

/* Looks whether somebody answered. */
static void look(void)
{
	unsigned char packet[65536];
	ssize_t len;
	while ((len = recv(in, packet, sizeof packet, MSG_DONTWAIT)) > 0)
		if (len >= 20 && !memcmp(packet + 12, &victim, 4) && !memcmp(packet + 16, &foreign, 4))
			answers++;
}

enum seal { INTACT, DAMAGED, NONE };

/* Sends what stands between the UDP header and the ICRC; `flip` is put over the ICRC. */
static void emit(struct in_addr from, const unsigned char *body, size_t len, enum seal seal)
{
	unsigned char packet[28 + LONGEST + 4] = { 0 }, masked[28];
	size_t udp = 8 + len + (seal == NONE ? 0 : 4), whole = 20 + udp;
	unsigned char *ip = packet, *u = packet + 20;
	ip[0] = 0x45;
	ip[2] = (unsigned char)(whole >> 8);
	ip[3] = (unsigned char)whole;
	ip[5] = 1; /* 0 would be the kernel's to choose. */
	ip[6] = 0x40;
	ip[8] = 64;
	ip[9] = IPPROTO_UDP;
	memcpy(ip + 12, &from, 4);
	memcpy(ip + 16, &victim, 4);
	u[0] = 0xc0;
	u[2] = 4791 >> 8;
	u[3] = 4791 & 0xff;
	u[4] = (unsigned char)(udp >> 8);
	u[5] = (unsigned char)udp;
	memcpy(u + 8, body, len);
	if (seal != NONE) {
		/* IBTA 1.7 A17.3.3: fields that the network may change count as ones. */
		static const unsigned char ones[8] = { 255, 255, 255, 255, 255, 255, 255, 255 };
		memcpy(masked, packet, 28);
		masked[1] = masked[8] = masked[10] = masked[11] = masked[26] = masked[27] = 0xff;
		uint32_t sum = crc(crc(~0u, ones, 8), masked, 28);
		unsigned char covered[LONGEST];
		memcpy(covered, body, len);
		covered[4] = 0xff;
		sum = ~crc(sum, covered, len);
		/* One of the 65536 other IP identifications could explain another checksum; none
		 * explains this one. */
		if (seal == DAMAGED)
			sum ^= 0x5a5a5a5a;
		for (int i = 0; i < 4; i++)
			u[8 + len + (size_t)i] = (unsigned char)(sum >> 8 * i);
	}
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr = victim };
	/* A queue that is full is no reason to stop. */
	if (sendto(out, packet, whole, 0, (struct sockaddr *)&to, sizeof to) < 0 && errno != ENOBUFS)
		die("sendto");
	sent_in_all++;
	if (sent_in_all % 64 == 0)
		look();
}

/* An RDMA WRITE of one packet with `len` bytes. */
static size_t write_only(unsigned char *body, uint32_t qpn, uint32_t psn, uint32_t rkey, size_t len)
{
	const unsigned char head[28] = { 0x0a, 0x40, 0xff, 0xff, 0, (unsigned char)(qpn >> 16), (unsigned char)(qpn >> 8), (unsigned char)qpn,
					 0x80, (unsigned char)(psn >> 16), (unsigned char)(psn >> 8), (unsigned char)psn,
					 0, 0, 0, 0, 0, 0, 0x10, 0,
					 (unsigned char)(rkey >> 24), (unsigned char)(rkey >> 16), (unsigned char)(rkey >> 8), (unsigned char)rkey,
					 0, 0, (unsigned char)(len >> 8), (unsigned char)len };
	memcpy(body, head, sizeof head);
	for (size_t i = 0; i < len; i++)
		body[sizeof head + i] = (unsigned char)any();
	return sizeof head + len;
}

static void say(const char *kind, unsigned count)
{
	printf("%s: %u\n", kind, count);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	if (argc != 7 || !inet_aton(argv[1], &victim) || !inet_aton(argv[2], &peer) || !inet_aton(argv[3], &foreign)) {
		fprintf(stderr, "forged_packets VICTIM PEER FOREIGN BUSY_QPN SLOW_QPN SLOW_PSN\n");
		return 2;
	}
	uint32_t busy = (uint32_t)strtoul(argv[4], NULL, 16), slow = (uint32_t)strtoul(argv[5], NULL, 16), psn = (uint32_t)strtoul(argv[6], NULL, 16);
	out = socket(AF_INET, SOCK_RAW, IPPROTO_RAW);
	in = socket(AF_INET, SOCK_RAW, IPPROTO_UDP);
	if (out < 0 || in < 0)
		die("socket");
	unsigned char body[LONGEST];
	for (unsigned kind = 0; kind < 9; kind++) {
		static const char *const names[] = { "foreign address", "wrong partition",    "sequence number far ahead", "sequence number long gone",
						     "unknown queue pair", "damaged", "cut",	 "no service of this queue pair", "bytes of chance" };
		for (unsigned i = 0; i < EACH; i++) {
			/* The key is wrong in all of them. */
			size_t len = write_only(body, busy, any(), any(), 4 * (any() % 64));
			switch (kind) {
			case 0:
				emit(foreign, body, len, INTACT);
				break;
			case 1:
				body[2] = 0x12;
				emit(peer, body, len, INTACT);
				break;
			case 2:
			case 3:
				len = write_only(body, slow, psn + (kind == 2 ? 0x400000 : -0x400000) + i, any(), 64);
				emit(peer, body, len, INTACT);
				break;
			case 4:
				/* The last possible process slot, and no process. */
				len = write_only(body, i % 2 ? 0xfffffe - i : 2 + i, any(), any(), 64);
				emit(peer, body, len, INTACT);
				break;
			case 5:
				emit(peer, body, len, DAMAGED);
				break;
			case 6:
				/* Packets without a header, and headers without their message. */
				emit(peer, body, i % 28, i % 2 ? INTACT : NONE);
				break;
			case 7:
				body[0] = (unsigned char)(0x20 | any());
				emit(peer, body, len, INTACT);
				break;
			case 8:
				for (size_t n = 12; n < len; n++)
					body[n] = (unsigned char)any();
				body[0] = (unsigned char)any();
				body[8] = (unsigned char)any();
				emit(foreign, body, len, INTACT);
				break;
			}
			/* Leaves room in the socket buffer for further packets. */
			if (i % 16 == 0)
				usleep(1000);
		}
		say(names[kind], EACH);
	}
	for (unsigned i = 0; i < FLOOD; i++) {
		size_t len = write_only(body, i % 4 ? busy : any(), any(), any(), 64);
		emit(i % 2 ? foreign : peer, body, len, i % 2 ? INTACT : DAMAGED);
	}
	say("flood", FLOOD);
	usleep(100000);
	look();
	printf("%u sent, %u answers\n", sent_in_all, answers);
	return 0;
}
