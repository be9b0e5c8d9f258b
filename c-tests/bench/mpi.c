/*
 * The measurements of limits.c with an MPI library, two ranks on one host. Prints one number:
 * microseconds (one way; for get and fetch-add the whole operation), GB/s (1e9), or million
 * messages per second.
 *
 * usage: mpi lat|bw|rate|put|get|fadd BYTES ITERATIONS
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW = 64 };

int main(int argc, char **argv)
{
	int rank, size;
	long bytes, n;
	char *buf;
	double start = 0, took;
	const char *what;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	if (argc < 4) {
		fprintf(stderr, "usage: mpi lat|bw|rate|put|get|fadd BYTES ITERATIONS\n");
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	what = argv[1];
	bytes = atol(argv[2]);
	n = atol(argv[3]);
	size = (int)bytes;
	buf = malloc((size_t)bytes + 64);
	memset(buf, 1, (size_t)bytes + 64);

	if (!strcmp(what, "lat")) {
		for (long i = -n / 10; i < n; i++) {
			if (i == 0) {
				MPI_Barrier(MPI_COMM_WORLD);
				start = MPI_Wtime();
			}
			if (rank == 0) {
				MPI_Send(buf, size, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
				MPI_Recv(buf, size, MPI_BYTE, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			} else {
				MPI_Recv(buf, size, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
				MPI_Send(buf, size, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
			}
		}
		took = MPI_Wtime() - start;
		if (rank == 0)
			printf("%.4f\n", took / (double)n / 2 * 1e6);
	} else if (!strcmp(what, "bw") || !strcmp(what, "rate")) {
		MPI_Request requests[WINDOW];

		for (long i = -n / 10 / WINDOW; i < n / WINDOW; i++) {
			if (i == 0) {
				MPI_Barrier(MPI_COMM_WORLD);
				start = MPI_Wtime();
			}
			for (int w = 0; w < WINDOW; w++)
				if (rank == 0)
					MPI_Isend(buf, size, MPI_BYTE, 1, 0, MPI_COMM_WORLD, &requests[w]);
				else
					MPI_Irecv(buf, size, MPI_BYTE, 0, 0, MPI_COMM_WORLD, &requests[w]);
			MPI_Waitall(WINDOW, requests, MPI_STATUSES_IGNORE);
			if (rank == 0)
				MPI_Recv(buf + bytes, 1, MPI_BYTE, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			else
				MPI_Send(buf + bytes, 1, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
		}
		took = MPI_Wtime() - start;
		n = n / WINDOW * WINDOW;
		if (rank == 0)
			printf("%.4f\n", !strcmp(what, "bw") ? (double)bytes * (double)n / took * 1e-9 : (double)n / took * 1e-6);
	} else {
		MPI_Win win;
		int64_t one = 1, old;

		/* Ordinary memory, as applications use. */
		MPI_Win_create(buf, bytes + 64, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &win);
		MPI_Win_lock_all(0, win);
		if (rank == 0) {
			char *local = malloc((size_t)bytes + 8);

			memset(local, 2, (size_t)bytes + 8);
			for (long i = -n / 10; i < n; i++) {
				if (i == 0)
					start = MPI_Wtime();
				if (!strcmp(what, "put"))
					MPI_Put(local, size, MPI_BYTE, 1, 0, size, MPI_BYTE, win);
				else if (!strcmp(what, "get"))
					MPI_Get(local, size, MPI_BYTE, 1, 0, size, MPI_BYTE, win);
				else
					MPI_Fetch_and_op(&one, &old, MPI_INT64_T, 1, 0, MPI_SUM, win);
				MPI_Win_flush(1, win);
			}
			took = MPI_Wtime() - start;
			printf("%.4f\n", took / (double)n * 1e6);
		}
		MPI_Win_unlock_all(win);
		MPI_Win_free(&win);
	}
	MPI_Finalize();
	return 0;
}
