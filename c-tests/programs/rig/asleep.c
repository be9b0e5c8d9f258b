/* Waits until a thread of this process sleeps in the kernel and stays asleep. */
#include "asleep.h"

/* Reads the state of thread `tid`. Returns 1 if the thread sleeps. `switches`: its voluntary
 * context switches, 0 if the thread has ended. */
static inline int looks_asleep(pid_t tid, unsigned long *switches)
{
	char path[64], line[256];
	int asleep = 0;
	snprintf(path, sizeof path, "/proc/self/task/%d/status", (int)tid);
	FILE *f = fopen(path, "r");
	*switches = 0;
	while (f && fgets(line, sizeof line, f)) {
		if (!strncmp(line, "State:\t", 7))
			asleep = line[7] == 'S';
		sscanf(line, "voluntary_ctxt_switches: %lu", switches);
	}
	if (f)
		fclose(f);
	return asleep;
}

int stays_asleep(pid_t tid, const int *over)
{
	unsigned long before = 0, now;
	for (int same = 0, looks = 0; looks < 20000; looks++) {
		if (over && __atomic_load_n(over, __ATOMIC_SEQ_CST))
			return 0;
		same = looks_asleep(tid, &now) && now == before ? same + 1 : 0;
		if (same == 20)
			return 1;
		before = now;
		nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
	}
	return 0;
}

static inline void *call_make(void *p)
{
	struct call *c = p;
	__atomic_store_n(&c->tid, (pid_t)syscall(SYS_gettid), __ATOMIC_SEQ_CST);
	c->result = c->make(c->object);
	__atomic_store_n(&c->over, 1, __ATOMIC_SEQ_CST);
	return NULL;
}

int call_sleeps(struct call *c)
{
	c->over = c->tid = 0;
	if (pthread_create(&c->thread, NULL, call_make, c))
		return 0;
	while (!__atomic_load_n(&c->tid, __ATOMIC_SEQ_CST))
		sched_yield();
	return stays_asleep(c->tid, &c->over);
}

int call_result(struct call *c)
{
	pthread_join(c->thread, NULL);
	return c->result;
}
