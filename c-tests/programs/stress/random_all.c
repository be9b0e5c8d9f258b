/*
 * Random operations of all kinds: processes with one thread for each side of each connection, over
 * shared memory or between hosts. A seed chooses transports, queues, memory, windows, steering
 * rules, operations, lengths and lists. An oracle predicts each completion and each byte of each
 * buffer. Objects are created and destroyed while others work, QPs are flushed and reconnected, and
 * processes are killed. At the end all objects can be destroyed.
 *
 * random_all SEED SECONDS: SEED 0 takes a seed from the clock, and the program prints the seed. A
 * seed repeats plans and operations, but not the timing. With TEST_HOST (rig.h) every second
 * process is on the peer host; the cable must carry packets of 4096 bytes.
 */
#include "random_all/random_all.h"
#include "../../tools/refuse_cma.h"

uint64_t random_seed;
unsigned random_round;
void *random_sysv[LINKS];
static struct board *board;

/* The other process is dead: what was posted ends, and nothing more succeeds. */
static void aftermath(struct side *s, struct batch *b, int posted)
{
	int reliable = s->plan.transport == T_RC || s->plan.transport == T_XRC;
	atomic_fetch_add(&s->board->survived, 1);
	if (s->role == REQUESTER) {
		if (posted)
			drain_sends(s, b);
		struct ibv_sge sge = { (uintptr_t)s->area, 8, s->mr->lkey };
		struct ibv_send_wr wr = { .wr_id = 11, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND };
		/* The peer may have died while this side was not connected. */
		struct ibv_qp_attr a;
		struct ibv_qp_init_attr made;
		int e = ibv_query_qp(s->qp, &a, IBV_QP_STATE, &made);
		if (e)
			bad(s, "ibv_query_qp: %s", strerror(e));
		int connected = a.qp_state == IBV_QPS_RTS || a.qp_state == IBV_QPS_ERR;
		enum ibv_wc_status status = reliable && connected ? single(s, wr, IBV_WC_SEND) : IBV_WC_WR_FLUSH_ERR;
		if (status != IBV_WC_RETRY_EXC_ERR && status != IBV_WC_WR_FLUSH_ERR)
			bad(s, "to a process that was killed: %s", ibv_wc_status_str(status));
	} else if (posted && !s->srq) {
		int told = reliable && !is_far(&s->plan);
		if (!told)
			to_state(s, IBV_QPS_ERR);
		drain_receives(s, b, !told);
	}
}

static int traffic_together(void *s) { return together(s); }

static int traffic_is_dead(void *arg)
{
	const struct side *s = arg;
	return s->board->dead[s->plan.proc[!s->role]] != 0;
}

/* Threads by the dozen instead of one on each side. */
static void run_crowd(struct side *s)
{
	char name[100];
	struct traffic *c = calloc(1, sizeof *c);
	snprintf(name, sizeof name, "seed %llu, round %u, link %d (process %d to %d)", (unsigned long long)random_seed, random_round, s->link, s->plan.proc[0], s->plan.proc[1]);
	if (!c)
		bad(s, "out of memory");
	*c = (struct traffic){ .board = &s->board->link[s->link].traffic, .plan = traffic_plan(s->plan.rng, -1, 10 + below(&s->plan.rng, 150)), .role = s->role, .name = name, .ctx = s->ctx,
			     .together = traffic_together, .is_dead = traffic_is_dead, .arg = s };
	if (traffic_run(c))
		atomic_fetch_add(&s->board->survived, 1);
	else if (s->role == REQUESTER)
		atomic_fetch_add(&s->board->requests, (uint64_t)c->plan.posters * c->plan.each);
	free(c);
}

static void *run_side(void *arg)
{
	struct side *s = arg;
	if (s->plan.transport == T_CROWD) {
		run_crowd(s);
		return NULL;
	}
	if (s->plan.transport == T_TM) {
		run_tm(s);
		return NULL;
	}
	if (s->plan.transport == T_FRAMES) {
		run_frames(s);
		return NULL;
	}
	static _Thread_local struct batch b;
	int posted = 0, reliable = s->plan.transport == T_RC || s->plan.transport == T_XRC, lost = 0;
	side_open(s, s->counter_mr);
	int dead = side_connect(s);
	for (int n = 0; n < s->plan.batches && !dead && !lost; n++) {
		plan_batch(s, &b);
		posted = 0;
		if (s->role == RESPONDER && !b.late) {
			post_receives(s, &b);
			posted = 1;
		}
		if ((dead = together(s)))
			break;
		if (s->role == REQUESTER) {
			if (b.action == 7)
				pause_sends(s, IBV_QPS_SQD);
			post_requests(s, &b);
			posted = 1;
			if (b.action == 7)
				pause_sends(s, IBV_QPS_RTS);
		}
		if (b.late && (dead = together(s)))
			break;
		if (s->role == RESPONDER && b.late) {
			post_receives(s, &b);
			posted = 1;
		}
		if (b.action == 3)
			resize(s, (int)b.n);
		if (s->role == REQUESTER)
			dead = drain_sends(s, &b);
		else if (!datagrams(s))
			dead = drain_receives(s, &b, 0);
		if (dead || (dead = together(s)))
			break;
		if (s->role == RESPONDER && datagrams(s)) {
			int r = drain_receives(s, &b, 0);
			dead = r == 1;
			/* The receives of the lost batch stay posted, so the receives of a later
			 * batch would not match. */
			s->board->link[s->link].info[RESPONDER].srqn = r == 2;
		}
		if (dead || (dead = together(s)))
			break;
		posted = 0;
		lost = datagrams(s) && s->board->link[s->link].info[RESPONDER].srqn;
		check_memory(s);
		if (s->role == REQUESTER) {
			atomic_fetch_add(&s->board->requests, b.n);
			atomic_fetch_add(&s->board->batches, 1);
			atomic_fetch_add(&s->board->lost, (unsigned)lost);
			if (reliable && b.delta && (dead = count(s, b.delta)))
				break;
		}
		if (!lost && ((dead = together(s)) || (dead = act(s, &b))))
			break;
	}
	if (!dead && s->plan.transport == T_RC)
		dead = take_back(s);
	if (!dead)
		dead = together(s);
	if (dead)
		aftermath(s, &b, posted);
	side_close(s);
	return NULL;
}

/* ---- processes ---- */

static void round_of(int proc)
{
	static struct side sides[2 * LINKS];
	static _Alignas(64) uint64_t counter[8];
	pthread_t thread[2 * LINKS];
	struct ibv_mr over = { .addr = counter };
	int n = 0;
	memset(counter, 0, sizeof counter);
	struct ibv_context *ctx = open_device();
	for (int l = 0; l < LINKS; l++)
		for (int role = REQUESTER; role <= RESPONDER; role++) {
			struct plan p = plan_of(l);
			if (p.proc[role] != proc)
				continue;
			sides[n] = (struct side){ .board = board, .link = l, .proc = proc, .role = (enum role)role, .plan = p, .ctx = ctx, .counter_mr = &over };
			if (pthread_create(&thread[n], NULL, run_side, &sides[n]))
				die("pthread_create");
			n++;
		}
	for (int i = 0; i < n; i++)
		pthread_join(thread[i], NULL);
	if (ibv_close_device(ctx))
		die("seed %llu, round %u: ibv_close_device of process %d", (unsigned long long)random_seed, random_round, proc);
	uint64_t least = board->least[proc], most = board->most[proc];
	if (counter[0] < least || counter[0] > most)
		die("seed %llu, round %u: the counter of process %d is %llu, should be %llu to %llu", (unsigned long long)random_seed, random_round, proc,
		    (unsigned long long)counter[0], (unsigned long long)least, (unsigned long long)most);
}

static void process(int proc)
{
	for (uint32_t done = board->done[proc]; !board->stop;) {
		uint32_t round = board->round;
		if (round == done) {
			usleep(200);
			continue;
		}
		random_round = round;
		round_of(proc);
		board->done[proc] = done = round;
	}
	fflush(stdout);
	_exit(0);
}

static pid_t pid[PROCS];

/*
 * Chooses the data path of this process: cross-memory attach works, is switched off, or is refused.
 */
static void choose_path(uint64_t rng)
{
	static const char *const eager[] = { "0", "1000", "8192", "100000" };
	for (int i = 0; i < 4; i++)
		rnd(&rng);
	uint32_t path = below(&rng, 6), size = below(&rng, 8);
	if (size < 4 && setenv("FERROVERBS_SOFT_EAGER", eager[size], 1))
		die("setenv");
	if (path == 0 && setenv("FERROVERBS_SOFT_CMA", "off", 1))
		die("setenv");
	if (path == 1 && refuse_cma())
		die("refusing cross-memory attach: %s", strerror(errno));
}

static void start(int proc)
{
	static uint64_t lives;
	lives++;
	fflush(stdout);
	pid[proc] = fork();
	if (pid[proc] < 0)
		die("fork");
	if (!pid[proc]) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		choose_path(random_seed * 31 + lives);
		if (proc % 2)
			go_to_host();
		process(proc);
	}
}

static void stop_all(void)
{
	for (int i = 0; i < PROCS; i++)
		if (pid[i] > 0)
			kill(pid[i], SIGKILL);
	for (int i = 0; i < PROCS; i++)
		if (pid[i] > 0)
			waitpid(pid[i], NULL, 0);
}

/* Until all have done the round; `victim` is killed `after` us. */
static void wait_round(uint32_t round, int victim, unsigned after)
{
	uint64_t begin = now_us();
	for (;;) {
		int all = 1;
		if (victim >= 0 && pid[victim] > 0 && now_us() - begin >= after) {
			int status;
			kill(pid[victim], SIGKILL);
			waitpid(pid[victim], &status, 0);
			pid[victim] = 0;
			board->dead[victim] = 1;
		}
		for (int i = 0; i < PROCS; i++) {
			int status;
			if (!pid[i])
				continue;
			all &= board->done[i] == round;
			if (waitpid(pid[i], &status, WNOHANG) == pid[i]) {
				pid[i] = 0;
				stop_all();
				die("seed %llu, round %u: process %d ended with status %x", (unsigned long long)random_seed, round, i, (unsigned)status);
			}
		}
		if (all && (victim < 0 || !pid[victim]))
			return;
		if (now_us() - begin > 6ull * WAIT_US) {
			stop_all();
			die("seed %llu, round %u: it does not end", (unsigned long long)random_seed, round);
		}
		usleep(200);
	}
}

int main(int argc, char **argv)
{
	if (argc != 3)
		die("usage: random_all SEED SECONDS");
	random_seed = strtoull(argv[1], NULL, 0);
	if (!random_seed)
		random_seed = (uint64_t)time(NULL) << 8 ^ (uint64_t)getpid();
	uint64_t end = now_us() + strtoull(argv[2], NULL, 0) * 1000000, rng = random_seed, told = now_us();
	printf("seed %llu\n", (unsigned long long)random_seed);
	fflush(stdout);
	board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (board == MAP_FAILED)
		die("mmap");
	/* The segments are marked for removal at once, so a killed process leaves none behind. */
	for (int i = 0; i < LINKS; i++) {
		int id = shmget(IPC_PRIVATE, TARGET, 0600);
		random_sysv[i] = id < 0 ? (void *)-1 : shmat(id, NULL, 0);
		if (id >= 0)
			shmctl(id, IPC_RMID, NULL);
		if (random_sysv[i] == (void *)-1)
			die("a System V segment: %s", strerror(errno));
	}
	for (int i = 0; i < PROCS; i++)
		start(i);
	unsigned kills = 0;
	uint32_t round = 0;
	for (int last = 0; !last;) {
		/* No process is killed in the last round: the last process to leave the fabric
		 * removes its files. */
		last = now_us() >= end;
		for (int i = 0; i < PROCS; i++)
			board->least[i] = board->most[i] = 0;
		memset((void *)board->link, 0, sizeof board->link);
		int victim = !below(&rng, 3) && !last ? (int)below(&rng, PROCS) : -1;
		unsigned after = below(&rng, 150000);
		board->round = ++round;
		wait_round(round, victim, after);
		if (victim >= 0) {
			kills++;
			board->dead[victim] = 0;
			board->done[victim] = round;
			start(victim);
		}
		if (now_us() - told > 60000000) {
			told = now_us();
			printf("%u rounds, %u kills, %llu requests\n", round, kills, (unsigned long long)board->requests);
			fflush(stdout);
		}
	}
	board->stop = 1;
	for (int i = 0; i < PROCS; i++) {
		int status = 0;
		if (waitpid(pid[i], &status, 0) != pid[i] || status)
			die("process %d ended with status %x", i, (unsigned)status);
	}
	check(1, "%u rounds, %u kills, %llu connections that lost a process, %llu batches, %llu requests, %llu MiB, %llu connections lost datagrams", round, kills,
	      (unsigned long long)board->survived, (unsigned long long)board->batches, (unsigned long long)board->requests, (unsigned long long)board->bytes >> 20,
	      (unsigned long long)board->lost);
	return finish();
}
