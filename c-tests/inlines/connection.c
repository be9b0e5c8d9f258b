/*
 * Calls each inline function of rdma_cma.h, rdma_verbs.h and ib.h between two ids of one process,
 * and prints the effect. Builds with upstream's headers and with Ferroverbs', in C and in C++; the
 * output over one library must be equal.
 */
#include <arpa/inet.h>
#include <infiniband/ib.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIZE 8192

static const int SIGNALED = IBV_SEND_SIGNALED;

/* Both ends of a connection, or of datagrams. */
struct side {
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	unsigned char *data;
	/* For messages, to be read, and to be written. */
	struct ibv_mr *msgs, *read, *write;
};

static struct side server, client;

static void need(int ok, const char *what)
{
	if (!ok) {
		printf("no %s: %s\n", what, strerror(errno));
		exit(2);
	}
}

static void said(const char *what, int result)
{
	printf("%s: %d %s\n", what, result, result < 0 ? strerror(errno) : "");
}

#define SAY(call) said(#call, (call))

/* The next event of a channel, which must be of type `type`. */
static struct rdma_cm_event *expect(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;

	need(rdma_get_cm_event(channel, &event) == 0, "event");
	if (event->event != type) {
		printf("%s with %d instead of %s\n", rdma_event_str(event->event), event->status, rdma_event_str(type));
		exit(2);
	}
	return event;
}

static void pass(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
	need(rdma_ack_cm_event(expect(channel, type)) == 0, "acknowledgement");
}

/* ---- addresses of InfiniBand ---- */

static void addresses(void)
{
	const __be32 words[][4] = { { 0, 0, 0, 0 },
				    { 0, 0, 0, htobe32(1) },
				    { 0, 0, 0, htobe32(2) },
				    { htobe32(1), 0, 0, htobe32(1) },
				    { htobe32(0xfe800000), htobe32(5), htobe32(6), htobe32(7) } };
	struct ib_addr all[5];

	for (int i = 0; i < 5; i++) {
		ib_addr_set(&all[i], words[i][0], words[i][1], words[i][2], words[i][3]);
		printf("any %d, loopback %d, %d %d, %llx %llx\n", ib_addr_any(&all[i]), ib_addr_loopback(&all[i]), all[i].sib_raw[0],
		       all[i].sib_raw[15], (unsigned long long)be64toh(all[i].sib_subnet_prefix),
		       (unsigned long long)be64toh(all[i].sib_interface_id));
		for (int j = 0; j <= i; j++) {
			int order = ib_addr_cmp(&all[i], &all[j]);

			printf("%d to %d: %d\n", i, j, (order > 0) - (order < 0));
		}
	}
	SAY(rdma_seterrno(0));
	SAY(rdma_seterrno(ENOMEM));
}

/* ---- setting up ---- */

static void memory(struct side *side)
{
	side->data = (unsigned char *)calloc(1, SIZE);
	side->msgs = rdma_reg_msgs(side->id, side->data, SIZE);
	need(side->msgs != NULL, "memory for messages");
	side->read = rdma_reg_read(side->id, side->data, SIZE);
	need(side->read != NULL, "memory to be read");
	side->write = rdma_reg_write(side->id, side->data, SIZE);
	need(side->write != NULL, "memory to be written");
}

static void queues(struct side *side, int srq)
{
	struct ibv_qp_init_attr init;
	struct ibv_srq_init_attr shared;

	memset(&init, 0, sizeof(init));
	memset(&shared, 0, sizeof(shared));
	shared.attr.max_wr = 16;
	shared.attr.max_sge = 4;
	if (srq)
		SAY(rdma_create_srq(side->id, NULL, &shared));
	init.cap.max_send_wr = init.cap.max_recv_wr = 16;
	init.cap.max_send_sge = init.cap.max_recv_sge = 4;
	init.cap.max_inline_data = 64;
	init.qp_type = side->id->qp_type;
	SAY(rdma_create_qp(side->id, NULL, &init));
	need(side->id->qp != NULL, "queue pair");
	memory(side);
}

/* A listener and a client that connects to it; the two ids are connected afterwards. */
static void meet(enum rdma_port_space space, int srq)
{
	struct rdma_cm_id *listener;
	struct rdma_cm_event *event;
	struct rdma_conn_param param;
	struct sockaddr_in local, peer;

	memset(&local, 0, sizeof(local));
	local.sin_family = AF_INET;
	local.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	memset(&param, 0, sizeof(param));
	param.responder_resources = param.initiator_depth = 4;
	param.retry_count = param.rnr_retry_count = 7;
	server.channel = rdma_create_event_channel();
	client.channel = rdma_create_event_channel();
	need(server.channel && client.channel, "channels");
	need(rdma_create_id(server.channel, &listener, NULL, space) == 0, "listener");
	need(rdma_create_id(client.channel, &client.id, NULL, space) == 0, "client");
	SAY(rdma_bind_addr(listener, (struct sockaddr *)&local));
	SAY(rdma_listen(listener, 4));
	local.sin_port = rdma_get_src_port(listener);
	SAY(rdma_resolve_addr(client.id, NULL, (struct sockaddr *)&local, 2000));
	pass(client.channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	SAY(rdma_resolve_route(client.id, 2000));
	pass(client.channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	queues(&client, 0);
	SAY(rdma_connect(client.id, &param));
	event = expect(server.channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	server.id = event->id;
	rdma_ack_cm_event(event);
	queues(&server, srq);
	param.qp_num = server.id->qp->qp_num;
	SAY(rdma_accept(server.id, &param));

	memcpy(&local, rdma_get_local_addr(client.id), sizeof(local));
	memcpy(&peer, rdma_get_peer_addr(server.id), sizeof(peer));
	printf("client at %s, for the server %s, the same port: %d\n", local.sin_family == AF_INET ? inet_ntoa(local.sin_addr) : "?",
	       peer.sin_family == AF_INET ? "the same" : "?", local.sin_port == peer.sin_port && local.sin_port == rdma_get_src_port(client.id));
	memcpy(&peer, rdma_get_peer_addr(client.id), sizeof(peer));
	printf("server's port: %d\n", peer.sin_port == rdma_get_dst_port(client.id) && peer.sin_port == rdma_get_src_port(server.id));
	rdma_destroy_id(listener);
}

static void part(struct side *side)
{
	SAY(rdma_dereg_mr(side->msgs));
	SAY(rdma_dereg_mr(side->read));
	SAY(rdma_dereg_mr(side->write));
	rdma_destroy_qp(side->id);
	rdma_destroy_srq(side->id);
	SAY(rdma_destroy_id(side->id));
	rdma_destroy_event_channel(side->channel);
	free(side->data);
}

/* ---- requests and completions ---- */

static void sent(const char *what)
{
	struct ibv_wc wc;
	int count = rdma_get_send_comp(client.id, &wc);

	printf("%s: %d, status %d, opcode %d, %s\n", what, count, wc.status, wc.opcode, wc.wr_id == (uintptr_t)what ? "its own" : "?");
}

static void received(const char *what)
{
	struct ibv_wc wc;
	int count = rdma_get_recv_comp(server.id, &wc);

	printf("%s: %d, status %d, %u bytes, %s\n", what, count, wc.status, wc.status ? 0 : wc.byte_len,
	       wc.wr_id == (uintptr_t)what ? "its own" : "?");
}

static void fill(unsigned char seed)
{
	for (int i = 0; i < SIZE; i++) {
		client.data[i] = (unsigned char)(i * 7 + seed);
		server.data[i] = (unsigned char)(i * 3 + seed + 1);
	}
}

static void compare(const char *what, const unsigned char *from, const unsigned char *to, size_t size)
{
	printf("%s: %zu the same: %d, none behind: %d\n", what, size, memcmp(from, to, size) == 0, from[size] != to[size]);
}

static void messages(void)
{
	static const size_t sizes[] = { 0, 1, 63, 64, 65, 4096 };
	const uint64_t there = (uintptr_t)server.data;

	for (unsigned i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		size_t size = sizes[i];
		int flags = size <= 64 ? SIGNALED | IBV_SEND_INLINE : SIGNALED;
		/* Inline data needs no region. */
		struct ibv_mr *mr = size <= 64 ? NULL : client.msgs;

		fill((unsigned char)i);
		SAY(rdma_post_recv(server.id, (void *)"recv", server.data, SIZE, server.msgs));
		SAY(rdma_post_send(client.id, (void *)"send", client.data, size, mr, flags));
		sent("send");
		received("recv");
		compare("send", client.data, server.data, size);

		fill((unsigned char)i);
		SAY(rdma_post_write(client.id, (void *)"write", client.data, size, mr, flags, there, server.write->rkey));
		sent("write");
		compare("write", client.data, server.data, size);

		fill((unsigned char)i);
		SAY(rdma_post_read(client.id, (void *)"read", client.data, size, client.msgs, SIGNALED, there, server.read->rkey));
		sent("read");
		compare("read", client.data, server.data, size);
	}
}

static void pieces(void)
{
	struct ibv_sge ours[2], theirs[2];
	const uint64_t there = (uintptr_t)server.data;

	for (int i = 0; i < 2; i++) {
		ours[i].addr = (uintptr_t)client.data + (unsigned)i * 100;
		theirs[i].addr = (uintptr_t)server.data + (unsigned)i * 100;
		ours[i].length = theirs[i].length = 100;
		ours[i].lkey = client.msgs->lkey;
		theirs[i].lkey = server.msgs->lkey;
	}
	fill(1);
	SAY(rdma_post_recvv(server.id, (void *)"recvv", theirs, 2));
	SAY(rdma_post_sendv(client.id, (void *)"sendv", ours, 2, SIGNALED));
	sent("sendv");
	received("recvv");
	compare("sendv", client.data, server.data, 200);
	fill(2);
	SAY(rdma_post_writev(client.id, (void *)"writev", ours, 2, SIGNALED, there, server.write->rkey));
	sent("writev");
	compare("writev", client.data, server.data, 200);
	fill(3);
	SAY(rdma_post_readv(client.id, (void *)"readv", ours, 2, SIGNALED, there, server.read->rkey));
	sent("readv");
	compare("readv", client.data, server.data, 200);
	SAY(rdma_post_sendv(client.id, (void *)"too many", ours, 4096, SIGNALED));
	SAY(rdma_post_recvv(server.id, (void *)"too many", theirs, 4096));
}

static void connection(int srq)
{
	printf("---- connection, shared receives: %d\n", srq);
	meet(RDMA_PS_TCP, srq);
	pass(client.channel, RDMA_CM_EVENT_ESTABLISHED);
	pass(server.channel, RDMA_CM_EVENT_ESTABLISHED);
	messages();
	pieces();
	if (!srq)
		SAY(rdma_post_recv(server.id, (void *)"flushed", server.data, SIZE, server.msgs));
	SAY(rdma_disconnect(client.id));
	pass(server.channel, RDMA_CM_EVENT_DISCONNECTED);
	SAY(rdma_disconnect(server.id));
	/* The side that disconnects first gets its event when the peer has disconnected too. */
	pass(client.channel, RDMA_CM_EVENT_DISCONNECTED);
	if (!srq)
		received("flushed");
	part(&client);
	part(&server);
}

static void datagrams(void)
{
	struct rdma_cm_event *event;
	struct ibv_ah *ah;

	puts("---- datagrams");
	meet(RDMA_PS_UDP, 0);
	event = expect(client.channel, RDMA_CM_EVENT_ESTABLISHED);
	ah = ibv_create_ah(client.id->pd, &event->param.ud.ah_attr);
	need(ah != NULL, "address handle");
	fill(9);
	SAY(rdma_post_recv(server.id, (void *)"datagram", server.data, 40 + 64, server.msgs));
	SAY(rdma_post_ud_send(client.id, (void *)"ud", client.data, 64, client.msgs, SIGNALED, ah, event->param.ud.qp_num));
	sent("ud");
	received("datagram");
	compare("ud", client.data, server.data + 40, 64);
	SAY(rdma_post_recv(server.id, (void *)"inline", server.data, 40 + 64, server.msgs));
	SAY(rdma_post_ud_send(client.id, (void *)"ud inline", client.data + 8, 16, NULL, SIGNALED | IBV_SEND_INLINE, ah, event->param.ud.qp_num));
	sent("ud inline");
	received("inline");
	compare("ud inline", client.data + 8, server.data + 40, 16);
	ibv_destroy_ah(ah);
	rdma_ack_cm_event(event);
	part(&client);
	part(&server);
}

int main(void)
{
	addresses();
	connection(0);
	connection(1);
	datagrams();
	return 0;
}
