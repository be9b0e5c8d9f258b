/*
 * A kernel that refuses MADV_POPULATE_READ and MADV_POPULATE_WRITE: Linux before 5.14, gVisor,
 * qemu-user, or a filter of seccomp(2). ibv_reg_mr(3) takes and refuses the same memory as on a
 * newer kernel. The arguments say how the advice is refused: `any` for each range, `length` only
 * for a range with a length, and the errno.
 */
#define _GNU_SOURCE
#include "rig.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

enum { POPULATE_READ = 22, POPULATE_WRITE = 23 };

static size_t page;

/* Refuses both advices from now on, for all threads of the program that start later. */
static void refuse(int only_with_length, int err)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 5),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, only_with_length ? 3 : 0, 0),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, POPULATE_READ, 2, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, POPULATE_WRITE, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)err),
	};
	struct sock_fprog filter = { sizeof code / sizeof code[0], code };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter))
		die("seccomp: %m");
	unsigned char *own = pages_apart(page);
	check(madvise(own, page, POPULATE_WRITE) == -1 && errno == err, "the kernel refuses the advice");
	check(madvise(own, 0, POPULATE_READ) == (only_with_length ? 0 : -1), "and refuses a range without length as wanted");
}

/* `ibv_reg_mr` of pages with the protection; the errno, or 0. */
static int registered(struct ibv_pd *pd, void *at, size_t len, int access)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, at, len, access);

	return mr ? ibv_dereg_mr(mr) : errno;
}

int main(int argc, char **argv)
{
	if (argc != 3)
		die("two arguments are needed");
	page = (size_t)sysconf(_SC_PAGESIZE);
	struct ibv_context *ctx = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	if (!pd)
		die("ibv_alloc_pd: %m");
	refuse(!strcmp(argv[1], "length"), atoi(argv[2]));

	unsigned char *at = pages_apart(4 * page);
	fill(at, 4 * page, 7);
	check_eq(registered(pd, at, 4 * page, IBV_ACCESS_LOCAL_WRITE), 0, "writable memory");
	check_eq(registered(pd, at + 100, 3 * page, IBV_ACCESS_LOCAL_WRITE), 0, "writable memory, within its pages");
	check_eq(verify(at, 4 * page, 7), -1, "a registration changes no byte");
	if (mprotect(at + 2 * page, page, PROT_READ))
		die("mprotect: %m");
	check_eq(registered(pd, at, 4 * page, 0), 0, "a page that cannot be written, to be read");
	check_eq(registered(pd, at, 2 * page, IBV_ACCESS_LOCAL_WRITE), 0, "the pages before that page");
	check_eq(registered(pd, at, 2 * page + 1, IBV_ACCESS_LOCAL_WRITE), EFAULT, "a page that cannot be written, to be written");
	if (mprotect(at + 2 * page, page, PROT_NONE))
		die("mprotect: %m");
	check_eq(registered(pd, at, 4 * page, 0), EFAULT, "a page that cannot be read");
	if (munmap(at + 2 * page, page))
		die("munmap: %m");
	check_eq(registered(pd, at, 4 * page, 0), EFAULT, "a page that is not mapped");
	check_eq(registered(pd, at, 4 * page, IBV_ACCESS_LOCAL_WRITE), EFAULT, "a page that is not mapped, to be written");

	int file = memfd_create("short", 0);
	if (file < 0 || ftruncate(file, (off_t)page))
		die("memfd_create: %m");
	void *beyond = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (beyond == MAP_FAILED)
		die("mmap: %m");
	check_eq(registered(pd, beyond, page, IBV_ACCESS_LOCAL_WRITE), 0, "a page of a file");
	check_eq(registered(pd, beyond, 2 * page, IBV_ACCESS_LOCAL_WRITE), EFAULT, "a page behind the end of a file");

	check(ibv_dealloc_pd(pd) == 0 && ibv_close_device(ctx) == 0, "all is closed");
	return finish();
}
