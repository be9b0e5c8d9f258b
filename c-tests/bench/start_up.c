/*
 * Measures the start of a program with a device: lists the devices twice, opens and closes the
 * first one repeatedly, and prints lines "name value": microseconds, and resident KiB at the end.
 */
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ROUNDS 20

static double now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* A line of /proc/self/status. */
static long status(const char *name)
{
	char line[200];
	long value = -1;
	FILE *file = fopen("/proc/self/status", "r");
	while (file && fgets(line, sizeof line, file))
		if (!strncmp(line, name, strlen(name)))
			value = atol(line + strlen(name));
	if (file)
		fclose(file);
	return value;
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : ROUNDS, n = 0;
	double begin = now_us();
	struct ibv_device **list = ibv_get_device_list(&n);
	printf("first_list %.1f\n", now_us() - begin);
	printf("devices %d\n", n);
	begin = now_us();
	struct ibv_device **again = ibv_get_device_list(&n);
	printf("later_list %.1f\n", now_us() - begin);
	if (again)
		ibv_free_device_list(again);
	if (n > 0) {
		double *took = calloc(rounds, sizeof *took);
		for (int i = 0; i < rounds; i++) {
			begin = now_us();
			struct ibv_context *ctx = ibv_open_device(list[0]);
			if (!ctx || ibv_close_device(ctx))
				return 1;
			took[i] = now_us() - begin;
		}
		qsort(took, rounds, sizeof *took, by_size);
		printf("open_close %.1f\n", took[rounds / 2]);
		free(took);
	}
	if (list)
		ibv_free_device_list(list);
	printf("resident %ld\n", status("VmRSS:"));
	printf("private %ld\n", status("RssAnon:"));
	return 0;
}
