// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * An OpenSHMEM library over soft: puts and gets of all lengths around a ring, atomics on one word
 * and on many, and reductions, all checked.
 */
#include <shmem.h>
#include <stdio.h>
#include <string.h>

enum { MOST = 1 << 20, WORDS = 64, TIMES = 50 };

static int me, ranks;
static unsigned char to_write[MOST], to_read[MOST];
static long words[WORDS], wrong, all_wrong, most;
/* Sizes that OpenSHMEM 1.4 prescribes for reductions. */
static long work[SHMEM_REDUCE_MIN_WRKDATA_SIZE], sync_area[SHMEM_REDUCE_SYNC_SIZE];

static unsigned char byte(size_t i, int from, int round)
{
	return (unsigned char)(i * 7 + i / 251 + (unsigned)from * 31 + (unsigned)round);
}

/* To the right by put, from the right by get; how many bytes are wrong. */
static long ring(size_t len, int round)
{
	static unsigned char out[MOST], in[MOST];
	int left = (me + ranks - 1) % ranks, right = (me + 1) % ranks;
	long differ = 0;
	for (size_t i = 0; i < len; i++) {
		out[i] = byte(i, me, round);
		to_read[i] = byte(i, me, round + 1);
	}
	memset(in, 0, len);
	shmem_barrier_all();
	shmem_putmem(to_write, out, len, right);
	shmem_getmem(in, to_read, len, right);
	shmem_barrier_all();
	for (size_t i = 0; i < len; i++) {
		differ += to_write[i] != byte(i, left, round);
		differ += in[i] != byte(i, right, round + 1);
	}
	return differ;
}

static long atomics(void)
{
	long differ = 0;
	for (int i = 0; i < TIMES; i++) {
		shmem_long_atomic_inc(&words[0], 0);
		shmem_long_atomic_add(&words[1 + i % 8], i, (me + i) % ranks);
		shmem_long_atomic_fetch_add(&words[9], 2, ranks - 1);
	}
	/* One rank wins, and all ranks read the winner. */
	long before = shmem_long_atomic_compare_swap(&words[10], 0, me + 1, 0);
	shmem_barrier_all();
	long winner = shmem_long_atomic_fetch(&words[10], 0);
	differ += winner < 1 || winner > ranks || (before == 0) != (winner == me + 1) || (before != 0 && before != winner);
	if (me == 0)
		differ += words[0] != (long)TIMES * ranks;
	if (me == ranks - 1)
		differ += words[9] != 2L * TIMES * ranks;
	for (int k = 0; k < 8; k++) {
		/* Everybody adds i to word 1 + i % 8 of rank (his own + i), so each rank gets each i once. */
		long sum = 0;
		for (int i = k; i < TIMES; i += 8)
			sum += i;
		differ += words[1 + k] != sum;
	}
	shmem_barrier_all();
	return differ;
}

int main(void)
{
	shmem_init();
	me = shmem_my_pe();
	ranks = shmem_n_pes();
	for (int i = 0; i < SHMEM_REDUCE_SYNC_SIZE; i++)
		sync_area[i] = SHMEM_SYNC_VALUE;
	shmem_barrier_all();
	for (size_t len = 1; len <= MOST; len = len * 5 + 1)
		for (int round = 0; round < 4; round++)
			wrong += ring(len, round);
	wrong += atomics();
	static long mine;
	mine = me + 1;
	shmem_barrier_all();
	shmem_long_max_to_all(&most, &mine, 1, 0, 0, ranks, work, sync_area);
	wrong += most != ranks;
	shmem_barrier_all();
	shmem_long_sum_to_all(&all_wrong, &wrong, 1, 0, 0, ranks, work, sync_area);
	if (me == 0)
		printf("%d ranks, %ld wrong\n", ranks, all_wrong);
	shmem_finalize();
	return all_wrong != 0;
}
