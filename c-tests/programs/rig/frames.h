/* A device with an extended CQ, RAW_PACKET QPs and Ethernet frames for the tests of frames. */
#ifndef FRAMES_H
#define FRAMES_H

#include "packets.h"
#include "partner.h"

#define FRAME 10000u		/* room for one frame */

extern struct ibv_context *ctx;
extern struct ibv_pd *pd;
extern struct ibv_cq_ex *cqx;
extern struct ibv_cq *cq;
extern struct ibv_mr *mr;
extern unsigned char *buf;

struct arrival {
	uint64_t id;
	enum ibv_wc_status status;
	uint32_t len, tag, qpn;
	uint16_t cvlan;
	unsigned flags;
	enum ibv_wc_opcode opcode;
};

#define MAC_A 0x020000000a0aULL
#define MAC_B 0x020000000b0bULL
#define MAC_X 0x0200000000ccULL
#define BROADCAST 0xffffffffffffULL
#define GROUP 0x01005e010203ULL

void frames_open(void);
void frames_close(void);
struct ibv_qp *raw_qp(uint32_t create_flags, uint16_t tso_header);
/* Posts the receive of place `id`. */
void frame_recv(struct ibv_qp *qp, uint64_t id);
/* Sends `len` bytes, unsignalled. */
int frame_send(struct ibv_qp *qp, const void *frame, uint32_t len, unsigned flags);
/* Polls up to `most` completions. Waits WAIT_US for each of the first `wanted`, QUIET_US for each
 * further completion. */
int frames_arrive(struct arrival *a, int wanted, int most);
/* The arrivals' identifiers as a sorted text: "1 3 20". */
const char *who(struct arrival *a, int n);
/* An IPv4 UDP packet with `payload` bytes of the pattern `seed`; its length. */
uint32_t udp_frame(unsigned char *p, uint64_t dst, uint64_t src, int vlan, uint32_t sip, uint32_t dip, uint16_t sport, uint16_t dport,
				 uint16_t payload, uint32_t seed);
/* Whether the checksums of the IPv4 packet at p are right, header and UDP or TCP. */
int checksums(const unsigned char *p);

#endif
