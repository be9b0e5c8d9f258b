/*
 * Functions of the programs that misuse verbs. JSON in the environment is the layer's output file.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

static inline void want(int ok, const char *what)
{
	if (!ok) {
		fprintf(stderr, "misuse: %s: %s\n", what, strerror(errno));
		exit(2);
	}
}

/* Waits until the layer has written something. */
static inline void *when_told(void *then)
{
	struct stat st;
	while (stat(getenv("JSON"), &st) || !st.st_size)
		nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
	((void (*)(void))then)();
	return NULL;
}

/* Lets another thread wait a little for what comes then. */
static inline void *after_a_while(void *then)
{
	nanosleep(&(struct timespec){ 0, 50000000 }, NULL);
	((void (*)(void))then)();
	return NULL;
}
