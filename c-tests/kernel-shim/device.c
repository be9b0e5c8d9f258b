/* Devices, ports, domains, regions, device memory and counters. */
#include <fcntl.h>

#include "program.h"

void device(void)
{
	static struct ibv_device_attr_ex attr;
	static struct ibv_query_device_ex_input input;
	static REQUEST(ib_uverbs_ex_query_device_resp) resp;
	static REQUEST(ibv_query_port) cmd;
	static struct ibv_port_attr port;
	static const size_t sizes[] = { 400, 396, 300, 280, 240, 232, 231, 500 };
	static const uint32_t lengths[] = { 304, 296, 256, 184, 176, 0 };
	static unsigned char room[512];
	size_t size;

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		STALE(room);
		shim_note("attr_size %zu", sizes[i]);
		shim_poke(180, 304);
		CALL(ibv_cmd_query_device_any(context, NULL, (void *)room, sizes[i], NULL, NULL));
		DUMP(room);
		shim_poke(0, 0);
	}
	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		STALE(attr);
		STALE(resp);
		size = sizeof(resp);
		shim_note("response_length %u", lengths[i]);
		shim_poke(180, lengths[i]);
		CALL(ibv_cmd_query_device_any(context, &input, &attr, sizeof(attr), &resp.core, &size));
		shim_note("  size %zu", size);
		DUMP(attr);
		DUMP(resp);
	}
	input.comp_mask = 1;
	CALL(ibv_cmd_query_device_any(context, &input, &attr, sizeof(attr), NULL, NULL));
	input.comp_mask = 0;
	/* A kernel without the extended command. */
	for (int error = 0; error < 3; error++) {
		static const int errors[] = { EOPNOTSUPP, ENOSYS, EINVAL };

		STALE(attr);
		STALE(resp);
		size = sizeof(resp);
		shim_fail_next(errors[error]);
		CALL(ibv_cmd_query_device_any(context, NULL, &attr, sizeof(attr), &resp.core, &size));
		shim_note("  size %zu", size);
		DUMP(attr);
		DUMP(resp);
	}

	FILL(cmd, 0x20);
	STALE(port);
	CALL(ibv_cmd_query_port(context, 3, &port, &cmd.core, sizeof(cmd.core)));
	DUMP(port);
	FILL(cmd, 0x20);
	STALE(port);
	CALL(ibv_cmd_query_port(context, 255, &port, &cmd.core, sizeof(cmd)));
	DUMP(port);
}

void domains(void)
{
	static REQUEST(ibv_alloc_pd) cmd;
	static REQUEST(ib_uverbs_alloc_pd_resp) resp;
	static REQUEST(ibv_open_xrcd) xcmd;
	static REQUEST(ib_uverbs_open_xrcd_resp) xresp;
	static struct ibv_xrcd_init_attr attr = { .comp_mask = 3, .fd = -1, .oflags = O_CREAT };

	STALE(other_pd);
	FILL(cmd, 0);
	STALE(resp);
	CALL(ibv_cmd_alloc_pd(context, &other_pd, &cmd.core, sizeof(cmd.core), &resp.core, sizeof(resp.core)));
	DUMP(other_pd);
	DUMP(resp);
	STALE(pd);
	FILL(cmd, 0x30);
	STALE(resp);
	CALL(ibv_cmd_alloc_pd(context, &pd, &cmd.core, sizeof(cmd), &resp.core, sizeof(resp)));
	DUMP(pd);
	DUMP(resp);

	STALE(xrcd);
	FILL(xcmd, 0x31);
	STALE(xresp);
	CALL(ibv_cmd_open_xrcd(context, &xrcd, sizeof(xrcd), &attr, &xcmd.core, sizeof(xcmd.core), &xresp.core,
			       sizeof(xresp.core)));
	DUMP(xrcd);
	STALE(xrcd);
	FILL(xcmd, 0x32);
	STALE(xresp);
	CALL(ibv_cmd_open_xrcd(context, &xrcd, 12, &attr, &xcmd.core, sizeof(xcmd), &xresp.core, sizeof(xresp)));
	DUMP(xrcd);
	DUMP(xresp);
	attr.comp_mask = 7;
	CALL(ibv_cmd_open_xrcd(context, &xrcd, sizeof(xrcd), &attr, &xcmd.core, sizeof(xcmd), &xresp.core,
			       sizeof(xresp)));
	attr.comp_mask = 1;
	CALL(ibv_cmd_open_xrcd(context, &xrcd, sizeof(xrcd), &attr, &xcmd.core, sizeof(xcmd), &xresp.core,
			       sizeof(xresp)));
	attr.comp_mask = 3;

	/* Handles for the later steps, whatever the results of the calls above. */
	pd.context = other_pd.context = xrcd.xrcd.context = context;
	pd.handle = 0x201;
	other_pd.handle = 0x202;
	xrcd.handle = 0x203;
	CALL(ibv_cmd_dealloc_pd(&other_pd));
	CALL(ibv_cmd_close_xrcd(&xrcd));
}

void regions(void)
{
	static REQUEST(ibv_reg_mr) cmd;
	static REQUEST(ib_uverbs_reg_mr_resp) resp;
	static REQUEST(ibv_rereg_mr) recmd;
	static REQUEST(ib_uverbs_rereg_mr_resp) reresp;
	static REQUEST(ibv_alloc_mw) mcmd;
	static REQUEST(ib_uverbs_alloc_mw_resp) mresp;
	static struct ibv_sge sges[2] = { { 0x1111, 0x22, 0x33 }, { 0x4444, 0x55, 0x66 } };

	STALE(mr);
	FILL(cmd, 0x40);
	STALE(resp);
	CALL(ibv_cmd_reg_mr(&pd, memory, sizeof(memory), 0xabcdef0123, 0xf, &mr, &cmd.core, sizeof(cmd), &resp.core,
			    sizeof(resp)));
	DUMP(mr);
	DUMP(resp);
	STALE(mr);
	FILL(cmd, 0x41);
	CALL(ibv_cmd_reg_mr(&pd, NULL, SIZE_MAX, 0, IBV_ACCESS_ON_DEMAND, &mr, &cmd.core, sizeof(cmd.core), &resp.core,
			    sizeof(resp.core)));
	DUMP(mr);
	CALL(ibv_cmd_reg_mr(&pd, memory, SIZE_MAX, 0, IBV_ACCESS_ON_DEMAND, &mr, &cmd.core, sizeof(cmd.core), &resp.core,
			    sizeof(resp.core)));
	CALL(ibv_cmd_reg_mr(&pd, memory, SIZE_MAX, 0, 0, &mr, &cmd.core, sizeof(cmd.core), &resp.core,
			    sizeof(resp.core)));
	mr.ibv_mr.context = context;
	mr.ibv_mr.handle = 0x301;

	for (uint32_t flags = 0; flags < 8; flags++) {
		FILL(recmd, 0x42);
		STALE(reresp);
		CALL(ibv_cmd_rereg_mr(&mr, flags, memory, 100, 0x99, 7, &other_pd, &recmd.core, sizeof(recmd), &reresp.core,
				      sizeof(reresp)));
		DUMP(mr);
		DUMP(reresp);
	}
	CALL(ibv_cmd_advise_mr(&pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH, sges, 2));
	CALL(ibv_cmd_advise_mr(&pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, sges, 0));
	CALL(ibv_cmd_advise_mr(&pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, sges, 4096));
	CALL(ibv_cmd_dereg_mr(&mr));
	STALE(mr);
	CALL(ibv_cmd_query_mr(&pd, &mr, 0x302));
	DUMP(mr);
	STALE(mr);
	CALL(ibv_cmd_reg_dmabuf_mr(&pd, 0x1000, 0x2000, 0x3000, 5, 3, &mr SINCE_54(, NULL)));
	DUMP(mr);
	CALL(ibv_cmd_reg_dmabuf_mr(&pd, 0, 1, 2, -1, 0, &mr SINCE_54(, NULL)));

	STALE(mw);
	FILL(mcmd, 0x43);
	STALE(mresp);
	CALL(ibv_cmd_alloc_mw(&pd, IBV_MW_TYPE_2, &mw, &mcmd.core, sizeof(mcmd), &mresp.core, sizeof(mresp)));
	DUMP(mw);
	DUMP(mresp);
	mw.context = context;
	mw.handle = 0x303;
	CALL(ibv_cmd_dealloc_mw(&mw));
}

void device_memory(void)
{
	static struct verbs_dm dm;
	static const struct ibv_alloc_dm_attr attr = { .length = 0x123456789a, .log_align_req = 6 };

	STALE(dm);
	CALL(ibv_cmd_alloc_dm(context, &attr, &dm, NULL));
	DUMP(dm);
	STALE(dm);
	CALL(ibv_cmd_alloc_dm(context, &attr, &dm, driver_chain(UVERBS_OBJECT_DM, UVERBS_METHOD_DM_ALLOC)));
	DUMP(dm);
	dump_chain();
	dm.dm.context = context;
	dm.handle = 0x304;
	STALE(mr);
	CALL(ibv_cmd_reg_dm_mr(&pd, &dm, 7, 9, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE, &mr, NULL));
	DUMP(mr);
	STALE(mr);
	CALL(ibv_cmd_reg_dm_mr(&pd, &dm, 7, 9, IBV_ACCESS_ZERO_BASED, &mr,
			       driver_chain(UVERBS_OBJECT_MR, UVERBS_METHOD_DM_MR_REG)));
	DUMP(mr);
	dump_chain();
	CALL(ibv_cmd_reg_dm_mr(&pd, &dm, 7, 9, IBV_ACCESS_LOCAL_WRITE, &mr, NULL));
	CALL(ibv_cmd_free_dm(&dm));
}

void all_counters(void)
{
	static struct verbs_counters counters;
	static struct ibv_counters_init_attr attr;
	static uint64_t values[3];

	STALE(counters);
	CALL(ibv_cmd_create_counters(context, &attr, &counters, NULL));
	DUMP(counters);
	STALE(counters);
	CALL(ibv_cmd_create_counters(context, &attr, &counters,
				     driver_chain(UVERBS_OBJECT_COUNTERS, UVERBS_METHOD_COUNTERS_CREATE)));
	DUMP(counters);
	dump_chain();
	attr.comp_mask = 1;
	CALL(ibv_cmd_create_counters(context, &attr, &counters, NULL));
	counters.counters.context = context;
	counters.handle = 0x305;
	STALE(values);
	CALL(ibv_cmd_read_counters(&counters, values, 3, 1, NULL));
	DUMP(values);
	STALE(values);
	CALL(ibv_cmd_read_counters(&counters, values, 1, 0, driver_chain(UVERBS_OBJECT_COUNTERS, UVERBS_METHOD_COUNTERS_READ)));
	DUMP(values);
	dump_chain();
	CALL(ibv_cmd_read_counters(&counters, values, 8192, 0, NULL));
	CALL(ibv_cmd_destroy_counters(&counters));
}

/* GIDs: by ioctl, else from the runner's sysfs tree. */
void gids(void)
{
	static struct ibv_gid_entry entry, entries[3];
	static union ibv_gid gid;
	unsigned int type;

	for (int index = 0; index < 4; index++) {
		STALE(gid);
		if (RESULT(ibv_query_gid(context, 1, index, &gid)) == 0)
			DUMP(gid);
		STALE(entry);
		if (RESULT(_ibv_query_gid_ex(context, 1, (uint32_t)index, &entry, 0, sizeof(entry))) == 0)
			DUMP(entry);
		type = 0xa5a5;
		if (RESULT(ibv_query_gid_type(context, 1, (unsigned int)index, &type)) == 0)
			shim_note("  type %u", type);
	}
	RESULT(_ibv_query_gid_ex(context, 1, 0, &entry, 1, sizeof(entry)));
	RESULT(_ibv_query_gid_ex(context, 9, 0, &entry, 0, sizeof(entry)));
	STALE(entries);
	shim_note("table");
	shim_poke(0, 0);
	shim_poke(4, 0);
	shim_note("  = %zd", _ibv_query_gid_table(context, entries, 0, 0, sizeof(entry)));
	shim_poke(0, 2);
	shim_poke(4, 0);
	if (_ibv_query_gid_table(context, entries, 3, 0, sizeof(entry)) == 2)
		dump("entries", entries, 2 * sizeof(entry));
	shim_note("  = %zd", _ibv_query_gid_table(context, entries, 4000, 0, sizeof(entry)));
}
