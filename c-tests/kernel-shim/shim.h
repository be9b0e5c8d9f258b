/*
 * The recording kernel, which answers from a script: the functions that shim.c offers to the
 * driving program. Descriptors of /dev/infiniband belong to the shim; all other descriptors go to
 * the real kernel.
 */
#ifndef KERNEL_SHIM_H
#define KERNEL_SHIM_H

#include <stddef.h>
#include <stdint.h>

/* How new the kernel is. */
enum shim_kernel {
	SHIM_IOCTL,	/* knows all ioctls */
	SHIM_INVOKE,	/* knows the ioctl that wraps write commands, and no other */
	SHIM_METHODS,	/* knows all ioctls but the wrapper */
	SHIM_WRITE,	/* knows no ioctl at all */
};

void shim_kernel(enum shim_kernel kernel);
/*
 * The next command fails with this errno; a negative number is a short write; 0 ends the failure.
 */
void shim_fail_next(int error);
/* Every later command fails with this errno. */
void shim_fail_always(int error);
/* Overwrites 32 bits at an offset of the next response, in the order of the calls. */
void shim_poke(size_t offset, uint32_t value);
/* Later answers are nonsense drawn from the seed; 0 ends the nonsense. */
void shim_garble(uint64_t seed);
/* Adds a line to the record. */
void shim_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Writes the record to stdout and empties it. */
void shim_print(void);

#endif
