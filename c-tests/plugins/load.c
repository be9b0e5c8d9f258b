/*
 * Opens each plugin named on the command line as a library would, with immediate binding, and
 * prints the drivers that the plugin registered and their number. The registering functions here
 * precede those of libibverbs.so.1, and call them.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int registered;

static void registering(const void *ops, const char *number)
{
	char name[40], version[40];
	snprintf(name, sizeof name, "verbs_register_driver_%s", number);
	snprintf(version, sizeof version, "IBVERBS_PRIVATE_%s", number);
	void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD);
	void (*real)(const void *) = library ? (void (*)(const void *))dlvsym(library, name, version) : NULL;
	if (!real) {
		printf(" (the library has no %s@%s)", name, version);
		return;
	}
	/* The first member of every generation's table is the driver's name. */
	printf(" %s as %s", *(const char *const *)ops, number);
	real(ops);
	registered++;
}

#define REGISTER(number)                                    \
	void verbs_register_driver_##number(const void *ops); \
	void verbs_register_driver_##number(const void *ops)  \
	{                                                     \
		registering(ops, #number);                    \
	}

REGISTER(34)
REGISTER(57)
REGISTER(59)
REGISTER(64)
REGISTER(65)

int main(int argc, char **argv)
{
	/* Loaded as a dependency of the program itself, so that plugins find the library. */
	void *library = dlopen("libibverbs.so.1", RTLD_NOW);
	if (!library) {
		printf("%s\n", dlerror());
		return 1;
	}
	for (int i = 1; i < argc; i++) {
		const char *file = strrchr(argv[i], '/');
		printf("%s:", file ? file + 1 : argv[i]);
		registered = 0;
		if (!dlopen(argv[i], RTLD_NOW | RTLD_LOCAL)) {
			const char *why = dlerror();
			file = strstr(why, ": ");
			printf(" fails: %s\n", file ? file + 2 : why);
		} else {
			printf("%s\n", registered ? "" : " registers nothing");
		}
	}
	return 0;
}
