/*
 * Functions without a device: names of values, and rates. Runs on rdma-core's library and on
 * Ferroverbs; the output must be equal. ibv_event_type_str(3), ibv_rate_to_mbps(3),
 * ibv_rate_to_mult(3).
 */
#include <infiniband/verbs.h>
#include <limits.h>
#include <stdio.h>

/* Every value that a field of these types can plausibly hold, and the edges of the type. */
static int next(int i)
{
	return i == INT_MIN ? -300 : i == 300 ? INT_MAX : i + 1;
}

#define EACH(i) (int i = INT_MIN, go = 1; go; go = i != INT_MAX, i = go ? next(i) : i)

/* Prints the arguments at which a function of an integer changes its value: a large range in few
 * lines. */
static void changes(const char *name, int (*of)(int), int from, int to)
{
	int before = of(from);

	printf("%s %d: %d\n", name, from, before);
	for (int i = from; i < to; i++) {
		int now = of(i + 1);

		if (now != before)
			printf("%s %d: %d\n", name, i + 1, now);
		before = now;
	}
}

static int rate_of_mbps(int mbps)
{
	return (int)mbps_to_ibv_rate(mbps);
}

static int rate_of_mult(int mult)
{
	return (int)mult_to_ibv_rate(mult);
}

static int mbps_of_rate(int rate)
{
	return ibv_rate_to_mbps((enum ibv_rate)rate);
}

static int mult_of_rate(int rate)
{
	return ibv_rate_to_mult((enum ibv_rate)rate);
}

int main(void)
{
	for EACH(i)
		printf("node type %d: %s\n", i, ibv_node_type_str((enum ibv_node_type)i));
	for EACH(i)
		printf("port state %d: %s\n", i, ibv_port_state_str((enum ibv_port_state)i));
	for EACH(i)
		/* Event 20 has no name in Debian 12. */
		if (i != 20)
			printf("event %d: %s\n", i, ibv_event_type_str((enum ibv_event_type)i));
	for EACH(i)
		printf("status %d: %s\n", i, ibv_wc_status_str((enum ibv_wc_status)i));
	changes("2.5 Gb/s of rate", mult_of_rate, -1000, 100000);
	changes("Mb/s of rate", mbps_of_rate, -1000, 100000);
	changes("rate of multiple", rate_of_mult, -1000, 100000);
	changes("rate of Mb/s", rate_of_mbps, -1000, 2000000);
	for (int shift = 0; shift < 31; shift++)
		printf("rate of %d Mb/s: %d, of multiple: %d\n", INT_MAX >> shift, rate_of_mbps(INT_MAX >> shift), rate_of_mult(INT_MAX >> shift));
	printf("least: %d %d %d %d\n", mult_of_rate(INT_MIN), mbps_of_rate(INT_MIN), rate_of_mult(INT_MIN), rate_of_mbps(INT_MIN));
	return 0;
}
