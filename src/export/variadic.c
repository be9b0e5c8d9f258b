/*
 * The two exported functions with a variable argument list, which stable Rust cannot define. Each
 * formats its arguments and hands plain bytes to Rust (variadic.rs).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define HIDDEN __attribute__((visibility("hidden")))

/* Defined in variadic.rs. */
HIDDEN int fv_log_is_wanted(uint32_t level) __asm__("fv.log_is_wanted");
HIDDEN void fv_log_write(const char *text, size_t len) __asm__("fv.log_write");
HIDDEN int fv_read_ibdev_file(char *buf, size_t size, const void *sysfs_dev, const char *name)
	__asm__("fv.read_ibdev_file");

HIDDEN void fv_verbs_log(void *context, uint32_t level, const char *format, ...)
{
	int saved = errno;
	char *text = NULL;
	va_list args;
	int len;

	(void)context;
	if (fv_log_is_wanted(level)) {
		va_start(args, format);
		len = vasprintf(&text, format, args);
		va_end(args);
		if (len > 0)
			fv_log_write(text, (size_t)len);
		if (len >= 0)
			free(text);
	}
	errno = saved;
}

HIDDEN int fv_read_ibdev_sysfs_file(char *buf, size_t size, const void *sysfs_dev,
				    const char *format, ...)
{
	char *name = NULL;
	va_list args;
	int result;

	if (!sysfs_dev) {
		errno = EINVAL;
		return -1;
	}
	va_start(args, format);
	result = vasprintf(&name, format, args);
	va_end(args);
	if (result < 0) {
		errno = ENOMEM;
		return -1;
	}
	result = fv_read_ibdev_file(buf, size, sysfs_dev, name);
	free(name);
	return result;
}
