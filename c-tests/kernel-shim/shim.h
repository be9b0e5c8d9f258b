/*
 * A kernel that answers from a script and writes down what it was asked: what shim.c offers to the program that
 * drives it. Descriptors of /dev/infiniband are the shim's own; everything else goes to the real kernel.
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
/* The next command fails with this errno; a negative number is a write that comes back short. 0: no more. */
void shim_fail_next(int error);
/* From now on every command fails so. */
void shim_fail_always(int error);
/* Overwrites 32 bits at an offset of the next response, in the order of the calls. */
void shim_poke(size_t offset, uint32_t value);
/* From now on answers are full of nonsense, which the seed makes reproducible; 0: no more. */
void shim_garble(uint64_t seed);
/* Adds a line to the record. */
void shim_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Writes the record to stdout and empties it. */
void shim_print(void);

#endif
