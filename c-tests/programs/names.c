/*
 * Everything that needs no device: names of values, and rates. Run on rdma-core's library and on ours; the output must be the
 * same. ibv_event_type_str(3), ibv_rate_to_mbps(3), ibv_rate_to_mult(3).
 */
#include <infiniband/verbs.h>
#include <stdio.h>

int main(void)
{
	for (int i = -2; i < 12; i++)
		printf("node type %d: %s\n", i, ibv_node_type_str((enum ibv_node_type)i));
	for (int i = -1; i < 8; i++)
		printf("port state %d: %s\n", i, ibv_port_state_str((enum ibv_port_state)i));
	for (int i = -1; i <= IBV_EVENT_WQ_FATAL; i++)
		printf("event %d: %s\n", i, ibv_event_type_str((enum ibv_event_type)i));
	for (int i = -1; i <= IBV_WC_TM_RNDV_INCOMPLETE; i++)
		printf("status %d: %s\n", i, ibv_wc_status_str((enum ibv_wc_status)i));
	for (int i = -1; i <= IBV_RATE_1200_GBPS; i++)
		printf("rate %d: %d x 2.5 Gb/s, %d Mb/s\n", i, ibv_rate_to_mult((enum ibv_rate)i), ibv_rate_to_mbps((enum ibv_rate)i));
	for (int i = -1; i < 600; i++)
		printf("multiple %d: rate %d\n", i, mult_to_ibv_rate(i));
	for (int i = 0; i < 1300000; i += 7)
		if (mbps_to_ibv_rate(i) != IBV_RATE_MAX)
			printf("%d Mb/s: rate %d\n", i, mbps_to_ibv_rate(i));
	static const int mbps[] = { 0, 2500, 5000, 10000, 14062, 20000, 25781, 28125, 30000, 40000, 53125, 56250, 60000, 80000, 100000, 103125, 106250, 112500,
				    120000, 168750, 200000, 212500, 400000, 425000, 600000, 637500, 800000, 1200000, 1275000 };
	for (unsigned i = 0; i < sizeof mbps / sizeof *mbps; i++)
		printf("%d Mb/s: rate %d\n", mbps[i], mbps_to_ibv_rate(mbps[i]));
	return 0;
}
