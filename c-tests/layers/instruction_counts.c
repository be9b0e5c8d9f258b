/*
 * Executes single calls instruction by instruction, and prints "NAME COUNT FILE...": the least
 * count of CALLS calls and the files of all instructions. A child makes the calls with a breakpoint
 * before and after each; its parent steps the child between the breakpoints.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CALLS = 16, FILES = 16, BREAKPOINT = 0xcc };

/* The name of the child's next call, in shared memory. */
static const char **doing;

/* Whether the parent steps. The first calls are not counted, because they bind symbols lazily. */
static int stepped;

#define BREAK() do { if (stepped) __asm__ volatile("int3" ::: "memory"); } while (0)
#define STEPPED(name, call) do { *doing = name; BREAK(); call; BREAK(); } while (0)

static void want(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		_exit(1);
	}
}

static struct ibv_context *context;
static struct ibv_cq_ex *sent, *received;
static struct ibv_qp *qp[2];
static struct ibv_mr *mr;
static uint64_t memory[16];

static void make(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_port_attr port;

	context = list && list[0] ? ibv_open_device(list[0]) : NULL;
	struct ibv_pd *pd = context ? ibv_alloc_pd(context) : NULL;
	want(pd && !ibv_query_port(context, 1, &port), "a device");
	struct ibv_cq_init_attr_ex of_cq = { .cqe = 16, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN };
	sent = ibv_create_cq_ex(context, &of_cq);
	received = ibv_create_cq_ex(context, &of_cq);
	mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
	want(sent && received && mr, "CQs and an MR");
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr_ex init = { .send_cq = ibv_cq_ex_to_cq(sent), .recv_cq = ibv_cq_ex_to_cq(received), .qp_type = IBV_QPT_RC,
						    .pd = pd, .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
						    .send_ops_flags = IBV_QP_EX_WITH_SEND, .cap = { 8, 8, 1, 1, 0 } };
		qp[i] = ibv_create_qp_ex(context, &init);
		want(qp[i] != NULL, "a QP");
	}
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
		want(!ibv_modify_qp(qp[i], &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
		a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp[1 - i]->qp_num,
					  .min_rnr_timer = 12, .ah_attr = { .dlid = port.lid, .port_num = 1 } };
		want(!ibv_modify_qp(qp[i], &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
		a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7 };
		want(!ibv_modify_qp(qp[i], &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				    IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
	}
}

/* Polls for the completion of the send: some calls find nothing, one finds it. */
static void take(struct ibv_cq_ex *cq)
{
	struct ibv_wc wc = { .status = IBV_WC_SUCCESS };
	int n;

	while (!(n = ibv_poll_cq(ibv_cq_ex_to_cq(cq), 1, &wc)))
		;
	want(n == 1 && wc.status == IBV_WC_SUCCESS, "a completion");
}

static void one_round(void)
{
	struct ibv_sge to = { (uintptr_t)memory, 8, mr->lkey }, from = { (uintptr_t)(memory + 8), 8, mr->lkey };
	struct ibv_recv_wr receive = { .sg_list = &to, .num_sge = 1 }, *bad_receive;
	struct ibv_send_wr send = { .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_poll_cq_attr none = { 0 };
	struct ibv_cq *cq = ibv_cq_ex_to_cq(received);
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp[0]);
	struct ibv_wc wc;
	int error = 0, found = 0;

	STEPPED("post_recv", error = ibv_post_recv(qp[1], &receive, &bad_receive));
	want(!error && !ibv_post_recv(qp[1], &receive, &bad_receive), "ibv_post_recv");
	STEPPED("poll_cq", found = ibv_poll_cq(cq, 1, &wc));
	want(!found, "ibv_poll_cq");
	STEPPED("start_poll", error = ibv_start_poll(received, &none));
	want(error == 2, "ibv_start_poll");
	STEPPED("post_send", error = ibv_post_send(qp[0], &send, &bad));
	want(!error, "ibv_post_send");
	do
		STEPPED("poll_cq-taking", found = ibv_poll_cq(cq, 1, &wc));
	while (!found);
	want(found == 1 && !wc.status, "ibv_poll_cq");
	take(sent);

	STEPPED("wr_start", ibv_wr_start(ex));
	ex->wr_flags = IBV_SEND_SIGNALED;
	STEPPED("wr_send", ibv_wr_send(ex));
	STEPPED("wr_set_sge", ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)(memory + 8), 8));
	STEPPED("wr_complete", error = ibv_wr_complete(ex));
	want(!error, "ibv_wr_complete");
	do
		STEPPED("start_poll-taking", error = ibv_start_poll(received, &none));
	while (error);
	STEPPED("read_byte_len", found = (int)ibv_wc_read_byte_len(received));
	want(found == 8, "ibv_wc_read_byte_len");
	STEPPED("end_poll", ibv_end_poll(received));
	take(sent);
}

/* A call of librdmacm by its name, and by the table entry that its name jumps to: "jmp
 * *table(%rip)". */
static void connections(void)
{
	typedef int set_option(struct rdma_cm_id *, int, int, void *, size_t);
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id;
	unsigned char *code = dlsym(RTLD_DEFAULT, "rdma_set_option");
	int32_t far;

	want(channel && !rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), "an id");
	want(code && code[0] == 0xff && code[1] == 0x25, "rdma_set_option is a jump");
	memcpy(&far, code + 2, sizeof(far));
	set_option *volatile by_name = (set_option *)(void *)code;
	set_option *volatile straight = *(set_option **)(void *)(code + 6 + far);
	for (int i = 0; i < CALLS; i++) {
		STEPPED("rdma_set_option", by_name(id, 99, 0, memory, 8));
		STEPPED("rdma_set_option-straight", straight(id, 99, 0, memory, 8));
	}
	want(!rdma_destroy_id(id), "rdma_destroy_id");
	rdma_destroy_event_channel(channel);
}

static int child(void)
{
	make();
	one_round();
	want(!ptrace(PTRACE_TRACEME, 0, NULL, NULL), "PTRACE_TRACEME");
	stepped = 1;
	for (int i = 0; i < CALLS; i++)
		one_round();
	connections();
	return 0;
}

/* Count and files of one call. */
struct counted {
	const char *name;
	unsigned long least;
	char file[FILES][64];
	struct counted *next;
};

/* The name of the file that an address of the child is in, without folders. */
static void file_of(pid_t pid, unsigned long address, char name[64])
{
	static struct { unsigned long from, to; char name[64]; } last;
	char path[64], line[512];

	if (address < last.from || address >= last.to) {
		snprintf(path, sizeof(path), "/proc/%d/maps", pid);
		FILE *maps = fopen(path, "r");
		want(maps != NULL, path);
		memset(&last, 0, sizeof(last));
		snprintf(last.name, sizeof(last.name), "nobody");
		while (fgets(line, sizeof(line), maps)) {
			char whole[256] = "";
			unsigned long from, to;
			if (sscanf(line, "%lx-%lx %*s %*s %*s %*s %255s", &from, &to, whole) < 2 || address < from || address >= to)
				continue;
			const char *slash = strrchr(whole, '/');
			last.from = from;
			last.to = to;
			snprintf(last.name, sizeof(last.name), "%.63s", slash ? slash + 1 : whole);
		}
		fclose(maps);
	}
	strcpy(name, last.name);
}

/* From behind one breakpoint up to the next. */
static void step(pid_t pid, struct counted *counted)
{
	struct user_regs_struct registers;
	unsigned long count = 0;
	int status;

	for (;;) {
		char name[64];
		int at = 0;

		want(!ptrace(PTRACE_GETREGS, pid, NULL, &registers), "PTRACE_GETREGS");
		if ((ptrace(PTRACE_PEEKTEXT, pid, registers.rip, NULL) & 0xff) == BREAKPOINT)
			break;
		file_of(pid, registers.rip, name);
		while (at < FILES - 1 && counted->file[at][0] && strcmp(counted->file[at], name))
			at++;
		strcpy(counted->file[at], name);
		count++;
		want(!ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL) && waitpid(pid, &status, 0) == pid && WIFSTOPPED(status), "PTRACE_SINGLESTEP");
	}
	if (count < counted->least)
		counted->least = count;
}

int main(void)
{
	struct counted *first = NULL, **last = &first;
	int status;

	doing = mmap(NULL, sizeof(*doing), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	want(doing != MAP_FAILED, "mmap");
	pid_t pid = fork();
	want(pid >= 0, "fork");
	if (!pid)
		exit(child());
	while (waitpid(pid, &status, 0) == pid && WIFSTOPPED(status)) {
		if (WSTOPSIG(status) != SIGTRAP) {
			want(!ptrace(PTRACE_CONT, pid, NULL, WSTOPSIG(status)), "PTRACE_CONT");
			continue;
		}
		struct counted *counted = first;
		while (counted && strcmp(counted->name, *doing))
			counted = counted->next;
		if (!counted) {
			counted = *last = calloc(1, sizeof(*counted));
			want(counted != NULL, "memory");
			last = &counted->next;
			counted->name = *doing;
			counted->least = ~0ul;
		}
		step(pid, counted);
		/* Over the breakpoint behind the call, on to the one before the next. */
		want(!ptrace(PTRACE_CONT, pid, NULL, NULL) && waitpid(pid, &status, 0) == pid && WIFSTOPPED(status), "PTRACE_CONT");
		want(!ptrace(PTRACE_CONT, pid, NULL, NULL), "PTRACE_CONT");
	}
	for (; first; first = first->next) {
		printf("%s %lu", first->name, first->least);
		for (int at = 0; first->file[at][0]; at++)
			printf(" %s", first->file[at]);
		printf("\n");
	}
	return !WIFEXITED(status) || WEXITSTATUS(status);
}
