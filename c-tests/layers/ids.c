/* Creates and destroys two ids. Then prints, for each name of librdmacm that layers can intercept,
 * the file that the name jumps to, unless it is librdmacm itself. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband-provider/ferroverbs_cm_layer.h>
#include <rdma/rdma_cma.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static const char *const names[] = {
	"accept", "ack_cm_event", "bind_addr", "connect", "create_ep", "create_event_channel", "create_id", "create_qp", "create_qp_ex", "create_srq",
	"create_srq_ex", "destroy_ep", "destroy_event_channel", "destroy_id", "destroy_qp", "destroy_srq", "disconnect", "establish", "free_devices",
	"freeaddrinfo", "get_cm_event", "get_devices", "get_remote_ece", "get_request", "getaddrinfo", "init_qp_attr", "join_multicast",
	"join_multicast_ex", "leave_multicast", "listen", "migrate_id", "notify", "query_addrinfo", "reject", "reject_ece", "resolve_addr",
	"resolve_addrinfo", "resolve_route", "set_local_ece", "set_option", "write_cm_event",
};
enum { NAMES = sizeof(names) / sizeof(names[0]) };
_Static_assert(NAMES == sizeof(struct ferroverbs_cm_calls) / sizeof(void (*)(void)), "all of them");

/* An exported name is one instruction, "jmp *entry(%rip)"; returns the file that the entry points
 * to. */
static const char *leads_to(const char *name)
{
	char symbol[64];
	int32_t far;
	void *entry;
	Dl_info info;

	snprintf(symbol, sizeof(symbol), "rdma_%s", name);
	unsigned char *code = dlsym(RTLD_DEFAULT, symbol);
	if (!code || code[0] != 0xff || code[1] != 0x25)
		return "no jump";
	memcpy(&far, code + 2, sizeof(far));
	memcpy(&entry, code + 6 + far, sizeof(entry));
	if (!dladdr(entry, &info))
		return "nobody";
	const char *slash = strrchr(info.dli_fname, '/');
	return slash ? slash + 1 : info.dli_fname;
}

int main(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id;
	for (int i = 0; i < 2; i++)
		if (!channel || rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) || rdma_destroy_id(id)) {
			perror("an id");
			return 1;
		}
	rdma_destroy_event_channel(channel);
	int own = 0;
	for (int i = 0; i < NAMES; i++) {
		const char *file = leads_to(names[i]);
		if (strcmp(file, "librdmacm.so.1"))
			printf("%s %s\n", names[i], file);
		else
			own++;
	}
	printf("%d of %d are librdmacm's own\n", own, NAMES);
	return 0;
}
