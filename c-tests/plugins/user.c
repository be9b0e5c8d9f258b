/* Lists the devices, opens each, and prints its attributes. */
#include <infiniband/verbs.h>
#include <stdio.h>

int main(void)
{
	int n = 0;
	struct ibv_device **list = ibv_get_device_list(&n);

	for (int i = 0; i < n; i++) {
		struct ibv_context *context = ibv_open_device(list[i]);
		struct ibv_device_attr_ex attr;

		if (!context || ibv_query_device_ex(context, NULL, &attr))
			return 1;
		printf("%s: %s, %d QPs\n", ibv_get_device_name(list[i]), ibv_node_type_str(list[i]->node_type), attr.orig_attr.max_qp);
		struct ibv_pd *pd = ibv_alloc_pd(context);
		printf("PD: %d, errno is EOPNOTSUPP: %d\n", pd != NULL, errno == EOPNOTSUPP);
		if (ibv_close_device(context))
			return 2;
	}
	ibv_free_device_list(list);
	return 0;
}
