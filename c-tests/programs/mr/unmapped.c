/*
 * Memory that is unmapped before its deregistration, with receives posted in it. A hardware adapter
 * pins the pages, so messages land where no process sees them. Programs such as UCX unmap early
 * when they end. Here messages arrive while the program sleeps, polls and destroys the QP. A fault
 * in the program's own code reaches the program's own handler.
 */
#include "rig.h"
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { MESSAGES = 12, PLACE = 65536, GONE = 262144, ROOM = 2 * MESSAGES * PLACE };

static struct end *a, *b;
static struct address aa, ba;

/* Everything from GONE on. */
static long unmap(struct parts *p, void *arg)
{
	(void)arg;
	return munmap(p->buf + GONE, ROOM);
}

static long lives(struct parts *p, void *arg)
{
	(void)p;
	(void)arg;
	return 7;
}

static struct request message(enum ibv_qp_type type, uint64_t id, uint32_t len)
{
	struct request r = one_piece(IBV_WR_SEND, id, 0, len);
	if (type == IBV_QPT_UD) {
		r.qpn = ba.qpn;
		r.qkey = ba.qkey;
	}
	return r;
}

static void receives(enum ibv_qp_type type, const char *name, uint32_t len)
{
	struct options o = defaults();
	o.type = type;
	o.channel = 1;
	o.size = GONE + ROOM;
	o.retry = o.rnr_retry = 7;
	o.timeout = 14;
	pair_open(a, b, o, &aa, &ba);
	for (uint64_t i = 0; i < 2 * MESSAGES; i++)
		check_eq(end_recv(b, one_piece(0, i, GONE + i * PLACE, PLACE)), 0, "%s: receive %u", name, (unsigned)i);
	check_eq(end_arm(b, 0), 0, "%s: ibv_req_notify_cq", name);
	check_eq(end_run(b, unmap, NULL, 0), 0, "%s: the receives' memory is unmapped", name);
	/* The peer process does not poll; its service thread takes the messages. */
	for (uint64_t i = 0; i < MESSAGES; i++) {
		check_eq(end_send(a, message(type, i, len)), 0, "%s: ibv_post_send", name);
		check_eq(end_wait(a, SENDS).status, IBV_WC_SUCCESS, "%s: message %u is sent", name, (unsigned)i);
		check(i > 0 || end_event(b, 10000) == 1, "%s: the receiver is woken", name);
	}
	check_eq(end_run(b, lives, NULL, 0), 7, "%s: the receiver lives", name);
	/* These messages are in the queue when the QP is destroyed. */
	for (uint64_t i = 0; i < MESSAGES; i++)
		if (end_send(a, message(type, i, len)))
			die("ibv_post_send");
	end_destroy_qp(b);
	pair_close(a, b);
	check(1, "%s: everything was destroyed", name);
}

/*
 * The program polls. Messages to unmapped memory are lost, and reads of it fail, for every length.
 */
static void polls(void)
{
	static const uint32_t len[] = { 1, 8, 48, 100, 4000, 20000, 500000 };
	static const struct {
		const char *name;
		enum ibv_wr_opcode op;
		int local, status;
	} cases[] = {
		{ "a receive", IBV_WR_SEND, 0, IBV_WC_SUCCESS },
		{ "the source of a SEND", IBV_WR_SEND, 1, IBV_WC_LOC_PROT_ERR },
		{ "the target of a WRITE", IBV_WR_RDMA_WRITE, 0, IBV_WC_SUCCESS },
		{ "the source of a WRITE", IBV_WR_RDMA_WRITE, 1, IBV_WC_LOC_PROT_ERR },
		{ "the target of a READ", IBV_WR_RDMA_READ, 0, IBV_WC_REM_OP_ERR },
		{ "the buffer of a READ", IBV_WR_RDMA_READ, 1, IBV_WC_SUCCESS },
	};
	for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
		for (size_t i = 0; i < sizeof len / sizeof *len; i++) {
			struct options o = defaults();
			o.size = GONE + ROOM;
			pair_open(a, b, o, &aa, &ba);
			check_eq(end_run(cases[c].local ? a : b, unmap, NULL, 0), 0, "%s of %u bytes is unmapped", cases[c].name, len[i]);
			struct request r = one_piece(cases[c].op, 1, cases[c].local ? GONE : 0, len[i]);
			r.raddr = ba.addr + (cases[c].local ? 0 : GONE);
			r.rkey = ba.rkey;
			if (cases[c].op == IBV_WR_SEND)
				end_recv(b, one_piece(0, 5, cases[c].local ? 0 : GONE, len[i]));
			end_send(a, r);
			/* Where nothing else serves the receive, the program's own poll does. */
			if (cases[c].op == IBV_WR_SEND && !cases[c].local) {
				struct ibv_wc w = end_wait(b, RECVS);
				check(w.status == IBV_WC_SUCCESS && w.byte_len == len[i], "%s of %u bytes: %s", cases[c].name, len[i], ibv_wc_status_str(w.status));
			}
			check_eq(end_wait(a, SENDS).status, cases[c].status, "%s of %u bytes", cases[c].name, len[i]);
			check_eq(end_run(b, lives, NULL, 0), 7, "%s of %u bytes: the peer lives", cases[c].name, len[i]);
			pair_close(a, b);
		}
}

static sigjmp_buf back;

static void jump(int signal)
{
	siglongjmp(back, signal);
}

/* Faults of the program itself: an earlier handler gets them; without a handler they end the
 * process. */
static void faults_of_the_program(int has_handler)
{
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		struct rlimit none = { 0, 0 };
		setrlimit(RLIMIT_CORE, &none);
		volatile char *nowhere = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		struct sigaction how = { .sa_handler = jump };
		if (has_handler && sigaction(SIGSEGV, &how, NULL))
			_exit(2);
		struct ibv_device **list = ibv_get_device_list(NULL);
		if (!list || !list[0] || !ibv_open_device(list[0]))
			_exit(3);
		if (has_handler && sigsetjmp(back, 1))
			_exit(7);
		*nowhere = 1;
		_exit(4);
	}
	int status = 0;
	waitpid(child, &status, 0);
	if (has_handler)
		check(WIFEXITED(status) && WEXITSTATUS(status) == 7, "a handler of before gets the program's own fault (%#x)", status);
	else
		check(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV, "without one the fault ends the program (%#x)", status);
}

int main(void)
{
	/* Before a device is opened here. */
	faults_of_the_program(1);
	faults_of_the_program(0);
	a = end_new(0);
	b = end_new(1);
	receives(IBV_QPT_RC, "RC", 2000);
	receives(IBV_QPT_RC, "RC, long", 60000);
	receives(IBV_QPT_UC, "UC", 2000);
	receives(IBV_QPT_UD, "UD", 2000);
	polls();
	end_free(a);
	end_free(b);
	return finish();
}
