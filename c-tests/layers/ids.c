/* Makes two ids and destroys them. */
#include <rdma/rdma_cma.h>
#include <stdio.h>

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
	return 0;
}
