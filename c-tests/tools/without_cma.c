/* without_cma CMD...: runs a command for which process_vm_readv and process_vm_writev fail with
 * EPERM, as in containers. */
#include "refuse_cma.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	if (argc < 2) {
		fprintf(stderr, "usage: %s CMD...\n", argv[0]);
		return 2;
	}
	if (refuse_cma()) {
		fprintf(stderr, "%s: cannot install a filter: %s\n", argv[0], strerror(errno));
		return 3;
	}
	execvp(argv[1], argv + 1);
	fprintf(stderr, "%s: cannot run %s: %s\n", argv[0], argv[1], strerror(errno));
	return 127;
}
