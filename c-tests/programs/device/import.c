/*
 * ibv_import_device(3) and the imports after it: domains, regions and device memory of another
 * context, in this process and between two. Three parties: an exporter (another process), the
 * importer (this process), and the importer's peer ("one": in this process too).
 *
 * Map of this file: `export` is the exporter's process, which `begin_export` forks and
 * `exporter_does` commands. The importer's helpers connect a QP and post requests; `strange` and
 * `handles` test invalid descriptors and handles. `lists`, `datagrams` and `target` transfer data
 * of imported regions; `refused` and `range` test errors; `device_memory` tests ibv_import_dm. A
 * session starts in `open_import`; `use`, `destroyed`, `unmapped` and `killed` each run a session.
 * `same_process` imports without an exporter. `main` starts the peer end and calls `strange`,
 * `same_process` and the sessions.
 */
#define _GNU_SOURCE
#include "rig.h"
#include <fcntl.h>
#include <sys/uio.h>

enum { SIZE = 1 << 20, DM_SIZE = 4096 };
#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

/* ---- the exporter ---- */

struct shared {
	uint32_t pd, mr, dm, lkey, rkey;
	uint64_t addr;
};

struct order {
	char what;
	uint32_t offset, len, seed;
};

static int exporter;	/* this process's end of the socket to the exporter */
static pid_t exporter_pid;

static void send_fd(int sock, int fd, const struct shared *s)
{
	struct iovec v = { (void *)s, sizeof *s };
	union {
		struct cmsghdr h;
		char room[CMSG_SPACE(sizeof(int))];
	} c = { 0 };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &c, .msg_controllen = sizeof c };
	struct cmsghdr *h = CMSG_FIRSTHDR(&m);
	h->cmsg_level = SOL_SOCKET;
	h->cmsg_type = SCM_RIGHTS;
	h->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(h), &fd, sizeof fd);
	if (sendmsg(sock, &m, 0) != sizeof *s)
		die("sendmsg: %m");
}

static int receive_fd(int sock, struct shared *s)
{
	struct iovec v = { s, sizeof *s };
	union {
		struct cmsghdr h;
		char room[CMSG_SPACE(sizeof(int))];
	} c;
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &c, .msg_controllen = sizeof c };
	if (recvmsg(sock, &m, MSG_CMSG_CLOEXEC) != sizeof *s || !CMSG_FIRSTHDR(&m))
		die("recvmsg: %m");
	int fd;
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
	return fd;
}

static void export(int sock)
{
	struct ibv_context *ctx = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	unsigned char *buf = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr = pd ? ibv_reg_mr(pd, buf, SIZE, ALL) : NULL;
	struct ibv_alloc_dm_attr a = { .length = DM_SIZE };
	struct ibv_dm *dm = ibv_alloc_dm(ctx, &a);
	if (!mr || !dm)
		die("the exporter's objects: %m");
	struct shared s = { pd->handle, mr->handle, dm->handle, mr->lkey, mr->rkey, (uintptr_t)buf };
	send_fd(sock, ctx->cmd_fd, &s);
	struct order o;
	static unsigned char copy[DM_SIZE];
	while (recv(sock, &o, sizeof o, 0) == sizeof o) {
		long result = 0;
		switch (o.what) {
		case 'f': fill(buf + o.offset, o.len, o.seed); break;
		case 'v': result = verify(buf + o.offset, o.len, o.seed); break;
		case 'w': result = (long)*(volatile uint64_t *)(buf + o.offset); break;
		case 'd': result = ibv_dereg_mr(mr); break;
		case 'p': result = ibv_dealloc_pd(pd); break;
		case 'm': result = ibv_memcpy_from_dm(copy, dm, o.offset, o.len);
			result = result ? result : verify(copy, o.len, o.seed);
			break;
		case 'u': result = munmap(buf + o.offset, o.len); break;
		case 'i': {
			/* Objects of the importer are visible to the exporter too. */
			struct ibv_mr *theirs = ibv_import_mr(pd, o.offset);
			result = theirs ? theirs->length == o.len ? 0 : -1 : errno;
			if (theirs)
				ibv_unimport_mr(theirs);
			break;
		}
		}
		if (send(sock, &result, sizeof result, 0) != sizeof result)
			break;
	}
	_exit(0);
}

static void begin_export(void)
{
	int s[2];
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, s))
		die("socketpair: %m");
	fflush(stdout);
	exporter_pid = fork();
	if (exporter_pid < 0)
		die("fork: %m");
	if (!exporter_pid) {
		close(s[0]);
		export(s[1]);
	}
	close(s[1]);
	exporter = s[0];
}

static long exporter_does(char what, uint32_t offset, uint32_t len, uint32_t seed)
{
	struct order o = { what, offset, len, seed };
	long result;
	if (send(exporter, &o, sizeof o, 0) != sizeof o || recv(exporter, &result, sizeof result, 0) != sizeof result)
		die("the exporter does not answer");
	return result;
}

static void end_export(int violently)
{
	if (violently)
		kill(exporter_pid, SIGKILL);
	close(exporter);
	waitpid(exporter_pid, NULL, 0);
}

/* ---- the importer ---- */

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_mr *mr, *own;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static unsigned char mine[SIZE / 4];
static struct shared s;
static struct end *c;
static struct address ca;

/* Whether this process may access the exporter's memory by process_vm_readv(2). */
static int attaches(void)
{
	const char *setting = getenv("FERROVERBS_SOFT_CMA");
	uint64_t word;
	struct iovec here = { &word, 8 }, there = { (void *)(uintptr_t)s.addr, 8 };
	return (!setting || strcmp(setting, "off")) && process_vm_readv(exporter_pid, &here, 1, &there, 1, 0) == 8;
}

static void connect_qp(void)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .cap = { 64, 64, 4, 4, 64 }, .qp_type = IBV_QPT_RC };
	qp = ibv_create_qp(pd, &init);
	if (!check(qp != NULL, "a QP in the imported domain (%m)"))
		die("no QP");
	ca = end_open(c, defaults());
	union ibv_gid gid;
	if (ibv_query_gid(ctx, 1, hosts_differ(), &gid))
		die("ibv_query_gid");
	struct address me = { .qpn = qp->qp_num, .gid = gid };
	end_connect(c, me);
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ALL & ~IBV_ACCESS_LOCAL_WRITE };
	int err = ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = ca.qpn, .rq_psn = ca.psn,
		.max_dest_rd_atomic = 16, .min_rnr_timer = 12,
		.ah_attr = { .port_num = 1, .is_global = 1, .grh = { .dgid = ca.gid, .hop_limit = 1, .sgid_index = (uint8_t)hosts_differ() } } };
	if (!err)
		err = ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	/* Between hosts a response takes as long as the peer process waits for a processor. */
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = hosts_differ() ? 18 : 14, .retry_cnt = hosts_differ() ? 7 : 0, .rnr_retry = 7, .max_rd_atomic = 16 };
	if (!err)
		err = ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
	check_eq(err, 0, "it is connected");
}

static void disconnect(void)
{
	check_eq(ibv_destroy_qp(qp), 0, "ibv_destroy_qp");
	end_close(c);
}

/* Replaces the QP after an error. */
static void reconnect(void)
{
	disconnect();
	connect_qp();
}

static struct ibv_sge at(struct ibv_mr *region, uint64_t base, uint64_t offset, uint32_t len)
{
	return (struct ibv_sge){ base + offset, len, region->lkey };
}

static struct ibv_wc post(enum ibv_wr_opcode op, struct ibv_sge *sg, int n, uint64_t raddr, uint32_t rkey)
{
	struct ibv_send_wr w = { .sg_list = sg, .num_sge = n, .opcode = op, .send_flags = IBV_SEND_SIGNALED }, *bad;
	if (op == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		w.wr.atomic.remote_addr = raddr;
		w.wr.atomic.rkey = rkey;
		w.wr.atomic.compare_add = 5;
	} else {
		w.wr.rdma.remote_addr = raddr;
		w.wr.rdma.rkey = rkey;
	}
	struct ibv_wc wc = { .status = -1 };
	if (check_eq(ibv_post_send(qp, &w, &bad), 0, "ibv_post_send"))
		wait_completion(cq, &wc);
	return wc;
}

static void post_receive(struct ibv_sge *sg, int n)
{
	struct ibv_recv_wr w = { .wr_id = 77, .sg_list = sg, .num_sge = n }, *bad;
	check_eq(ibv_post_recv(qp, &w, &bad), 0, "ibv_post_recv");
}

/* ---- descriptors of other kinds than contexts ---- */

static void strange(void)
{
	errno = 0;
	check(!ibv_import_device(-1) && errno == EINVAL, "ibv_import_device of nothing: EINVAL (%m)");
	int fd = open("/dev/null", O_RDWR);
	check(!ibv_import_device(fd) && errno == ENODEV, "of another character device: ENODEV (%m)");
	close(fd);
	fd = memfd_create("plain", MFD_ALLOW_SEALING);
	if (ftruncate(fd, 40))
		die("ftruncate");
	errno = 0;
	check(!ibv_import_device(fd) && errno == EINVAL, "of a file: EINVAL (%m)");
	check_eq(fcntl(fd, F_GETFD) >= 0, 1, "which is the caller's still");
	close(fd);
}

static void handles(void)
{
	struct ibv_context *other = open_device();
	errno = 0;
	check(!ibv_import_pd(other, s.pd) && errno == ENOENT, "ibv_import_pd in a context of another family: ENOENT (%m)");
	check(!ibv_import_dm(other, s.dm) && errno == ENOENT, "ibv_import_dm likewise (%m)");
	struct ibv_pd *p = ibv_alloc_pd(other);
	check(p && !ibv_import_mr(p, s.mr) && errno == ENOENT, "ibv_import_mr likewise (%m)");
	check_eq(ibv_dealloc_pd(p), 0, "ibv_dealloc_pd");
	ibv_close_device(other);
	static const uint32_t wrong[] = { 0, 1, 0xffffffff, 0x80000000 };
	for (int i = 0; i < 4; i++) {
		errno = 0;
		check(!ibv_import_pd(ctx, wrong[i]) && errno == ENOENT, "ibv_import_pd of no handle: ENOENT (%m)");
		errno = 0;
		check(!ibv_import_mr(pd, wrong[i]) && errno == ENOENT, "ibv_import_mr of no handle: ENOENT (%m)");
		errno = 0;
		check(!ibv_import_dm(ctx, wrong[i]) && errno == ENOENT, "ibv_import_dm of no handle: ENOENT (%m)");
	}
	errno = 0;
	check(!ibv_import_mr(pd, s.dm) && errno == ENOENT, "ibv_import_mr of device memory: ENOENT (%m)");
	errno = 0;
	check(!ibv_import_dm(ctx, s.mr) && errno == ENOENT, "ibv_import_dm of a region: ENOENT (%m)");
	check_eq(ibv_dealloc_pd(pd), EINVAL, "ibv_dealloc_pd of an imported domain");
}

/* ---- the exporter's memory in the importer's lists ---- */

static void lists(void)
{
	static const uint32_t lens[] = { 8, 300, 5000, 20000, 200000 };
	for (int i = 0; i < 5; i++) {
		uint32_t len = lens[i], seed = 100 + (uint32_t)i;
		exporter_does('f', 64, len, seed);
		struct ibv_sge sg = at(mr, s.addr, 64, len);
		end_recv(c, one_piece(0, 1, 0, len));
		check_eq(post(IBV_WR_SEND, &sg, 1, 0, 0).status, IBV_WC_SUCCESS, "SEND of %u bytes of the exporter's", len);
		check_eq(end_wait(c, RECVS).byte_len, len, "arrives");
		check(end_verify(c, 0, len, seed) < 0, "as they were");
		exporter_does('f', 64, len, seed + 50);
		check_eq(post(IBV_WR_RDMA_WRITE, &sg, 1, ca.addr + 4096, ca.rkey).status, IBV_WC_SUCCESS, "WRITE of %u", len);
		check(end_verify(c, 4096, len, seed + 50) < 0, "they are there");
		end_fill(c, 8192, len, seed + 70);
		check_eq(post(IBV_WR_RDMA_READ, &sg, 1, ca.addr + 8192, ca.rkey).status, IBV_WC_SUCCESS, "READ of %u into the exporter's memory", len);
		check(exporter_does('v', 64, len, seed + 70) < 0, "it has them");
		post_receive(&sg, 1);
		end_fill(c, 0, len, seed + 90);
		check_eq(end_send(c, one_piece(IBV_WR_SEND, 1, 0, len)), 0, "the other way");
		struct ibv_wc wc;
		wait_completion(cq, &wc);
		check_eq(wc.status, IBV_WC_SUCCESS, "a receive in the exporter's memory");
		check_eq(wc.byte_len, len, "its length");
		check_eq(end_wait(c, SENDS).status, IBV_WC_SUCCESS, "its sender");
		check(exporter_does('v', 64, len, seed + 90) < 0, "it has them");
	}
	/* Own and imported memory in one list: the pattern continues from piece to piece. */
	fill(mine, 3000, 1);
	exporter_does('f', 0, 4000, 2);
	struct ibv_sge mixed[3] = { at(own, (uintptr_t)mine, 0, 3000), at(mr, s.addr, 0, 4000), at(own, (uintptr_t)mine, 0, 3000) };
	check_eq(post(IBV_WR_RDMA_WRITE, mixed, 3, ca.addr, ca.rkey).status, IBV_WC_SUCCESS, "a list of both processes' memory");
	check(end_verify(c, 0, 3000, 1) < 0 && end_verify(c, 3000, 4000, 2) < 0 && end_verify(c, 7000, 3000, 1) < 0, "in its order");
	struct ibv_wc wc;
	post_receive(mixed, 2);
	end_fill(c, 0, 3000, 3);
	end_fill(c, 3000, 4000, 4);
	end_send(c, one_piece(IBV_WR_SEND, 1, 0, 7000));
	wait_completion(cq, &wc);
	check_eq(wc.status, IBV_WC_SUCCESS, "and a receive into both");
	check_eq(end_wait(c, SENDS).status, IBV_WC_SUCCESS, "its sender");
	check(verify(mine, 3000, 3) < 0 && exporter_does('v', 0, 4000, 4) < 0, "in its order");
	uint64_t number = 40;
	end_write(c, 0, &number, 8);
	struct ibv_sge word = at(mr, s.addr, 4096, 8);
	check_eq(post(IBV_WR_ATOMIC_FETCH_AND_ADD, &word, 1, ca.addr, ca.rkey).status, IBV_WC_SUCCESS, "an atomic's answer in the exporter's memory");
	check_eq(exporter_does('w', 4096, 8, 0), 40, "is there");
	end_read(c, 0, &number, 8);
	check_eq((long long)number, 45, "and the sum at the other end");
}

/* UD messages: the adapter copies these lists by other code than RC messages. */
static void datagrams(void)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .cap = { 8, 8, 4, 4, 64 }, .qp_type = IBV_QPT_UD };
	struct ibv_qp *ud = ibv_create_qp(pd, &init);
	struct ibv_ah_attr to = { .port_num = 1, .is_global = 1, .grh = { .hop_limit = 1, .sgid_index = (uint8_t)hosts_differ() } };
	if (!ud || ibv_query_gid(ctx, 1, hosts_differ(), &to.grh.dgid))
		die("a UD QP: %m");
	struct ibv_ah *ah = ibv_create_ah(pd, &to);
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 7 };
	int err = ibv_modify_qp(ud, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
	a.qp_state = IBV_QPS_RTR;
	err = err ? err : ibv_modify_qp(ud, &a, IBV_QP_STATE);
	a.qp_state = IBV_QPS_RTS;
	err = err ? err : ibv_modify_qp(ud, &a, IBV_QP_STATE | IBV_QP_SQ_PSN);
	if (!ah || err)
		die("a UD QP: %s", strerror(err));
	static const uint32_t lens[] = { 16, 32, 2000 };
	for (int i = 0; i < 3; i++) {
		uint32_t len = lens[i];
		exporter_does('f', 0, len, 500 + (uint32_t)i);
		exporter_does('f', 8192, len + 40, 1);
		struct ibv_sge from = at(mr, s.addr, 0, len), into = at(mr, s.addr, 8192, len + 40);
		struct ibv_recv_wr r = { .wr_id = 5, .sg_list = &into, .num_sge = 1 }, *bad_r;
		struct ibv_send_wr w = { .wr_id = 6, .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
		w.wr.ud.ah = ah;
		w.wr.ud.remote_qpn = ud->qp_num;
		w.wr.ud.remote_qkey = 7;
		check_eq(ibv_post_recv(ud, &r, &bad_r) | ibv_post_send(ud, &w, &bad), 0, "a datagram of %u bytes", len);
		struct ibv_wc wc;
		wait_completion(cq, &wc);
		check(wc.status == IBV_WC_SUCCESS && wc.wr_id == 5 && wc.byte_len == len + 40, "from the exporter's memory to the exporter's memory");
		check(exporter_does('v', 8192 + 40, len, 500 + (uint32_t)i) < 0, "its bytes");
	}
	check_eq(ibv_destroy_qp(ud) | ibv_destroy_ah(ah), 0, "ibv_destroy_qp, ibv_destroy_ah");
}

static void refused(void)
{
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	struct ibv_mw_bind bind = { .bind_info = { .mr = mr, .addr = s.addr, .length = 64, .mw_access_flags = IBV_ACCESS_REMOTE_READ } };
	check(mw && ibv_bind_mw(qp, mw, &bind) != 0, "a window on an imported region");
	check_eq(ibv_dealloc_mw(mw), 0, "ibv_dealloc_mw");
	errno = 0;
	check(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ALL) == IBV_REREG_MR_ERR_INPUT, "ibv_rereg_mr of an imported region (%m)");
	check_eq(exporter_does('i', own->handle, sizeof mine, 0), 0, "the exporter imports a region of the importer's");
	check_eq(exporter_does('i', own->handle + 1, sizeof mine, 0), ENOENT, "and none that is not there");
}

/* ---- the exporter's memory as a target, through the importer's QP ---- */

static struct ibv_wc remote(enum ibv_wr_opcode op, uint64_t offset, uint32_t len)
{
	struct request r = one_piece(op, 1, 0, len);
	r.raddr = s.addr + offset;
	r.rkey = mr->rkey;
	r.compare_add = 7;
	struct ibv_wc wc = { .status = -1 };
	if (check_eq(end_send(c, r), 0, "the peer's ibv_post_send"))
		wc = end_wait(c, SENDS);
	return wc;
}

static void target(void)
{
	static const uint32_t lens[] = { 8, 300, 20000, 200000 };
	for (int i = 0; i < 4; i++) {
		uint32_t len = lens[i], seed = 300 + (uint32_t)i;
		end_fill(c, 0, len, seed);
		check_eq(remote(IBV_WR_RDMA_WRITE, 128, len).status, IBV_WC_SUCCESS, "the peer's WRITE of %u bytes", len);
		check(exporter_does('v', 128, len, seed) < 0, "they are the exporter's");
		exporter_does('f', 128, len, seed + 50);
		check_eq(remote(IBV_WR_RDMA_READ, 128, len).status, IBV_WC_SUCCESS, "its READ of %u", len);
		check(end_verify(c, 0, len, seed + 50) < 0, "they are the exporter's");
	}
	uint64_t number = 10;
	end_write(c, 0, &number, 8);
	remote(IBV_WR_RDMA_WRITE, 0, 8);
	check_eq(remote(IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 8).status, IBV_WC_SUCCESS, "its atomic");
	end_read(c, 0, &number, 8);
	check_eq((long long)number, 10, "what was there");
	check_eq(exporter_does('w', 0, 8, 0), 17, "what is there");
}

static void range(void)
{
	struct ibv_sge sg = at(mr, s.addr, SIZE - 8, 9);
	check_eq(post(IBV_WR_RDMA_WRITE, &sg, 1, ca.addr, ca.rkey).status, IBV_WC_LOC_PROT_ERR, "a byte beyond the imported region");
	reconnect();
	check_eq(remote(IBV_WR_RDMA_WRITE, SIZE - 8, 9).status, IBV_WC_REM_ACCESS_ERR, "as a target");
	disconnect();
	/* Another PD: the region stays in its own PD. */
	struct ibv_pd *imported = pd;
	pd = ibv_alloc_pd(ctx);
	connect_qp();
	sg = at(mr, s.addr, 0, 8);
	check_eq(post(IBV_WR_RDMA_WRITE, &sg, 1, ca.addr, ca.rkey).status, IBV_WC_LOC_PROT_ERR, "in another domain");
	disconnect();
	check_eq(ibv_dealloc_pd(pd), 0, "ibv_dealloc_pd of an own domain of the imported context");
	pd = imported;
	connect_qp();
}

static void device_memory(void)
{
	int attached = attaches();
	errno = 0;
	struct ibv_dm *dm = ibv_import_dm(ctx, s.dm);
	if (!attached) {
		check(!dm && errno == EOPNOTSUPP, "ibv_import_dm without attach: EOPNOTSUPP (%m)");
		return;
	}
	if (!check(dm != NULL, "ibv_import_dm (%m)"))
		return;
	fill(mine, DM_SIZE, 9);
	check_eq(ibv_memcpy_to_dm(dm, 0, mine, DM_SIZE), 0, "ibv_memcpy_to_dm");
	check(exporter_does('m', 0, DM_SIZE, 9) < 0, "the exporter finds it in its device memory");
	check(ibv_memcpy_to_dm(dm, 1, mine, DM_SIZE) != 0, "and nothing is beyond it");
	struct ibv_mr *region = ibv_reg_dm_mr(pd, dm, 0, DM_SIZE, ALL | IBV_ACCESS_ZERO_BASED);
	if (check(region != NULL, "ibv_reg_dm_mr of imported memory (%m)")) {
		end_fill(c, 0, 2000, 10);
		struct request r = one_piece(IBV_WR_RDMA_WRITE, 1, 0, 2000);
		r.raddr = 100;
		r.rkey = region->rkey;
		end_send(c, r);
		check_eq(end_wait(c, SENDS).status, IBV_WC_SUCCESS, "a peer writes it");
		check(exporter_does('m', 100, 2000, 10) < 0, "and the exporter has it");
		check_eq(ibv_free_dm(dm), EINVAL, "ibv_free_dm of imported memory");
		check_eq(ibv_dereg_mr(region), 0, "ibv_dereg_mr");
	}
	ibv_unimport_dm(dm);
}

/* ---- a session ---- */

static void open_import(void)
{
	begin_export();
	int fd = receive_fd(exporter, &s);
	ctx = ibv_import_device(fd);
	if (!check(ctx != NULL, "ibv_import_device (%m)"))
		die("no device");
	check_eq(ctx->cmd_fd, fd, "the descriptor is the context's");
	pd = ibv_import_pd(ctx, s.pd);
	if (!check(pd != NULL, "ibv_import_pd (%m)"))
		die("no domain");
	check_eq(pd->handle, s.pd, "its handle");
	cq = ibv_create_cq(ctx, 256, NULL, NULL, 0);
	own = ibv_reg_mr(pd, mine, sizeof mine, ALL);
	check(cq && own, "own objects in what was imported (%m)");
	connect_qp();
}

/* Imports the exporter's region; returns 1 on success. */
static int import_region(void)
{
	int attached = attaches();
	errno = 0;
	mr = ibv_import_mr(pd, s.mr);
	if (!attached) {
		check(!mr && errno == EOPNOTSUPP, "ibv_import_mr without attach: EOPNOTSUPP (%m)");
		return 0;
	}
	if (!check(mr != NULL, "ibv_import_mr (%m)"))
		return 0;
	check(mr->addr == NULL && mr->length == SIZE && mr->pd == pd && mr->context == ctx && mr->handle == s.mr, "its fields");
	return 1;
}

static void close_import(void)
{
	disconnect();
	check_eq(ibv_dereg_mr(own), 0, "ibv_dereg_mr");
	check_eq(ibv_destroy_cq(cq), 0, "ibv_destroy_cq");
	ibv_unimport_pd(pd);
	check_eq(ibv_close_device(ctx), 0, "ibv_close_device");
}

static void own_objects_work(void)
{
	fill(mine, 5000, 31);
	struct ibv_sge sg = at(own, (uintptr_t)mine, 0, 5000);
	check_eq(post(IBV_WR_RDMA_WRITE, &sg, 1, ca.addr, ca.rkey).status, IBV_WC_SUCCESS, "an own region in the imported domain");
	check(end_verify(c, 0, 5000, 31) < 0, "its bytes");
}

static void use(void)
{
	open_import();
	handles();
	own_objects_work();
	device_memory();
	if (import_region()) {
		lists();
		datagrams();
		refused();
		target();
		range();
		check_eq(ibv_dereg_mr(mr), EINVAL, "ibv_dereg_mr of an imported region");
		ibv_unimport_mr(mr);
		check_eq(remote(IBV_WR_RDMA_WRITE, 0, 8).status, IBV_WC_REM_ACCESS_ERR, "the import's key after ibv_unimport_mr");
		reconnect();
		check(import_region(), "the region is there still");
		check_eq(remote(IBV_WR_RDMA_WRITE, 0, 8).status, IBV_WC_SUCCESS, "and can be used");
		ibv_unimport_mr(mr);
	}
	close_import();
	end_export(0);
}

/* The exporter destroys imported objects. */
static void destroyed(void)
{
	open_import();
	if (import_region()) {
		check_eq(exporter_does('d', 0, 0, 0), 0, "the exporter's ibv_dereg_mr while it is imported");
		struct ibv_sge sg = at(mr, s.addr, 0, 8);
		check_eq(post(IBV_WR_RDMA_WRITE, &sg, 1, ca.addr, ca.rkey).status, IBV_WC_LOC_PROT_ERR, "the import's lkey afterwards");
		reconnect();
		check_eq(remote(IBV_WR_RDMA_READ, 0, 8).status, IBV_WC_REM_ACCESS_ERR, "its rkey");
		reconnect();
		ibv_unimport_mr(mr);
		errno = 0;
		check(!ibv_import_mr(pd, s.mr) && errno == ENOENT, "ibv_import_mr: ENOENT (%m)");
		check_eq(exporter_does('p', 0, 0, 0), EBUSY, "the exporter's ibv_dealloc_pd while the importer has objects in it");
		own_objects_work();
		disconnect();
		check_eq(ibv_dereg_mr(own), 0, "ibv_dereg_mr");
		check_eq(exporter_does('p', 0, 0, 0), 0, "and afterwards, while it is imported still");
		errno = 0;
		check(!ibv_import_pd(ctx, s.pd) && errno == ENOENT, "ibv_import_pd: ENOENT (%m)");
		check_eq(ibv_destroy_cq(cq), 0, "ibv_destroy_cq");
		ibv_unimport_pd(pd);
		check_eq(ibv_close_device(ctx), 0, "ibv_close_device");
	} else {
		close_import();
	}
	end_export(0);
}

/* The exporter unmaps pages without deregistering them. */
static void unmapped(void)
{
	open_import();
	if (import_region()) {
		check_eq(exporter_does('u', 65536, 65536, 0), 0, "the exporter unmaps pages");
		struct ibv_sge sg = at(mr, s.addr, 65536, 8);
		check_eq(post(IBV_WR_RDMA_WRITE, &sg, 1, ca.addr, ca.rkey).status, IBV_WC_LOC_PROT_ERR, "as a source");
		reconnect();
		check_eq(remote(IBV_WR_RDMA_WRITE, 65536, 8).status, IBV_WC_REM_OP_ERR, "as a target");
		ibv_unimport_mr(mr);
	}
	close_import();
	end_export(0);
}

static void killed(void)
{
	open_import();
	int imported = import_region();
	struct ibv_dm *dm = attaches() ? ibv_import_dm(ctx, s.dm) : NULL;
	end_export(1);
	if (imported) {
		/* The kernel reports the death at once, the adapter a moment later; both statuses
		 * are errors. */
		struct ibv_sge sg = at(mr, s.addr, 0, 8);
		check_eq(post(IBV_WR_RDMA_WRITE, &sg, 1, ca.addr, ca.rkey).status, IBV_WC_LOC_PROT_ERR, "the lkey of a dead process's region");
		reconnect();
		enum ibv_wc_status status = remote(IBV_WR_RDMA_READ, 0, 8).status;
		check(status == IBV_WC_REM_ACCESS_ERR || status == IBV_WC_REM_OP_ERR, "its rkey");
		reconnect();
		ibv_unimport_mr(mr);
	}
	if (dm) {
		fill(mine, 100, 3);
		check_eq(ibv_memcpy_to_dm(dm, 0, mine, 100), 0, "device memory stays as long as somebody has it");
		ibv_unimport_dm(dm);
	}
	errno = 0;
	check(!ibv_import_pd(ctx, s.pd) && errno == ENOENT, "ibv_import_pd from a dead process: ENOENT (%m)");
	own_objects_work();
	close_import();
}

/* ---- within one process ---- */

static void same_process(void)
{
	struct ibv_context *first = open_device();
	struct ibv_pd *first_pd = ibv_alloc_pd(first);
	struct ibv_mr *first_mr = ibv_reg_mr(first_pd, mine, sizeof mine, ALL);
	check(first->cmd_fd >= 0, "a context has a descriptor");
	ctx = ibv_import_device(fcntl(first->cmd_fd, F_DUPFD_CLOEXEC, 3));
	if (!check(ctx && first_mr, "ibv_import_device in the same process (%m)"))
		die("no device");
	pd = ibv_import_pd(ctx, first_pd->handle);
	mr = pd ? ibv_import_mr(pd, first_mr->handle) : NULL;
	if (!check(mr != NULL, "domain and region (%m)"))
		die("no region");
	check(mr->lkey == first_mr->lkey && mr->rkey == first_mr->rkey && mr->length == sizeof mine && !mr->addr, "the keys are those of the original");
	cq = ibv_create_cq(ctx, 256, NULL, NULL, 0);
	connect_qp();
	fill(mine, 3000, 5);
	struct ibv_sge sg = at(mr, (uintptr_t)mine, 0, 3000);
	check_eq(post(IBV_WR_RDMA_WRITE, &sg, 1, ca.addr, ca.rkey).status, IBV_WC_SUCCESS, "by lkey");
	check(end_verify(c, 0, 3000, 5) < 0, "its bytes");
	s.addr = (uintptr_t)mine;
	end_fill(c, 0, 3000, 6);
	check_eq(remote(IBV_WR_RDMA_WRITE, 0, 3000).status, IBV_WC_SUCCESS, "by rkey");
	check(verify(mine, 3000, 6) < 0, "its bytes");
	ibv_unimport_mr(mr);
	mr = first_mr;
	check_eq(remote(IBV_WR_RDMA_READ, 0, 8).status, IBV_WC_SUCCESS, "the region outlives its import");
	/* A region that was created in the imported context is visible in the first context too. */
	own = ibv_reg_mr(pd, mine, sizeof mine, ALL);
	mr = ibv_import_mr(first_pd, own->handle);
	check(mr && mr->rkey == own->rkey, "and the other way round (%m)");
	ibv_unimport_mr(mr);
	check_eq(ibv_dereg_mr(own), 0, "ibv_dereg_mr");
	check_eq(ibv_dereg_mr(first_mr), 0, "ibv_dereg_mr of the original");
	check_eq(ibv_dealloc_pd(first_pd), EBUSY, "ibv_dealloc_pd while a QP of the import uses it");
	disconnect();
	struct ibv_alloc_dm_attr a = { .length = DM_SIZE };
	struct ibv_dm *dm = ibv_alloc_dm(first, &a), *again = ibv_import_dm(ctx, dm->handle);
	if (check(again != NULL, "ibv_import_dm in the same process (%m)")) {
		fill(mine, DM_SIZE, 8);
		check_eq(ibv_memcpy_to_dm(dm, 0, mine, DM_SIZE), 0, "ibv_memcpy_to_dm");
		memset(mine, 0, DM_SIZE);
		check_eq(ibv_memcpy_from_dm(mine, again, 0, DM_SIZE), 0, "ibv_memcpy_from_dm of the import");
		check(verify(mine, DM_SIZE, 8) < 0, "it is the same memory");
		ibv_unimport_dm(again);
	}
	check_eq(ibv_free_dm(dm), 0, "ibv_free_dm");
	ibv_unimport_pd(pd);
	check_eq(ibv_destroy_cq(cq), 0, "ibv_destroy_cq");
	check_eq(ibv_close_device(ctx), 0, "ibv_close_device");
	check_eq(ibv_dealloc_pd(first_pd), 0, "ibv_dealloc_pd");
	check_eq(ibv_close_device(first), 0, "ibv_close_device");
}

int main(int argc, char **argv)
{
	c = end_new(two_processes(argc, argv));
	strange();
	same_process();
	use();
	destroyed();
	unmapped();
	killed();
	end_free(c);
	return finish();
}
