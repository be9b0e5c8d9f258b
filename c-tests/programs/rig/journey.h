/*
 * The journey of a program from its first verb to its last: the program opens the device, connects
 * two QPs, sends, reads, and closes everything. Tests of faults run the journey in child processes.
 */
#ifndef JOURNEY_H
#define JOURNEY_H

/* All calls worked; a verb or a completion failed visibly; a result is wrong. */
enum journey_end { WORKED, REFUSED, WRONG };

struct journey {
	/* The first failed verb and the errno; or "a completion" and the status. */
	const char *verb;
	int err;
	/* The first wrong result, or NULL. */
	const char *wrong;
};

/* Makes the journey. The call destroys all objects before the return. */
enum journey_end journey(struct journey *said);

#endif
