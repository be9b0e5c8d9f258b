/*
 * Opens the device of vendor.c twice, and prints what libefa made of the plugin's answers and what
 * the plugin counted. Arguments: the plugin's file.
 */
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>

static int counter(void *plugin, const char *name)
{
	const int *value = dlsym(plugin, name);

	return value ? *value : -1;
}

int main(int argc, char **argv)
{
	int n = 0;
	struct ibv_device **list = ibv_get_device_list(&n);

	printf("%d devices\n", n);
	for (int round = 0; n && round < 2; round++) {
		struct ibv_context *context = ibv_open_device(list[0]);
		struct ibv_device_attr_ex attr;

		if (!context || ibv_query_device_ex(context, NULL, &attr)) {
			perror("open");
			return 1;
		}
		if (!round)
			printf("%s: type %d, transport %d, %s, %d QPs\n", ibv_get_device_name(list[0]), list[0]->node_type,
			       list[0]->transport_type, list[0]->ibdev_path, attr.orig_attr.max_qp);
		struct ibv_pd *pd = ibv_alloc_pd(context);
		printf("PD %d", pd ? (int)pd->handle : -1);
		errno = 0;
		struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
		printf(", channel %d, errno is EOPNOTSUPP: %d", channel != NULL, errno == EOPNOTSUPP);
		printf(", freed: %d", ibv_dealloc_pd(pd));
		printf(" %d\n", ibv_close_device(context));
	}
	if (list)
		ibv_free_device_list(list);
	void *plugin = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_NOLOAD) : NULL;
	if (plugin)
		printf("opened %d, closed %d, hooked %d, commands: %d\n", counter(plugin, "vendor_opened"), counter(plugin, "vendor_closed"),
		       counter(plugin, "vendor_hooked"), counter(plugin, "vendor_commands") > 0);
	return 0;
}
