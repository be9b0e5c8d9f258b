/* A process forks while the device works on its memory. */
#include <sys/mman.h>
#include <sys/wait.h>

#include "kernel.h"

static const char *status(void)
{
	switch (ibv_is_fork_initialized()) {
	case IBV_FORK_DISABLED:
		return "disabled";
	case IBV_FORK_ENABLED:
		return "enabled";
	case IBV_FORK_UNNEEDED:
		return "unneeded";
	}
	return "?";
}

int main(void)
{
	size_t page = sysconf(_SC_PAGESIZE);
	printf("before: %s\n", status());
	printf("ibv_fork_init: %d\n", ibv_fork_init());
	printf("after: %s\n", status());
	printf("again: %d\n", ibv_fork_init());

	struct loop l;
	struct ibv_context *ctx = open_named("rxe0");
	loop_open(&l, ctx, 0);
	char *memory = mmap(NULL, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memset(memory, 'a', 4 * page);
	struct ibv_mr *mr = ibv_reg_mr(l.pd, memory, 4 * page, IBV_ACCESS_LOCAL_WRITE);
	if (!mr)
		die("ibv_reg_mr: %s", strerror(errno));
	receive(&l, mr, memory + 2 * page, page);

	int pipes[2];
	if (pipe(pipes))
		die("pipe");
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		/* Lives, with its share of the memory, until the parent is done. */
		char c;
		close(pipes[1]);
		_exit(read(pipes[0], &c, 1) == 0 ? 7 : 8);
	}
	close(pipes[0]);
	/* The first writer gets the copy of the page; the device must see the original. */
	memset(memory, 'b', page);
	loop_send(&l, mr, memory, page);
	printf("sent what the parent wrote: %d\n", memory[2 * page] == 'b' && memory[3 * page - 1] == 'b');
	close(pipes[1]);
	int ended;
	waitpid(child, &ended, 0);
	printf("child: exited %d, status %d\n", WIFEXITED(ended), WEXITSTATUS(ended));

	/* Memory beside the registered one stays the child's. */
	fflush(stdout);
	child = fork();
	if (child == 0)
		_exit(page == (size_t)sysconf(_SC_PAGESIZE) && status() ? 5 : 6);
	waitpid(child, &ended, 0);
	printf("second child: exited %d, status %d\n", WIFEXITED(ended), WEXITSTATUS(ended));

	receive(&l, mr, memory + 3 * page, page);
	memset(memory, 'c', page);
	loop_send(&l, mr, memory, page);
	printf("and again: %d\n", memory[3 * page] == 'c' && memory[4 * page - 1] == 'c');
	printf("ibv_dereg_mr: %d\n", ibv_dereg_mr(mr));
	loop_close(&l);
	printf("ibv_close_device: %d\n", ibv_close_device(ctx));
	return 0;
}
