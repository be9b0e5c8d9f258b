/* The checks and small things of rig.h. */
#define _GNU_SOURCE
#include "rig.h"

#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>

#ifndef ASYNC_MS
#define ASYNC_MS 20000
#endif

/* ---- checks ---- */

static int passed, failed;

int check(int ok, const char *format, ...)
{
	char text[400];
	va_list ap;
	va_start(ap, format);
	vsnprintf(text, sizeof text, format, ap);
	va_end(ap);
	printf("%s: %s\n", ok ? "ok" : "FAILED", text);
	fflush(stdout);
	if (ok)
		passed++;
	else
		failed++;
	return ok;
}

int check_eq(long long value, long long wanted, const char *format, ...)
{
	char text[300];
	va_list ap;
	va_start(ap, format);
	vsnprintf(text, sizeof text, format, ap);
	va_end(ap);
	if (value == wanted)
		return check(1, "%s", text);
	return check(0, "%s: is %lld, should be %lld", text, value, wanted);
}

void die(const char *format, ...)
{
	va_list ap;
	va_start(ap, format);
	printf("FAILED: cannot go on: ");
	vprintf(format, ap);
	printf("\n");
	va_end(ap);
	fflush(stdout);
	exit(2);
}

void *pages_apart(size_t len)
{
	/* Far below the addresses that the kernel chooses for NULL, and above programs that are
	 * linked at a fixed address. */
	static atomic_size_t next = (size_t)128 << 30;
	const size_t unit = 65536;
	len = (len + unit - 1) / unit * unit;
	for (int i = 0; i < 1000; i++) {
		void *at = (void *)atomic_fetch_add(&next, len + unit);
		void *got = mmap(at, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
		if (got == at)
			return got;
		if (got == MAP_FAILED && errno != EEXIST)
			die("mmap of %zu bytes at %p: %s", len, at, strerror(errno));
		if (got != MAP_FAILED)
			munmap(got, len);
	}
	die("no free addresses for %zu bytes", len);
}

int rc_to_rts(struct ibv_qp *qp, uint32_t to, uint16_t lid, unsigned access)
{
	struct ibv_qp_attr at = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = access };
	int err = ibv_modify_qp(qp, &at, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);

	at = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR,
				   .path_mtu = IBV_MTU_1024,
				   .dest_qp_num = to,
				   .max_dest_rd_atomic = 1,
				   .min_rnr_timer = 1,
				   .ah_attr = { .dlid = lid, .port_num = 1 } };
	err = err ? err
		  : ibv_modify_qp(qp, &at,
				  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
					  IBV_QP_MIN_RNR_TIMER);
	at = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 };
	return err ? err
		   : ibv_modify_qp(qp, &at,
				   IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

int ud_to_rts(struct ibv_qp *qp, uint32_t qkey)
{
	struct ibv_qp_attr at = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = qkey };
	int err = ibv_modify_qp(qp, &at, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);

	at.qp_state = IBV_QPS_RTR;
	err = err ? err : ibv_modify_qp(qp, &at, IBV_QP_STATE);
	at.qp_state = IBV_QPS_RTS;
	return err ? err : ibv_modify_qp(qp, &at, IBV_QP_STATE | IBV_QP_SQ_PSN);
}

int finish(void)
{
	printf("%d checks passed, %d failed\n", passed, failed);
	return failed || !passed ? 1 : 0;
}

int two_processes(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[argc - 1] : "";
	if (!strcmp(mode, "one"))
		return 0;
	if (!strcmp(mode, "two"))
		return 1;
	die("usage: %s one|two (processes)", argv[0]);
}

/* ---- small things ---- */

struct ibv_context *open_device(void)
{
	const char *name = getenv("TEST_DEVICE");
	int n = 0;
	struct ibv_device **list = ibv_get_device_list(&n);
	struct ibv_context *ctx = NULL;
	if (!list)
		die("ibv_get_device_list: %s", strerror(errno));
	for (int i = 0; i < n && !ctx; i++) {
		if (name && strcmp(name, ibv_get_device_name(list[i])))
			continue;
		ctx = ibv_open_device(list[i]);
		if (!ctx)
			die("ibv_open_device(%s): %s", ibv_get_device_name(list[i]), strerror(errno));
	}
	if (!ctx)
		die("no such device among %d", n);
	ibv_free_device_list(list);
	return ctx;
}

int keys_differ(void)
{
	const char *asked = getenv("FERROVERBS_SOFT_KEYS");
	return asked && !strcmp(asked, "distinct");
}

int has_lids(void)
{
	return getenv("TEST_GRH_ONLY") == NULL && !hosts_differ();
}

int hosts_differ(void)
{
	return getenv("TEST_HOST") != NULL;
}

uint8_t short_timeout(void)
{
	return hosts_differ() ? 15 : 4;
}

void go_to_host(void)
{
	const char *host = getenv("TEST_HOST"), *folder = getenv("TEST_HOST_FABRIC");
	if (!host)
		return;
	int network = open(host, O_RDONLY | O_CLOEXEC);
	if (network < 0 || setns(network, CLONE_NEWNET))
		die("%s: %s", host, strerror(errno));
	close(network);
	if (!folder || setenv("FERROVERBS_FABRIC_DIR", folder, 1))
		die("TEST_HOST_FABRIC is missing");
}

uint64_t now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

int try_completion(struct ibv_cq *cq, struct ibv_wc *wc, unsigned us)
{
	uint64_t end = now_us() + us;
	do {
		int n = ibv_poll_cq(cq, 1, wc);
		if (n < 0)
			die("ibv_poll_cq: %d", n);
		if (n == 1)
			return 1;
	} while (now_us() < end);
	return 0;
}

void wait_completion(struct ibv_cq *cq, struct ibv_wc *wc)
{
	if (!try_completion(cq, wc, WAIT_US))
		die("no completion came");
}

int readable(int fd, int ms)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	return poll(&p, 1, ms) == 1 && (p.revents & POLLIN);
}

int async_event(struct ibv_context *ctx, void **element)
{
	struct ibv_async_event ev;
	if (!readable(ctx->async_fd, ASYNC_MS) || ibv_get_async_event(ctx, &ev))
		return -1;
	if (element)
		*element = ev.element.qp;
	ibv_ack_async_event(&ev);
	return ev.event_type;
}

static unsigned char pattern(size_t i, uint32_t seed)
{
	uint32_t x = (uint32_t)i * 2654435761u ^ seed * 40503u;
	return (unsigned char)(x >> 13 ^ x >> 24 ^ i >> 8);
}

void fill(unsigned char *p, size_t len, uint32_t seed)
{
	for (size_t i = 0; i < len; i++)
		p[i] = pattern(i, seed);
}

long verify(const unsigned char *p, size_t len, uint32_t seed)
{
	for (size_t i = 0; i < len; i++)
		if (p[i] != pattern(i, seed))
			return (long)i;
	return -1;
}

uint32_t rnd(uint64_t *state)
{
	*state = *state * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(*state >> 33);
}
