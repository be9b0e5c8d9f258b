/*
 * Copies between the kernel's and the application's form of addresses, QP attributes and path
 * records, with random content over the full range of each field. Runs on rdma-core's library and
 * on Ferroverbs; the output must be equal, including bytes that a copy leaves alone.
 * <rdma/ib_user_sa.h>, <infiniband/sa.h>.
 */
#include <infiniband/sa.h>
#include <infiniband/verbs.h>
#include <rdma/ib_user_sa.h>
#include <rdma/ib_user_verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* Functions for librdmacm; no installed header of Debian declares them. */
void ibv_copy_ah_attr_from_kern(struct ibv_ah_attr *to, struct ib_uverbs_ah_attr *from);
void ibv_copy_qp_attr_from_kern(struct ibv_qp_attr *to, struct ib_uverbs_qp_attr *from);
void ibv_copy_path_rec_from_kern(struct ibv_sa_path_rec *to, struct ib_user_path_rec *from);
void ibv_copy_path_rec_to_kern(struct ib_user_path_rec *to, struct ibv_sa_path_rec *from);

static uint32_t rnd(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return (uint32_t)(*state >> 16);
}

static void dump(const char *name, const void *object, size_t size)
{
	const unsigned char *p = object;

	printf("%s ", name);
	for (size_t i = 0; i < size; i++)
		printf("%02x", p[i]);
	printf("\n");
}

/* Zeros, then ones, then random bytes. */
static void content(void *object, size_t size, int round, uint64_t *state)
{
	unsigned char *p = object;

	for (size_t i = 0; i < size; i++)
		p[i] = round == 0 ? 0 : round == 1 ? 0xff : (unsigned char)rnd(state);
}

int main(void)
{
	uint64_t state = 0x1234567890abcdefull;

	for (int round = 0; round < 500; round++) {
		/* On stale and on clean memory: shows the bytes that a copy leaves alone. */
		for (int stale = 0; stale < 2; stale++) {
			struct ib_uverbs_ah_attr kah;
			struct ib_uverbs_qp_attr kqp;
			struct ib_user_path_rec krec, krec_back;
			struct ibv_ah_attr ah;
			struct ibv_qp_attr qp;
			struct ibv_sa_path_rec rec;

			content(&kah, sizeof(kah), round, &state);
			content(&kqp, sizeof(kqp), round, &state);
			content(&krec, sizeof(krec), round, &state);
			memset(&ah, stale ? 0xa5 : 0, sizeof(ah));
			memset(&qp, stale ? 0xa5 : 0, sizeof(qp));
			memset(&rec, stale ? 0xa5 : 0, sizeof(rec));
			memset(&krec_back, stale ? 0xa5 : 0, sizeof(krec_back));
			ibv_copy_ah_attr_from_kern(&ah, &kah);
			ibv_copy_qp_attr_from_kern(&qp, &kqp);
			ibv_copy_path_rec_from_kern(&rec, &krec);
			dump("ah", &ah, sizeof(ah));
			dump("qp", &qp, sizeof(qp));
			dump("rec", &rec, sizeof(rec));
			content(&rec, sizeof(rec), round, &state);
			ibv_copy_path_rec_to_kern(&krec_back, &rec);
			dump("kernel rec", &krec_back, sizeof(krec_back));
		}
	}
	return 0;
}
