/*
 * Rare calls of librdmacm, and the private data of events: vendor options (ECE), data before the
 * peer is ready, synchronous ids, SRQs and extended QPs of ids, multicast members that only send,
 * and the end of time-wait.
 *
 * Both sides are ids of this process, each with its own event channel.
 */
#include "events.h"

#include <arpa/inet.h>
#include <poll.h>
#include <rdma/rdma_verbs.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LIMIT = 60, DEPTH = 4 };

static struct rdma_event_channel *asking, *serving;
static struct rdma_cm_id *listener;
/* The listener's address: an address of the device, so its ids have a device. */
static struct sockaddr_in at = { .sin_family = AF_INET };
static char text[] = "text";
static char memory[64 + 40];

static struct rdma_conn_param *new_queue(void)
{
	static struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7 };
	static unsigned made;

	param.qp_num = 0x800000 | (unsigned)getpid() % 0x8000 << 5 | made++;
	return &param;
}

static struct rdma_cm_id *routed(enum rdma_port_space ps, struct sockaddr_in *to)
{
	struct rdma_cm_id *id;

	NEED(!rdma_create_id(asking, &id, NULL, ps));
	NEED(!rdma_resolve_addr(id, NULL, (struct sockaddr *)to, 2000));
	next(asking, RDMA_CM_EVENT_ADDR_RESOLVED);
	NEED(!rdma_resolve_route(id, 2000));
	next(asking, RDMA_CM_EVENT_ROUTE_RESOLVED);
	return id;
}

static void vendors_options(void)
{
	struct ibv_ece mine = { .vendor_id = 0x1234, .options = 0xabcdef01 }, yours = { .vendor_id = 0x77, .options = 5 }, ece;
	struct rdma_cm_id *client = routed(RDMA_PS_TCP, &at), *server;
	struct rdma_cm_event said;

	ece = (struct ibv_ece){ .vendor_id = 0, .options = 1 };
	REFUSED(rdma_set_local_ece(client, &ece), EINVAL);
	CHECK(!rdma_set_local_ece(client, &mine));
	NEED(!rdma_connect(client, new_queue()));
	server = next(serving, RDMA_CM_EVENT_CONNECT_REQUEST).id;
	CHECK(!rdma_get_remote_ece(server, &ece) && ece.vendor_id == mine.vendor_id && ece.options == mine.options && !ece.comp_mask);
	CHECK(!rdma_reject_ece(server, text, sizeof(text)) && !rdma_destroy_id(server));
	said = next(asking, RDMA_CM_EVENT_REJECTED);
	/* Vendors' options are not supported (IBTA 1.7 12.6.7.2). */
	CHECK(said.status == 35);
	CHECK(!rdma_destroy_id(client));

	/* The reply has ECE options of the requester's vendor if the request had options. */
	for (int asked = 0; asked < 2; asked++) {
		client = routed(RDMA_PS_TCP, &at);
		CHECK(!asked || !rdma_set_local_ece(client, &mine));
		NEED(!rdma_connect(client, new_queue()));
		server = next(serving, RDMA_CM_EVENT_CONNECT_REQUEST).id;
		CHECK(!rdma_get_remote_ece(server, &ece) && !ece.vendor_id == !asked && !ece.options == !asked);
		CHECK(!rdma_set_local_ece(server, &yours) && !rdma_accept(server, new_queue()));
		next(asking, RDMA_CM_EVENT_CONNECT_RESPONSE);
		CHECK(!rdma_get_remote_ece(client, &ece) && ece.vendor_id == (asked ? mine.vendor_id : 0) && ece.options == yours.options);
		/* A requester that has rejected the reply cannot accept it. */
		CHECK(!rdma_reject(client, NULL, 0));
		said = next(serving, RDMA_CM_EVENT_REJECTED);
		CHECK(said.id == server && said.status == 28);
		CHECK(!rdma_destroy_id(client) && !rdma_destroy_id(server));
	}
}

/* Ends a connection, and waits until both ids are told that its time wait is over, too. */
static void end(struct rdma_cm_id *client, struct rdma_cm_id *server)
{
	struct pollfd more = { .fd = asking->fd, .events = POLLIN };

	CHECK(!rdma_disconnect(client));
	CHECK(next(serving, RDMA_CM_EVENT_DISCONNECTED).id == server);
	/* The side that disconnects first gets its event when the peer has disconnected too. The
	 * absence of an earlier event shows only by waiting. */
	CHECK(poll(&more, 1, 200) == 0);
	CHECK(!rdma_disconnect(server));
	CHECK(next(asking, RDMA_CM_EVENT_DISCONNECTED).id == client);
	CHECK(next(serving, RDMA_CM_EVENT_TIMEWAIT_EXIT).id == server && next(asking, RDMA_CM_EVENT_TIMEWAIT_EXIT).id == client);
}

static void data_came_first(void)
{
	struct rdma_cm_id *client = routed(RDMA_PS_TCP, &at), *server;

	NEED(!rdma_connect(client, new_queue()));
	server = next(serving, RDMA_CM_EVENT_CONNECT_REQUEST).id;
	REFUSED(rdma_notify(client, IBV_EVENT_SQ_DRAINED), EINVAL);
	NEED(!rdma_accept(server, new_queue()));
	next(asking, RDMA_CM_EVENT_CONNECT_RESPONSE);
	CHECK(!rdma_notify(server, IBV_EVENT_COMM_EST));
	CHECK(next(serving, RDMA_CM_EVENT_ESTABLISHED).id == server);
	REFUSED(rdma_notify(server, IBV_EVENT_COMM_EST), EISCONN);
	/* Its word comes late, and is no news. */
	CHECK(!rdma_establish(client));
	end(client, server);
	CHECK(!rdma_destroy_id(client) && !rdma_destroy_id(server));
}

/*
 * Checks the private data of the next event: the whole field of the message, with `length` bytes of
 * data and then zeros, as from the kernel. `<rdma/ib_cm.h>` has the sizes, less the addresses in
 * front of requests.
 */
static struct rdma_cm_id *is_told(struct rdma_event_channel *channel, enum rdma_cm_event_type type, int is_datagram, unsigned length)
{
	static const char zeros[256];
	struct rdma_cm_event *event;

	NEED(!rdma_get_cm_event(channel, &event));
	struct rdma_cm_id *id = event->id;
	const char *data = is_datagram ? event->param.ud.private_data : event->param.conn.private_data;
	unsigned told = is_datagram ? event->param.ud.private_data_len : event->param.conn.private_data_len;

	check(event->event == type, rdma_event_str(type));
	check(told == length && data && !memcmp(data, text, sizeof(text)) && !memcmp(data + sizeof(text), zeros, length - sizeof(text)),
	      "private data have the length of their field");
	CHECK(!rdma_ack_cm_event(event));
	return id;
}

static struct rdma_conn_param *with(const void *data, unsigned length)
{
	static struct rdma_conn_param param;

	param = *new_queue();
	param.private_data = data;
	param.private_data_len = (uint8_t)length;
	return &param;
}

static void private_data(void)
{
	static const char much[256];
	struct sockaddr_in port = { .sin_family = AF_INET, .sin_addr = at.sin_addr };
	struct rdma_cm_id *client = routed(RDMA_PS_TCP, &at), *server, *datagrams;

	REFUSED(rdma_connect(client, with(much, 57)), EINVAL);
	NEED(!rdma_connect(client, with(text, sizeof(text))));
	server = is_told(serving, RDMA_CM_EVENT_CONNECT_REQUEST, 0, 56);
	CHECK(!rdma_reject(server, text, sizeof(text)) && !rdma_destroy_id(server));
	CHECK(is_told(asking, RDMA_CM_EVENT_REJECTED, 0, 148) == client && !rdma_destroy_id(client));

	client = routed(RDMA_PS_TCP, &at);
	NEED(!rdma_connect(client, with(much, 56)));
	server = next(serving, RDMA_CM_EVENT_CONNECT_REQUEST).id;
	NEED(!rdma_accept(server, with(text, sizeof(text))));
	CHECK(is_told(asking, RDMA_CM_EVENT_CONNECT_RESPONSE, 0, 196) == client && !rdma_establish(client));
	CHECK(next(serving, RDMA_CM_EVENT_ESTABLISHED).id == server);
	end(client, server);
	CHECK(!rdma_destroy_id(client) && !rdma_destroy_id(server));

	NEED(!rdma_create_id(serving, &datagrams, NULL, RDMA_PS_UDP));
	NEED(!rdma_bind_addr(datagrams, (struct sockaddr *)&port) && !rdma_listen(datagrams, 8));
	port.sin_port = rdma_get_src_port(datagrams);
	client = routed(RDMA_PS_UDP, &port);
	REFUSED(rdma_connect(client, with(much, 181)), EINVAL);
	NEED(!rdma_connect(client, with(text, sizeof(text))));
	server = is_told(serving, RDMA_CM_EVENT_CONNECT_REQUEST, 1, 180);
	NEED(!rdma_accept(server, with(text, sizeof(text))));
	CHECK(is_told(asking, RDMA_CM_EVENT_ESTABLISHED, 1, 136) == client);
	CHECK(!rdma_destroy_id(client) && !rdma_destroy_id(server) && !rdma_destroy_id(datagrams));
}

static void there_and_back(void)
{
	struct rdma_cm_id *client;

	NEED(!rdma_create_id(asking, &client, NULL, RDMA_PS_TCP));
	CHECK(!rdma_migrate_id(client, NULL) && client->channel != asking);
	/* It waits by itself, and has no events on the channel. */
	CHECK(!rdma_resolve_addr(client, NULL, (struct sockaddr *)&at, 2000));
	CHECK(client->event && client->event->event == RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(!rdma_migrate_id(client, asking) && client->channel == asking);
	CHECK(!rdma_resolve_route(client, 2000));
	CHECK(next(asking, RDMA_CM_EVENT_ROUTE_RESOLVED).id == client);
	CHECK(!rdma_destroy_id(client));
}

/* The next completion of a queue. */
static struct ibv_wc completion(struct ibv_cq *cq)
{
	struct ibv_wc wc;

	while (!ibv_poll_cq(cq, 1, &wc))
		;
	return wc;
}

static void shared_queues(void)
{
	struct ibv_srq_init_attr plain = { .attr = { .max_wr = DEPTH, .max_sge = 1 } };
	struct ibv_srq_init_attr_ex full = { .attr = { .max_wr = DEPTH, .max_sge = 1 }, .comp_mask = IBV_SRQ_INIT_ATTR_TYPE, .srq_type = IBV_SRQT_BASIC };
	/* Without receives of its own, upstream's librdmacm makes no CQ for the SRQ's completions
	 * and crashes. */
	struct ibv_qp_init_attr init = { .cap = { DEPTH, DEPTH, 1, 1, 0 }, .qp_type = IBV_QPT_RC, .sq_sig_all = 1 };
	struct ibv_qp_init_attr_ex init_ex = { .cap = { DEPTH, DEPTH, 1, 1, 0 }, .qp_type = IBV_QPT_RC, .sq_sig_all = 1 };
	struct rdma_cm_id *client = routed(RDMA_PS_TCP, &at), *server;
	struct ibv_recv_wr *bad, receive = { .wr_id = 7, .num_sge = 1 };

	NEED(!rdma_create_qp_ex(client, &init_ex) && client->qp && client->send_cq && client->recv_cq);
	CHECK(init_ex.comp_mask & IBV_QP_INIT_ATTR_PD && init_ex.pd == client->pd);
	NEED(!rdma_connect(client, new_queue()));
	server = next(serving, RDMA_CM_EVENT_CONNECT_REQUEST).id;
	for (int is_full = 0; is_full < 2; is_full++) {
		if (is_full)
			CHECK(!rdma_create_srq_ex(server, &full));
		else
			CHECK(!rdma_create_srq(server, NULL, &plain));
		NEED(server->srq && server->pd);
		/* Another one takes its place; the first is the program's. */
		struct ibv_srq *first = server->srq;

		CHECK(!rdma_create_srq(server, NULL, &plain) && server->srq != first && !ibv_destroy_srq(first));
		if (!is_full) {
			rdma_destroy_srq(server);
			CHECK(!server->srq);
		}
	}
	/* What arrives is received by the shared queue. */
	struct ibv_mr *mr = ibv_reg_mr(server->pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
	struct ibv_sge place = { (uintptr_t)memory, sizeof(memory), mr ? mr->lkey : 0 };

	receive.sg_list = &place;
	NEED(mr && !ibv_post_srq_recv(server->srq, &receive, &bad));
	init.srq = server->srq;
	NEED(!rdma_create_qp(server, NULL, &init) && server->qp->srq == server->srq);
	NEED(!rdma_accept(server, new_queue()));
	next(asking, RDMA_CM_EVENT_ESTABLISHED);
	next(serving, RDMA_CM_EVENT_ESTABLISHED);
	struct ibv_mr *from = rdma_reg_msgs(client, text, sizeof(text));

	NEED(from && !rdma_post_send(client, NULL, text, sizeof(text), from, 0));
	CHECK(completion(client->send_cq).status == IBV_WC_SUCCESS);
	struct ibv_wc wc = completion(server->recv_cq);

	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 7 && wc.byte_len == sizeof(text) && !strcmp(memory, text));
	end(client, server);
	rdma_destroy_qp(server);
	rdma_destroy_srq(server);
	rdma_destroy_qp(client);
	CHECK(!server->srq && !client->qp && !rdma_dereg_mr(from) && !ibv_dereg_mr(mr));
	CHECK(!rdma_destroy_id(client) && !rdma_destroy_id(server));
}

/* An id of datagrams with a queue pair, at the device. */
static struct rdma_cm_id *datagrams(struct sockaddr_in *group)
{
	struct ibv_qp_init_attr init = { .cap = { DEPTH, DEPTH, 1, 1, 0 }, .qp_type = IBV_QPT_UD, .sq_sig_all = 1 };
	struct sockaddr_in own = { .sin_family = AF_INET, .sin_addr = at.sin_addr };
	struct rdma_cm_id *id;

	NEED(!rdma_create_id(asking, &id, NULL, RDMA_PS_UDP) && !rdma_bind_addr(id, (struct sockaddr *)&own));
	NEED(!rdma_resolve_addr(id, (struct sockaddr *)&own, (struct sockaddr *)group, 2000));
	next(asking, RDMA_CM_EVENT_ADDR_RESOLVED);
	NEED(!rdma_create_qp(id, NULL, &init));
	return id;
}

static void members_that_send(void)
{
	struct sockaddr_in group = { .sin_family = AF_INET, .sin_addr = { htonl(0xef4d0709) } };
	struct rdma_cm_id *member = datagrams(&group), *sender = datagrams(&group);
	struct rdma_cm_join_mc_attr_ex join = { .comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS, .addr = (struct sockaddr *)&group };
	struct ibv_send_wr *bad, send = { .num_sge = 1, .opcode = IBV_WR_SEND };
	struct ibv_wc wc;

	CHECK(!rdma_join_multicast(member, (struct sockaddr *)&group, &group));
	struct rdma_cm_event said = next(asking, RDMA_CM_EVENT_MULTICAST_JOIN);

	CHECK(said.id == member && said.param.ud.private_data == &group && said.param.ud.qp_num == 0xffffff);
	REFUSED(rdma_join_multicast_ex(sender, &join, NULL), EINVAL);
	join.comp_mask |= RDMA_CM_JOIN_MC_ATTR_RESERVED;
	REFUSED(rdma_join_multicast_ex(sender, &join, NULL), ENOTSUP);
	join.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS;
	join.comp_mask |= RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
	join.join_flags = RDMA_MC_JOIN_FLAG_RESERVED;
	REFUSED(rdma_join_multicast_ex(sender, &join, NULL), EINVAL);
	join.join_flags = RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER;
	CHECK(!rdma_join_multicast_ex(sender, &join, &join));
	said = next(asking, RDMA_CM_EVENT_MULTICAST_JOIN);
	CHECK(said.id == sender && said.param.ud.private_data == &join);

	/* Both members post a receive; only the full member receives. */
	struct ibv_mr *mr = rdma_reg_msgs(member, memory, sizeof(memory)), *from = rdma_reg_msgs(sender, memory, sizeof(memory));
	struct ibv_sge place = { (uintptr_t)memory, sizeof(text), from->lkey };

	NEED(mr && from && !rdma_post_recv(member, NULL, memory, sizeof(memory), mr) && !rdma_post_recv(sender, NULL, memory, sizeof(memory), from));
	send.sg_list = &place;
	send.wr.ud.ah = ibv_create_ah(sender->pd, &said.param.ud.ah_attr);
	send.wr.ud.remote_qpn = said.param.ud.qp_num;
	send.wr.ud.remote_qkey = said.param.ud.qkey;
	NEED(send.wr.ud.ah && !ibv_post_send(sender->qp, &send, &bad));
	CHECK(completion(sender->send_cq).status == IBV_WC_SUCCESS);
	wc = completion(member->recv_cq);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.byte_len == sizeof(text) + 40);
	CHECK(!ibv_poll_cq(sender->recv_cq, 1, &wc));
	for (int n = 0; n < 2; n++) {
		struct rdma_cm_id *id = n ? sender : member;

		CHECK(!rdma_leave_multicast(id, (struct sockaddr *)&group));
		REFUSED(rdma_leave_multicast(id, (struct sockaddr *)&group), EADDRNOTAVAIL);
	}
	CHECK(!ibv_destroy_ah(send.wr.ud.ah));
	rdma_destroy_qp(member);
	rdma_destroy_qp(sender);
	CHECK(!rdma_dereg_mr(mr) && !rdma_dereg_mr(from) && !rdma_destroy_id(member) && !rdma_destroy_id(sender));
}

/* The first device's first IPv4 address. */
static void find_address(void)
{
	static const unsigned char mapped[12] = { [10] = 0xff, 0xff };
	int count = 0;
	struct ibv_context **devices = rdma_get_devices(&count);
	union ibv_gid gid = { 0 };

	NEED(devices && count > 0 && !devices[count]);
	for (int index = 0; memcmp(gid.raw, mapped, sizeof(mapped)); index++)
		NEED(!ibv_query_gid(devices[0], 1, index, &gid));
	memcpy(&at.sin_addr, gid.raw + sizeof(mapped), 4);
	rdma_free_devices(devices);
}

int main(void)
{
	/* Whatever hangs ends. */
	alarm(LIMIT);
	find_address();
	asking = rdma_create_event_channel();
	serving = rdma_create_event_channel();
	NEED(asking && serving && !rdma_create_id(serving, &listener, NULL, RDMA_PS_TCP));
	NEED(!rdma_bind_addr(listener, (struct sockaddr *)&at) && !rdma_listen(listener, 8));
	at.sin_port = rdma_get_src_port(listener);
	vendors_options();
	data_came_first();
	private_data();
	there_and_back();
	shared_queues();
	members_that_send();
	CHECK(!rdma_destroy_id(listener));
	rdma_destroy_event_channel(asking);
	rdma_destroy_event_channel(serving);
	return failures != 0;
}
