/*
 * A waiting process uses no CPU, over shared memory and between hosts. The parent counts clock
 * ticks and voluntary context switches of all threads of a waiting child for a second, then sends
 * the awaited message. With TEST_HOST the children are on another host, and the count includes the
 * threads of the wire.
 */
#include "rig.h"
#include <dirent.h>
#include <sys/epoll.h>

struct use {
	unsigned long long ticks, switches;
	int threads;
};

static struct use used(pid_t pid)
{
	struct use u = { 0, 0, 0 };
	char path[400], text[2048];
	snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
	DIR *d = opendir(path);
	if (!d)
		die("cannot look at process %d", (int)pid);
	for (struct dirent *e; (e = readdir(d));) {
		if (e->d_name[0] == '.')
			continue;
		snprintf(path, sizeof path, "/proc/%d/task/%s/stat", (int)pid, e->d_name);
		FILE *f = fopen(path, "r");
		if (f && fgets(text, sizeof text, f)) {
			unsigned long long user, sys;
			char *p = strrchr(text, ')');
			if (p && sscanf(p + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu", &user, &sys) == 2)
				u.ticks += user + sys;
			u.threads++;
		}
		if (f)
			fclose(f);
		snprintf(path, sizeof path, "/proc/%d/task/%s/status", (int)pid, e->d_name);
		f = fopen(path, "r");
		while (f && fgets(text, sizeof text, f)) {
			/* Others are the scheduler's doing. */
			static const char key[] = "voluntary_ctxt_switches:";
			if (!strncmp(text, key, sizeof key - 1))
				u.switches += strtoull(text + sizeof key - 1, NULL, 10);
		}
		if (f)
			fclose(f);
	}
	closedir(d);
	return u;
}

/* Waits as told, with everything armed; ends when a message has come. */
static int waiter(int fd, const char *how)
{
	if (hosts_differ())
		go_to_host();
	struct ibv_context *ctx = open_device();
	int gid_index = hosts_differ();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_comp_channel *ch = ibv_create_comp_channel(ctx);
	struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, ch, 0), *got;
	static unsigned char buf[4096];
	struct ibv_mr *mr = ibv_reg_mr(pd, buf, sizeof buf, IBV_ACCESS_LOCAL_WRITE);
	union ibv_gid gid;
	struct ibv_port_attr port;
	if (!pd || !ch || !cq || !mr || ibv_query_gid(ctx, 1, gid_index, &gid) || ibv_query_port(ctx, 1, &port))
		die("set up");
	struct ibv_qp_init_attr qa = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 0 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &qa);
	struct address mine = { .qpn = qp ? qp->qp_num : 0, .psn = 0, .lid = port.lid, .gid = gid }, his;
	if (!qp || write(fd, &mine, sizeof mine) != sizeof mine || read(fd, &his, sizeof his) != sizeof his)
		die("exchange");
	struct ibv_qp_attr at = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	int err = ibv_modify_qp(qp, &at, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	at = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR,
				   .path_mtu = port.active_mtu,
				   .dest_qp_num = his.qpn,
				   .rq_psn = his.psn,
				   .max_dest_rd_atomic = 1,
				   .min_rnr_timer = 1,
				   .ah_attr = { .is_global = 1, .grh = { .dgid = his.gid, .hop_limit = 1, .sgid_index = (uint8_t)gid_index }, .port_num = 1 } };
	err = err ? err
		  : ibv_modify_qp(qp, &at,
				  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
					  IBV_QP_MIN_RNR_TIMER);
	if (err)
		die("ibv_modify_qp: %s", strerror(err));
	/* Two messages: the first one makes traffic, the second one is awaited. */
	for (int i = 0; i < 2; i++) {
		struct ibv_sge sg = { (uintptr_t)buf, 64, mr->lkey };
		struct ibv_recv_wr rw = { .wr_id = (uint64_t)i, .sg_list = &sg, .num_sge = 1 }, *bad;
		if (ibv_post_recv(qp, &rw, &bad))
			die("ibv_post_recv");
	}
	char c = 1;
	struct ibv_wc w;
	if (write(fd, &c, 1) != 1)
		die("exchange");
	wait_completion(cq, &w);
	if (w.status)
		die("first message: %s", ibv_wc_status_str(w.status));
	if (ibv_req_notify_cq(cq, 0) || write(fd, &c, 1) != 1)
		die("arm");
	if (!strcmp(how, "poll")) {
		if (!readable(ch->fd, -1))
			die("poll");
	} else if (!strcmp(how, "epoll")) {
		int ep = epoll_create1(0);
		struct epoll_event ev = { .events = EPOLLIN };
		epoll_ctl(ep, EPOLL_CTL_ADD, ch->fd, &ev);
		if (epoll_wait(ep, &ev, 1, -1) != 1)
			die("epoll");
	} else if (!strcmp(how, "nothing")) {
		/* Not even armed for: everything open, the program sleeps elsewhere. */
		if (read(fd, &c, 1) != 1)
			die("sleep");
	}
	void *context;
	if (ibv_get_cq_event(ch, &got, &context) || got != cq)
		die("ibv_get_cq_event");
	ibv_ack_cq_events(cq, 1);
	wait_completion(cq, &w);
	check(w.status == IBV_WC_SUCCESS && w.wr_id == 1, "%s: the message that was waited for", how);
	ibv_destroy_qp(qp);
	ibv_destroy_cq(cq);
	ibv_destroy_comp_channel(ch);
	ibv_dereg_mr(mr);
	ibv_dealloc_pd(pd);
	ibv_close_device(ctx);
	return finish();
}

int main(void)
{
	static const char *const ways[] = { "ibv_get_cq_event", "poll", "epoll", "nothing" };
	int fd[4];
	pid_t pid[4];
	/* All waiters first: nothing is forked once this process has a device open. */
	for (int i = 0; i < 4; i++) {
		int s[2];
		if (socketpair(AF_UNIX, SOCK_STREAM, 0, s))
			die("socketpair");
		fflush(stdout);
		pid[i] = fork();
		if (!pid[i]) {
			close(s[0]);
			_exit(waiter(s[1], ways[i]));
		}
		close(s[1]);
		fd[i] = s[0];
	}
	struct end *e[4];
	for (int i = 0; i < 4; i++) {
		struct address his;
		char c;
		e[i] = end_new(0);
		struct address mine = end_open(e[i], defaults());
		if (read(fd[i], &his, sizeof his) != sizeof his || write(fd[i], &mine, sizeof mine) != sizeof mine || read(fd[i], &c, 1) != 1)
			die("exchange");
		end_connect(e[i], his);
		end_send(e[i], one_piece(IBV_WR_SEND, 1, 0, 32));
		if (end_wait(e[i], SENDS).status || read(fd[i], &c, 1) != 1)
			die("first message");
	}
	/* Waits until two consecutive samples are equal, a few seconds at most, so that the
	 * children sleep. */
	struct use before[4];
	for (int i = 0; i < 4; i++) {
		struct use now = used(pid[i]);
		for (int n = 0; n < 30; n++) {
			before[i] = now;
			usleep(100000);
			now = used(pid[i]);
			if (now.ticks == before[i].ticks && now.switches == before[i].switches)
				break;
		}
		before[i] = now;
	}
	struct use self = used(getpid());
	/* The absence of CPU use cannot be awaited; the test samples one second. */
	sleep(1);
	for (int i = 0; i < 4; i++) {
		struct use after = used(pid[i]);
		check_eq((long long)(after.ticks - before[i].ticks), 0, "%s: clock ticks used in a second by %d threads", ways[i], after.threads);
		check(after.switches - before[i].switches <= 3, "%s: context switches in that second: %llu", ways[i], after.switches - before[i].switches);
	}
	struct use self_after = used(getpid());
	check(self_after.ticks - self.ticks <= 1, "clock ticks used by this process, which has four QPs open: %llu", self_after.ticks - self.ticks);
	/* (One context switch is the parent's own sleep.) */
	check(self_after.switches - self.switches <= 5, "its context switches: %llu", self_after.switches - self.switches);
	for (int i = 0; i < 4; i++) {
		int status;
		char c = 1;
		end_send(e[i], one_piece(IBV_WR_SEND, 2, 0, 32));
		/* The last child sleeps outside of verbs; the others may have ended already. */
		if (i == 3 && write(fd[i], &c, 1) != 1)
			die("wake");
		check_eq(end_wait(e[i], SENDS).status, IBV_WC_SUCCESS, "%s: sent", ways[i]);
		waitpid(pid[i], &status, 0);
		check(WIFEXITED(status) && !WEXITSTATUS(status), "%s: the waiter ends well", ways[i]);
		end_close(e[i]);
		end_free(e[i]);
	}
	return finish();
}
