/*
 * A TCP program for librspreload that forks while its threads use and duplicate sockets; its
 * children use other descriptors. Each child has 20 s, because a child that waits for a lock of a
 * missing thread waits for ever.
 */
#define _GNU_SOURCE
#include "checks.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHILDREN 300

static atomic_int ended;
static int listener;

static void *look(void *arg)
{
	while (!ended)
		fcntl(listener, F_GETFL);
	return arg;
}

static void *duplicate(void *arg)
{
	while (!ended)
		close(fcntl(listener, F_DUPFD, 100));
	return arg;
}

static int child(void)
{
	int pipes[2];
	char byte = 0;

	if (pipe(pipes) || write(pipes[1], "x", 1) != 1 || read(pipes[0], &byte, 1) != 1 || byte != 'x' || close(pipes[0]))
		return 1;
	/* Its parent's socket. */
	if (!(send(listener, "y", 1, 0) == -1 && errno == ENODEV))
		return 2;
	return close(listener) || !(send(listener, "y", 1, 0) == -1 && errno == EBADF) ? 3 : 0;
}

int main(void)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct stat what;
	pthread_t threads[2];
	int bad = 0;

	listener = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(bind(listener, (struct sockaddr *) &at, sizeof(at)) == 0 && listen(listener, 4) == 0);
	/* Otherwise nothing here is of RDMA. */
	CHECK(fstat(listener, &what) == 0 && !S_ISSOCK(what.st_mode));
	pthread_create(&threads[0], NULL, look, NULL);
	pthread_create(&threads[1], NULL, duplicate, NULL);
	for (int i = 0; i < CHILDREN && !bad; i++) {
		int status;
		pid_t pid = fork();

		if (pid == 0) {
			int null = open("/dev/null", O_WRONLY);

			alarm(20);
			_exit(dup2(null, 2) != 2 ? 9 : child());
		}
		bad = waitpid(pid, &status, 0) != pid || status;
		if (bad)
			printf("child %d: status %#x\n", i, status);
	}
	CHECK(!bad);
	ended = 1;
	pthread_join(threads[0], NULL);
	pthread_join(threads[1], NULL);
	CHECK(listen(listener, 5) == 0 && close(listener) == 0);
	return failures != 0;
}
