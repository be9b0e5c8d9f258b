#include "end.h"
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

int failed;
const char *who = "efa";
struct ibv_context *context;
struct ibv_pd *pd;
struct ibv_mr *mr;
struct ibv_cq *cq;
struct ibv_ah *ah;
char *memory;

void to_state(struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = {.qp_state = state, .port_num = 1, .qkey = QKEY};
	int mask = IBV_QP_STATE;

	if (state == IBV_QPS_INIT)
		mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
	if (state == IBV_QPS_RTS)
		mask |= IBV_QP_SQ_PSN;
	MUST(!ibv_modify_qp(qp, &attr, mask));
}

struct ibv_qp *ready(struct ibv_qp *qp)
{
	MUST(qp);
	to_state(qp, IBV_QPS_INIT);
	to_state(qp, IBV_QPS_RTR);
	to_state(qp, IBV_QPS_RTS);
	return qp;
}

struct ibv_wc completion(void)
{
	struct ibv_wc wc = {.wr_id = ~0ull};
	struct timespec start, now;
	int got;

	clock_gettime(CLOCK_MONOTONIC, &start);
	while (!(got = ibv_poll_cq(cq, 1, &wc))) {
		clock_gettime(CLOCK_MONOTONIC, &now);
		MUST(now.tv_sec - start.tv_sec < 60);
	}
	MUST(got == 1);
	return wc;
}

void open_end(const char *name, int access)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	MUST(list && list[0] && !list[1] && !strcmp(ibv_get_device_name(list[0]), name));
	MUST(context = ibv_open_device(list[0]));
	ibv_free_device_list(list);
	MUST(memory = calloc(1, AREA));
	MUST(pd = ibv_alloc_pd(context));
	MUST(mr = ibv_reg_mr(pd, memory, AREA, access));
}

void close_end(void)
{
	CHECK(!ibv_destroy_ah(ah));
	CHECK(!ibv_dereg_mr(mr));
	CHECK(!ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(context));
	free(memory);
}

int start_child(int (*child)(int socket), pid_t *pid)
{
	int sockets[2];

	MUST(!socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
	fflush(stdout);
	*pid = fork();
	MUST(*pid >= 0);
	if (!*pid) {
		close(sockets[0]);
		exit(child(sockets[1]));
	}
	close(sockets[1]);
	return sockets[0];
}

void exchange(int socket, const void *own, void *other, size_t length)
{
	MUST(write(socket, own, length) == (ssize_t)length);
	MUST(read(socket, other, length) == (ssize_t)length);
}

void step(int socket)
{
	char own = 1, other;

	exchange(socket, &own, &other, 1);
}
