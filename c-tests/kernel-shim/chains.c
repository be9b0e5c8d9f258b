/* Chained attributes, and commands that a provider builds itself. */
#include "program.h"


static struct link driver_link, second_link;
static unsigned char driver_bytes[12], driver_answer[10];

void link_init(struct link *link, uint16_t object, uint16_t method, struct ibv_command_buffer *next)
{
	memset(link, 0, sizeof(*link));
	link->buffer.next = next;
	link->buffer.next_attr = link->attrs;
	link->buffer.last_attr = link->attrs + 8;
	link->buffer.uhw_in_idx = 0xff;
	link->buffer.uhw_out_idx = 0xff;
	link->buffer.hdr.object_id = object;
	link->buffer.hdr.method_id = method;
}

struct ib_uverbs_attr *link_attr(struct link *link, uint16_t id, uint16_t len, uint64_t data)
{
	struct ib_uverbs_attr *attr = link->buffer.next_attr++;

	attr->attr_id = id;
	attr->len = len;
	attr->flags = UVERBS_ATTR_F_MANDATORY;
	attr->data = data;
	return attr;
}

struct ibv_command_buffer *driver_chain(uint16_t object, uint16_t method)
{
	for (size_t i = 0; i < sizeof(driver_bytes); i++)
		driver_bytes[i] = (unsigned char)(0xd0 + i);
	STALE(driver_answer);
	link_init(&second_link, object, method, NULL);
	link_attr(&second_link, 0x1004, sizeof(driver_answer), (uintptr_t)driver_answer);
	link_init(&driver_link, object, method, &second_link.buffer);
	link_attr(&driver_link, 0x1003, sizeof(driver_bytes), (uintptr_t)driver_bytes);
	link_attr(&driver_link, 0x1005, 8, 0x1122334455667788);
	return &driver_link.buffer;
}

void dump_chain(void)
{
	DUMP(driver_answer);
	shim_note("  chained flags %u %u %u", driver_link.attrs[0].flags, driver_link.attrs[1].flags,
		  second_link.attrs[0].flags);
}

/* A driver-specific command: input object, driver request and response, and core request. */
void chains(void)
{
	static struct link inner, middle, outer;
	static unsigned char uhw[40], answer[16];

	for (size_t len = 4; len <= 12; len += 4) {
		for (size_t i = 0; i < sizeof(uhw); i++)
			uhw[i] = (unsigned char)(0xe0 + i);
		STALE(answer);
		link_init(&inner, 0x1007, 2, NULL);
		link_attr(&inner, UVERBS_ATTR_UHW_IN, (uint16_t)len, (uintptr_t)uhw);
		inner.buffer.uhw_in_idx = 0;
		link_attr(&inner, UVERBS_ATTR_UHW_OUT, sizeof(answer), (uintptr_t)answer);
		inner.buffer.uhw_out_idx = 1;
		link_init(&middle, 0x1007, 2, &inner.buffer);
		link_attr(&middle, 0x1009, 6, 0x665544332211);
		link_init(&outer, 0x1007, 2, &middle.buffer);
		link_attr(&outer, 0x100b, 0, 0x77)->attr_data.enum_data.elem_id = 3;
		link_attr(&outer, 0x100c, 8, (uintptr_t)answer + 8)->flags = 0;
		shim_note("final attrs %u", __ioctl_final_num_attrs(2, &middle.buffer));
		CALL(execute_ioctl(context, &outer.buffer));
		DUMP(answer);
		shim_note("  flags %u %u %u %u", outer.attrs[0].flags, outer.attrs[1].flags, middle.attrs[0].flags,
			  inner.attrs[1].flags);
	}
	link_init(&outer, 0x1008, 1, NULL);
	for (size_t len = 0; len <= 9; len += 3) {
		outer.buffer.next_attr = outer.attrs;
		link_attr(&outer, UVERBS_ATTR_UHW_IN, (uint16_t)len, (uintptr_t)uhw);
		outer.buffer.uhw_in_idx = 0;
		CALL(execute_ioctl(context, &outer.buffer));
	}
	shim_note("no link: %u", __ioctl_final_num_attrs(5, NULL));
	outer.buffer.buffer_error = 1;
	CALL(execute_ioctl(context, &outer.buffer));
}
