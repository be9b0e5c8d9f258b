/*
 * One misuse of librdmacm, and its right variant, for each check CM-* of the layer `validate`: cm
 * ID wrong|right. See misuse.c. CM_ADDRESS in the environment is a device address, needed where
 * 127.0.0.1 belongs to no device. WAY selects another way to trigger the check.
 */
#include "cases.h"
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

static struct rdma_event_channel *server, *client;
static struct rdma_cm_id *listener, *asker, *asked;
static struct ibv_mr *mr;
static char bytes[64];
static int wrong;

static struct rdma_cm_event *event(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *got;
	want(!rdma_get_cm_event(channel, &got), "rdma_get_cm_event");
	if (got->event != type) {
		fprintf(stderr, "misuse: %s instead of %s\n", rdma_event_str(got->event), rdma_event_str(type));
		exit(2);
	}
	return got;
}

static struct rdma_cm_id *expect(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *got = event(channel, type);
	struct rdma_cm_id *id = got->id;
	want(!rdma_ack_cm_event(got), "rdma_ack_cm_event");
	return id;
}

static struct rdma_cm_id *id_of(struct rdma_event_channel *channel)
{
	struct rdma_cm_id *id;
	want(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
	return id;
}

static int way(const char *name)
{
	const char *given = getenv("WAY");
	return given && !strcmp(given, name);
}

static in_addr_t address(void)
{
	const char *given = getenv("CM_ADDRESS");
	return inet_addr(given ? given : "127.0.0.1");
}

static void listening(int backlog)
{
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_addr.s_addr = address() };
	listener = id_of(server);
	want(!rdma_bind_addr(listener, (struct sockaddr *)&any) && !rdma_listen(listener, backlog), "rdma_listen");
}

static void resolve(void)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr.s_addr = address(),
		.sin_port = listener ? rdma_get_src_port(listener) : htons(7) };
	asker = id_of(client);
	want(!rdma_resolve_addr(asker, NULL, (struct sockaddr *)&to, 2000), "rdma_resolve_addr");
}

static void routed(void)
{
	resolve();
	expect(client, RDMA_CM_EVENT_ADDR_RESOLVED);
	want(!rdma_resolve_route(asker, 2000), "rdma_resolve_route");
	expect(client, RDMA_CM_EVENT_ROUTE_RESOLVED);
}

static int queue_pair(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init = { .cap = { 4, 4, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	return rdma_create_qp(id, NULL, &init);
}

/* A client with a pending request, and the request at its server. */
static void asking(void)
{
	struct rdma_conn_param param = { .private_data_len = 0 };
	listening(8);
	routed();
	want(!queue_pair(asker), "rdma_create_qp");
	mr = rdma_reg_msgs(asker, bytes, sizeof(bytes));
	want(mr && !rdma_post_recv(asker, NULL, bytes, sizeof(bytes), mr), "a receive");
	want(!rdma_connect(asker, &param), "rdma_connect");
	asked = expect(server, RDMA_CM_EVENT_CONNECT_REQUEST);
}

static struct rdma_cm_event *kept;

static void ack_kept(void)
{
	rdma_ack_cm_event(kept);
}

static void cm_01(void)
{
	pthread_t helper;
	resolve();
	kept = event(client, RDMA_CM_EVENT_ADDR_RESOLVED);
	want(!pthread_create(&helper, NULL, wrong ? after_report : after_delay, (void *)ack_kept), "pthread_create");
	want(!rdma_destroy_id(asker), "rdma_destroy_id");
	asker = NULL;
	pthread_join(helper, NULL);
}

static void cm_02(void)
{
	listening(8);
	if (!wrong)
		want(!rdma_destroy_id(listener), "rdma_destroy_id");
	rdma_destroy_event_channel(server);
	listener = NULL;
	server = NULL;
}

static void cm_03(void)
{
	struct rdma_conn_param param = { .retry_count = 7 };
	listening(8);
	routed();
	if (!wrong || way("depth"))
		want(!queue_pair(asker), "rdma_create_qp");
	if (way("depth"))
		param.initiator_depth = wrong ? 254 : 1;
	rdma_connect(asker, &param);
}

static void cm_04(void)
{
	static const char hello[197];
	struct rdma_conn_param param = { .private_data = hello, .private_data_len = wrong ? 57 : 56 };
	if (way("reply") || way("rejection")) {
		asking();
		want(!queue_pair(asked), "rdma_create_qp");
		param.private_data_len = wrong ? 197 : 196;
		if (way("reply"))
			rdma_accept(asked, &param);
		else
			rdma_reject(asked, hello, wrong ? 149 : 148);
		return;
	}
	listening(8);
	routed();
	want(!queue_pair(asker), "rdma_create_qp");
	rdma_connect(asker, &param);
}

static void cm_05(void)
{
	asking();
	want(!rdma_reject(asked, NULL, 0), "rdma_reject");
	expect(client, RDMA_CM_EVENT_REJECTED);
	want(!rdma_destroy_id(listener), "rdma_destroy_id");
	listener = NULL;
	if (!wrong)
		want(!rdma_destroy_id(asked), "rdma_destroy_id");
	asked = NULL;
	rdma_destroy_event_channel(server);
	server = NULL;
}

static void cm_06(void)
{
	if (wrong)
		asker = id_of(client);
	else
		routed();
	want(wrong ? queue_pair(asker) : !queue_pair(asker), "rdma_create_qp");
}

static void cm_07(void)
{
	asking();
	want(!queue_pair(asked), "rdma_create_qp");
	struct ibv_mr *theirs = rdma_reg_msgs(asked, bytes, sizeof(bytes));
	want(theirs != NULL, "rdma_reg_msgs");
	if (!wrong)
		want(!rdma_post_recv(asked, NULL, bytes, sizeof(bytes), theirs), "a receive");
	want(!rdma_accept(asked, NULL), "rdma_accept");
	expect(client, RDMA_CM_EVENT_ESTABLISHED);
	expect(server, RDMA_CM_EVENT_ESTABLISHED);
	rdma_destroy_qp(asked);
	want(!rdma_dereg_mr(theirs), "rdma_dereg_mr");
}

static void cm_08(void)
{
	struct rdma_conn_param param = { .retry_count = 7 };
	listening(wrong ? 1 : 8);
	routed();
	want(!queue_pair(asker) && !rdma_connect(asker, &param), "rdma_connect");
	struct pollfd waiting = { .fd = server->fd, .events = POLLIN };
	want(poll(&waiting, 1, -1) == 1, "poll");
	asked = expect(server, RDMA_CM_EVENT_CONNECT_REQUEST);
}

static const struct {
	const char *id;
	void (*run)(void);
} cases[] = {
	{ "CM-01", cm_01 }, { "CM-02", cm_02 }, { "CM-03", cm_03 }, { "CM-04", cm_04 },
	{ "CM-05", cm_05 }, { "CM-06", cm_06 }, { "CM-07", cm_07 }, { "CM-08", cm_08 },
};

static void destroy(struct rdma_cm_id *id)
{
	if (!id)
		return;
	if (id->qp)
		rdma_destroy_qp(id);
	if (id == asker && mr)
		want(!rdma_dereg_mr(mr), "rdma_dereg_mr");
	want(!rdma_destroy_id(id), "rdma_destroy_id");
}

int main(int argc, char **argv)
{
	if (argc == 1) {
		for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
			puts(cases[i].id);
		return 0;
	}
	wrong = argc > 2 && !strcmp(argv[2], "wrong");
	server = rdma_create_event_channel();
	client = rdma_create_event_channel();
	want(server && client, "rdma_create_event_channel");
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		if (!strcmp(cases[i].id, argv[1]))
			cases[i].run();
	destroy(asker);
	destroy(asked);
	destroy(listener);
	if (server)
		rdma_destroy_event_channel(server);
	rdma_destroy_event_channel(client);
	return 0;
}
