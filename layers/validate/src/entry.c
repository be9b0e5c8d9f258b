/* The calls of the data path. Each function passes on its return address and its frame, which
 * identify the call site at the cost of two loads. */
#define SITE __builtin_return_address(0), __builtin_frame_address(0)

int ferroverbs_validate_post_send(void *qp, void *wr, void *bad, void *caller, void *frame);
int ferroverbs_validate_post_recv(void *qp, void *wr, void *bad, void *caller, void *frame);
int ferroverbs_validate_post_srq_recv(void *srq, void *wr, void *bad, void *caller, void *frame);
void ferroverbs_validate_wr_start(void *qp, void *caller, void *frame);

int ferroverbs_validate_entry_post_send(void *qp, void *wr, void *bad)
{
	return ferroverbs_validate_post_send(qp, wr, bad, SITE);
}

int ferroverbs_validate_entry_post_recv(void *qp, void *wr, void *bad)
{
	return ferroverbs_validate_post_recv(qp, wr, bad, SITE);
}

int ferroverbs_validate_entry_post_srq_recv(void *srq, void *wr, void *bad)
{
	return ferroverbs_validate_post_srq_recv(srq, wr, bad, SITE);
}

void ferroverbs_validate_entry_wr_start(void *qp)
{
	ferroverbs_validate_wr_start(qp, SITE);
}
