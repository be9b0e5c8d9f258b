/*
 * Opens the first device and prints which files and folders named by its environment it uses.
 *
 * privileged KIND:PATH...
 *
 * KIND is `mapped` (the file is mapped), `there` (the file exists) or `filled` (the folder is not
 * empty). Prints a line for each true argument.
 */
#include <dirent.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

static int is_mapped(const char *path)
{
	char line[4096];
	int found = 0;
	FILE *maps = fopen("/proc/self/maps", "r");
	while (maps && fgets(line, sizeof line, maps))
		found |= strstr(line, path) != NULL;
	if (maps)
		fclose(maps);
	return found;
}

static int is_filled(const char *path)
{
	int found = 0;
	struct dirent *entry;
	DIR *dir = opendir(path);
	while (dir && (entry = readdir(dir)))
		found |= entry->d_name[0] != '.';
	if (dir)
		closedir(dir);
	return found;
}

int main(int count, char **args)
{
	int devices = 0;
	struct ibv_device **list = ibv_get_device_list(&devices);
	struct ibv_context *context = devices ? ibv_open_device(list[0]) : NULL;
	if (!context) {
		perror("privileged: no device");
		return 2;
	}
	printf("privileged %d\n", getauxval(AT_SECURE) != 0);
	for (int at = 1; at < count; at++) {
		const char *path = strchr(args[at], ':') + 1;
		int is_so = args[at][0] == 'm' ? is_mapped(path) :
			    args[at][0] == 't' ? access(path, F_OK) == 0 :
						 is_filled(path);
		if (is_so)
			printf("used %s\n", path);
	}
	ibv_close_device(context);
	ibv_free_device_list(list);
	return 0;
}
