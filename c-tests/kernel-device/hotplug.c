/* Devices come and go between calls of ibv_get_device_list. */
#include "kernel.h"

static struct ibv_device **show(const char *when)
{
	int n = -1;
	errno = 0;
	struct ibv_device **list = ibv_get_device_list(&n);
	printf("%s: %d", when, n);
	if (!list) {
		printf(", no list: %s\n", strerror(errno));
		return NULL;
	}
	for (int i = 0; list[i]; i++)
		printf("%s %s node type %d guid %016llx", i ? "," : ":", ibv_get_device_name(list[i]), list[i]->node_type,
		       (unsigned long long)be64toh(ibv_get_device_guid(list[i])));
	printf("\n");
	return list;
}

static void opens(struct ibv_device *device)
{
	errno = 0;
	struct ibv_context *ctx = ibv_open_device(device);
	struct ibv_device_attr attr;
	printf("%s: ", ibv_get_device_name(device));
	if (!ctx) {
		printf("does not open: %s\n", strerror(errno));
		return;
	}
	int ret = ibv_query_device(ctx, &attr);
	printf("opens, query %d, %d ports, ", ret, ret ? -1 : attr.phys_port_cnt);
	printf("close %d\n", ibv_close_device(ctx));
}

int main(void)
{
	struct ibv_device **first = show("two devices"), **list;
	struct ibv_device *rxe0 = find(first, "rxe0"), *rxe1 = find(first, "rxe1");
	if (!rxe0 || !rxe1)
		die("the devices of the machine");

	shell("rdma link delete rxe1");
	list = show("one gone");
	printf("the other is the same: %d\n", find(list, "rxe0") == rxe0);
	printf("its index is the same: %d\n", ibv_get_device_index(rxe0) == ibv_get_device_index(list[0]));
	/* The entry still exists with its name, but its device cannot be opened. */
	opens(rxe1);
	ibv_free_device_list(list);

	shell("rdma link add rxe1 type rxe netdev rdma1");
	list = show("back again");
	printf("it is a new one: %d\n", find(list, "rxe1") != rxe1);
	printf("the other is the same: %d\n", find(list, "rxe0") == rxe0);
	opens(find(list, "rxe1"));
	opens(rxe0);
	opens(rxe1);
	ibv_free_device_list(first);
	ibv_free_device_list(list);

	shell("ip link add hot0 address 02:00:00:77:00:10 type dummy && ip link set hot0 up");
	shell("rdma link add rxe2 type rxe netdev hot0");
	list = show("a third");
	opens(find(list, "rxe2"));
	/* While a context is open, its device does not go away with the list. */
	struct ibv_context *ctx = ibv_open_device(find(list, "rxe0"));
	ibv_free_device_list(list);
	printf("open beside the lists: %s\n", ibv_get_device_name(ctx->device));

	shell("rdma dev set rxe2 name renamed");
	list = show("another name");
	if (find(list, "renamed"))
		opens(find(list, "renamed"));
	ibv_free_device_list(list);
	shell("rdma link delete renamed && ip link delete hot0");
	list = show("without the third");
	printf("still the same: %d\n", find(list, "rxe0") == ctx->device);
	ibv_free_device_list(list);
	printf("close: %d\n", ibv_close_device(ctx));

	shell("rdma link delete rxe0 && rdma link delete rxe1");
	list = show("none left");
	if (list)
		ibv_free_device_list(list);
	shell("rdma link add rxe0 type rxe netdev rdma0 && rdma link add rxe1 type rxe netdev rdma1");
	list = show("both again");
	opens(find(list, "rxe0"));
	opens(find(list, "rxe1"));
	ibv_free_device_list(list);
	return 0;
}
