/*
 * A program from its first verb to its last: the program opens the device, connects
 * two QPs, sends, reads, and closes everything. Tests of faults run the program in child processes.
 */
#ifndef FIRST_TO_LAST_H
#define FIRST_TO_LAST_H

/* All calls worked; a verb or a completion failed visibly; a result is wrong. */
enum run_result { WORKED, REFUSED, WRONG };

struct run_failure {
	/* The first failed verb and the errno; or "a completion" and the status. */
	const char *verb;
	int err;
	/* The first wrong result, or NULL. */
	const char *wrong;
};

/* Makes all calls. The call destroys all objects before the return. */
enum run_result first_to_last(struct run_failure *said);

#endif
