/*
 * Output of librdmacm when libibverbs has no devices. Runs over upstream's libibverbs with each of
 * the two librdmacm libraries; both outputs must be equal.
 */
#include <errno.h>
#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>
#include <stdio.h>

#define SAY(call) \
	do { \
		errno = 0; \
		long done = (long)(call); \
		printf(#call ": %ld, %d\n", done, done > 0 ? 0 : errno); \
	} while (0)

int main(void)
{
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id = NULL;
	int count = -1;

	SAY(rdma_get_devices(&count));
	printf("devices: %d\n", count);
	SAY(channel = rdma_create_event_channel());
	SAY(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	SAY(rdma_create_id(NULL, &id, NULL, RDMA_PS_UDP));
	SAY(rdma_create_id(NULL, &id, NULL, RDMA_PS_IPOIB));
	SAY(rsocket(AF_INET, SOCK_STREAM, 0));
	printf("%s\n", rdma_event_str(RDMA_CM_EVENT_ESTABLISHED));
	return 0;
}
