// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * An MPI library over soft: messages of all lengths around a ring, reductions and one-sided
 * operations, all checked.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;

static unsigned char byte(size_t i, int from, int round)
{
	return (unsigned char)(i * 7 + i / 251 + (unsigned)from * 31 + (unsigned)round);
}

/* To the right, from the left; how many bytes are wrong. */
static long ring(size_t len, int round)
{
	unsigned char *out = malloc(len + 1), *in = calloc(len + 1, 1);
	int left = (rank + ranks - 1) % ranks;
	long wrong = 0;
	for (size_t i = 0; i < len; i++)
		out[i] = byte(i, rank, round);
	MPI_Sendrecv(out, (int)len, MPI_BYTE, (rank + 1) % ranks, round, in, (int)len, MPI_BYTE, left, round, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	for (size_t i = 0; i < len; i++)
		wrong += in[i] != byte(i, left, round);
	wrong += in[len] != 0;
	free(out);
	free(in);
	return wrong;
}

/* Many messages on their way at once, received in another order. */
static long many_messages(void)
{
	enum { MANY = 64, LEN = 3000 };
	static unsigned char out[MANY][LEN], in[MANY][LEN];
	MPI_Request requests[2 * MANY];
	int left = (rank + ranks - 1) % ranks;
	long wrong = 0;
	for (int i = 0; i < MANY; i++)
		for (size_t k = 0; k < LEN; k++)
			out[i][k] = byte(k, rank, i);
	for (int i = 0; i < MANY; i++)
		MPI_Isend(out[i], LEN, MPI_BYTE, (rank + 1) % ranks, i, MPI_COMM_WORLD, &requests[i]);
	for (int i = 0; i < MANY; i++)
		MPI_Irecv(in[MANY - 1 - i], LEN, MPI_BYTE, left, MANY - 1 - i, MPI_COMM_WORLD, &requests[MANY + i]);
	MPI_Waitall(2 * MANY, requests, MPI_STATUSES_IGNORE);
	for (int i = 0; i < MANY; i++)
		for (size_t k = 0; k < LEN; k++)
			wrong += in[i][k] != byte(k, left, i);
	return wrong;
}

/* Puts, gets and atomics in a window. */
static long window(void)
{
	enum { WORDS = 1024, TIMES = 50 };
	long *base, one = 1, old, got[100], wrong = 0;
	MPI_Win win;
	MPI_Win_allocate(WORDS * sizeof *base, sizeof *base, MPI_INFO_NULL, MPI_COMM_WORLD, &base, &win);
	memset(base, 0, WORDS * sizeof *base);
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_lock_all(0, win);
	for (int i = 0; i < TIMES; i++) {
		MPI_Fetch_and_op(&one, &old, MPI_LONG, 0, 0, MPI_SUM, win);
		MPI_Win_flush(0, win);
	}
	long mine[100];
	for (int i = 0; i < 100; i++)
		mine[i] = rank * 1000 + i;
	MPI_Put(mine, 100, MPI_LONG, (rank + 1) % ranks, 100, 100, MPI_LONG, win);
	MPI_Win_flush_all(win);
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Get(got, 100, MPI_LONG, (rank + 1) % ranks, 100, 100, MPI_LONG, win);
	MPI_Win_flush_all(win);
	wrong += memcmp(got, mine, sizeof mine) != 0;
	MPI_Win_unlock_all(win);
	MPI_Barrier(MPI_COMM_WORLD);
	if (!rank)
		wrong += base[0] != (long)TIMES * ranks;
	for (int i = 0; i < 100; i++)
		wrong += base[100 + i] != (rank + ranks - 1) % ranks * 1000 + i;
	MPI_Win_free(&win);
	return wrong;
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	long wrong = 0, all = 0;
	for (size_t len = 0; len <= 1 << 20; len = len * 5 + 1)
		for (int round = 0; round < 4; round++)
			wrong += ring(len, round);
	wrong += many_messages();
	wrong += window();
	double x = rank + 1, sum = 0;
	MPI_Allreduce(&x, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
	wrong += sum != ranks * (ranks + 1) / 2;
	MPI_Allreduce(&wrong, &all, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
	if (!rank)
		printf("%d ranks, %ld wrong\n", ranks, all);
	MPI_Finalize();
	return all != 0;
}
