/*
 * Two communicating processes of one user, and a process of another user, which is not
 * a member of the fabric.
 *
 * other_user OWNER OTHER FABRIC SERVER... -- CLIENT...
 *
 * Started by root. In its own network namespace the program runs SERVER as user OWNER, then the
 * attacker as user OTHER, and, after the first attack on the server, CLIENT as OWNER. The
 * attacker attacks until both commands have ended. It does what any user can do: it sends messages
 * with descriptors to each name of an abstract Unix socket, fills the queues of listeners, sends
 * UDP datagrams over `lo`, creates the default fabric folder in /tmp, and looks into FABRIC. Each
 * message carries a TCP socket whose last close takes an hour (SO_LINGER of socket(7)): a process
 * that closes the socket by mistake hangs.
 *
 * Prints the attacker's successes. The exit status is 0 if both commands succeeded and the attacker
 * had none.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Connections that the attacker keeps open at once. */
#define KEPT 512
/* Connections in a full listen queue, in the namespace of this test. */
#define BACKLOG 8
#define PATIENCE 60

/* The attacker's successes. */
struct reached {
	unsigned rounds, names, accepted, connected, entered;
};

static volatile sig_atomic_t over;
static struct reached reached;

static void die(const char *what)
{
	fprintf(stderr, "attacker: %s: %s\n", what, strerror(errno));
	exit(2);
}

static void end(int signal)
{
	(void)signal;
	over = 1;
}

static void nap(void)
{
	nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static void write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);
	if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text))
		die(path);
	close(fd);
}

/* Enters a network namespace with one interface, without foreign names and ports. */
static void enter_namespace(void)
{
	if (unshare(CLONE_NEWNET))
		die("unshare");
	struct ifreq lo = {.ifr_name = "lo", .ifr_flags = IFF_UP};
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &lo))
		die("lo");
	close(fd);
	char text[16];
	snprintf(text, sizeof text, "%d", BACKLOG);
	write_file("/proc/sys/net/core/somaxconn", text);
}

static void become(uid_t user)
{
	if (setgroups(0, NULL) || setresgid(user, user, user) || setresuid(user, user, user))
		die("become another user");
	prctl(PR_SET_PDEATHSIG, SIGKILL);
}

static pid_t start(uid_t user, char **command)
{
	pid_t child = fork();
	if (child < 0)
		die("fork");
	if (child == 0) {
		become(user);
		execvp(command[0], command);
		die(command[0]);
	}
	return child;
}

/* A connected TCP socket with more unsent data than its peer takes, so its last close waits. */
static int lingering(void)
{
	static int listener = -1;
	static struct sockaddr_in at = {.sin_family = AF_INET};
	socklen_t len = sizeof at;
	int small = 2048;
	if (listener < 0) {
		at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		listener = socket(AF_INET, SOCK_STREAM, 0);
		setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
		if (bind(listener, (void *)&at, sizeof at) || listen(listener, BACKLOG) ||
		    getsockname(listener, (void *)&at, &len))
			die("a listener");
	}
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
	if (connect(fd, (void *)&at, sizeof at) || accept(listener, NULL, NULL) < 0)
		die("a connection");
	static char bytes[65536];
	while (send(fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
		;
	struct linger hour = {.l_onoff = 1, .l_linger = 3600};
	setsockopt(fd, SOL_SOCKET, SO_LINGER, &hour, sizeof hour);
	return fd;
}

/* Sends a byte and a descriptor; 0: it was taken. */
static int send_along(int by, const struct sockaddr_un *to, socklen_t len, int fd)
{
	char byte = 'x', control[CMSG_SPACE(sizeof fd)] = {0};
	struct iovec bytes = {.iov_base = &byte, .iov_len = 1};
	struct msghdr message = {.msg_name = (void *)to, .msg_namelen = len, .msg_iov = &bytes, .msg_iovlen = 1,
				 .msg_control = control, .msg_controllen = sizeof control};
	struct cmsghdr *head = CMSG_FIRSTHDR(&message);
	head->cmsg_level = SOL_SOCKET;
	head->cmsg_type = SCM_RIGHTS;
	head->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(head), &fd, sizeof fd);
	return sendmsg(by, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0;
}

/* Attacks the socket with this name. */
static void attack_name(const char *name)
{
	static int kept[KEPT], count, poison = -1;
	struct sockaddr_un to = {.sun_family = AF_UNIX};
	size_t size = strlen(name);
	if (size >= sizeof to.sun_path)
		return;
	memcpy(to.sun_path + 1, name, size);
	socklen_t len = offsetof(struct sockaddr_un, sun_path) + 1 + size;
	if (poison < 0)
		poison = lingering();
	reached.names++;
	int datagrams = socket(AF_UNIX, SOCK_DGRAM, 0);
	if (datagrams >= 0 && !send_along(datagrams, &to, len, poison)) {
		/*
		 * The message holds the last descriptor, so another process makes the last close.
		 */
		printf("taken by @%s\n", name);
		reached.accepted++;
		close(poison);
		poison = lingering();
	}
	close(datagrams);
	for (int kind = 0; kind < 2; kind++)
		for (int times = 0; times <= BACKLOG + 1; times++) {
			int fd = socket(AF_UNIX, (kind ? SOCK_SEQPACKET : SOCK_STREAM) | SOCK_NONBLOCK, 0);
			if (fd < 0 || connect(fd, (void *)&to, len)) {
				close(fd);
				break;
			}
			reached.connected++;
			if (times == 0 && !send_along(fd, NULL, 0, poison)) {
				close(poison);
				poison = lingering();
			}
			/* Closes the oldest connection. */
			if (kept[count % KEPT])
				close(kept[count % KEPT]);
			kept[count++ % KEPT] = fd;
		}
}

static void attack_names(uid_t owner)
{
	char line[512], stem[64];
	FILE *list = fopen("/proc/net/unix", "r");
	if (!list)
		die("/proc/net/unix");
	snprintf(stem, sizeof stem, "@ferroverbs-rdmacm/%u/", owner);
	while (fgets(line, sizeof line, list)) {
		line[strcspn(line, "\n")] = 0;
		char *name = strstr(line, stem);
		if (!name)
			name = strstr(line, "@ferroverbs-soft/");
		if (name)
			attack_name(name + 1);
	}
	fclose(list);
}

/* Datagrams of any bytes to the port of RoCE v2. */
static void attack_port(void)
{
	static uint64_t state = 88172645463325252u;
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(4791)};
	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	for (int times = 0; times < 64; times++) {
		unsigned char bytes[300];
		for (size_t at = 0; at < sizeof bytes; at++) {
			state ^= state << 13;
			state ^= state >> 7;
			state ^= state << 17;
			bytes[at] = state;
		}
		sendto(fd, bytes, 20 + state % 280, MSG_DONTWAIT, (void *)&to, sizeof to);
	}
	close(fd);
}

/* Looks into the fabric folder, and creates the default fabric folder. */
static void attack_folders(uid_t owner, const char *fabric)
{
	char path[256];
	snprintf(path, sizeof path, "/tmp/ferroverbs-%u", owner);
	mkdir(path, 0777);
	DIR *dir = opendir(fabric);
	if (dir) {
		printf("entered %s\n", fabric);
		reached.entered++;
		closedir(dir);
	}
}

static int be_stranger(uid_t owner, uid_t attacker, const char *fabric, int told)
{
	become(attacker);
	struct sigaction action = {.sa_handler = end};
	sigaction(SIGTERM, &action, NULL);
	while (!over) {
		attack_names(owner);
		attack_port();
		attack_folders(owner, fabric);
		reached.rounds++;
		if (reached.rounds == 1 && write(told, "x", 1) != 1)
			die("tell of the first round");
		nap();
	}
	printf("%u rounds, %u names, %u messages taken, %u connections, %u folders entered\n", reached.rounds,
	       reached.names, reached.accepted, reached.connected, reached.entered);
	fflush(stdout);
	_exit(!reached.names || reached.accepted || reached.entered);
}

/* Waits until a process of the owner listens. */
static void await_listener(uid_t owner, pid_t server)
{
	char line[512], stem[64];
	snprintf(stem, sizeof stem, "@ferroverbs-rdmacm/%u/listen/", owner);
	for (int looks = 0; looks < PATIENCE * 1000; looks++) {
		FILE *list = fopen("/proc/net/unix", "r");
		while (list && fgets(line, sizeof line, list))
			if (strstr(line, stem)) {
				fclose(list);
				return;
			}
		if (list)
			fclose(list);
		if (waitpid(server, NULL, WNOHANG) == server) {
			fprintf(stderr, "attacker: the server ended before it listened\n");
			exit(2);
		}
		nap();
	}
	fprintf(stderr, "attacker: the server does not listen\n");
	exit(2);
}

static int ended_well(const char *who, pid_t child)
{
	int status;
	if (waitpid(child, &status, 0) != child)
		die("waitpid");
	if (status)
		fprintf(stderr, "attacker: %s ended with status %#x\n", who, status);
	return status == 0;
}

int main(int count, char **args)
{
	if (count < 7)
		return 2;
	uid_t owner = strtoul(args[1], NULL, 10), attacker = strtoul(args[2], NULL, 10);
	char **server = args + 4, **client = server;
	while (*client && strcmp(*client, "--"))
		client++;
	if (!*client || !client[1])
		return 2;
	*client++ = NULL;
	enter_namespace();
	pid_t serves = start(owner, server);
	await_listener(owner, serves);
	int told[2];
	char first;
	if (pipe(told))
		die("pipe");
	fflush(stdout);
	pid_t attacks = fork();
	if (attacks < 0)
		die("fork");
	if (attacks == 0)
		be_stranger(owner, attacker, args[3], told[1]);
	close(told[1]);
	if (read(told[0], &first, 1) != 1) {
		fprintf(stderr, "attacker: ended before the first round\n");
		return 2;
	}
	pid_t calls = start(owner, client);
	int well = ended_well("the client", calls);
	well &= ended_well("the server", serves);
	kill(attacks, SIGTERM);
	well &= ended_well("the attacker", attacks);
	return !well;
}
