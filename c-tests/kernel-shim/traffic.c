/* Posting, multicast, address handles and flow steering. */
#include "program.h"

void posting(void)
{
	static struct ibv_ah ah = { .handle = 0x702 };
	static struct ibv_sge sges[3] = { { 0x1000, 0x20, 0x30 }, { 0x4000, 0x50, 0x60 }, { 0x7000, 0x80, 0x90 } };
	static struct ibv_send_wr send[5];
	static struct ibv_recv_wr recv[3];
	struct ibv_send_wr *bad_send;
	struct ibv_recv_wr *bad_recv;
	static const unsigned int types[] = { IBV_QPT_RC, IBV_QPT_UD };

	send[0] = (struct ibv_send_wr){ .wr_id = 0x11, .opcode = IBV_WR_RDMA_WRITE, .sg_list = sges, .num_sge = 2,
					.wr.rdma = { 0x1234567890, 0x55 } };
	send[1] = (struct ibv_send_wr){ .wr_id = 0x12, .opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .imm_data = 0x99,
					.wr.rdma = { 0x22, 0x56 }, .send_flags = IBV_SEND_SIGNALED };
	send[2] = (struct ibv_send_wr){ .wr_id = 0x13, .opcode = IBV_WR_RDMA_READ, .sg_list = &sges[2], .num_sge = 1,
					.wr.rdma = { 0x23, 0x57 } };
	send[3] = (struct ibv_send_wr){ .wr_id = 0x14, .opcode = IBV_WR_ATOMIC_CMP_AND_SWP, .sg_list = sges, .num_sge = 1,
					.wr.atomic = { 0x24, 0x58, 0x59, 0x5a } };
	send[4] = (struct ibv_send_wr){ .wr_id = 0x15, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
					.wr.atomic = { 0x25, 0x5b, 0x5c, 0x5d } };
	for (int i = 0; i < 4; i++)
		send[i].next = &send[i + 1];

	for (size_t t = 0; t < 2; t++) {
		qp.qp.qp_type = types[t];
		if (types[t] == IBV_QPT_UD)
			for (int i = 0; i < 5; i++) {
				send[i].opcode = i % 2 ? IBV_WR_SEND : IBV_WR_SEND_WITH_IMM;
				send[i].wr.ud.ah = &ah;
				send[i].wr.ud.remote_qpn = 0x66;
				send[i].wr.ud.remote_qkey = 0x67;
			}
		for (uint32_t bad = 0; bad < 6; bad += 2) {
			bad_send = NULL;
			shim_poke(0, bad);
			CALL(ibv_cmd_post_send(&qp.qp, send, &bad_send));
			shim_note("  bad %d", bad_send ? (int)(bad_send - send) : -1);
		}
	}
	bad_send = NULL;
	shim_fail_next(ENOMEM);
	CALL(ibv_cmd_post_send(&qp.qp, send, &bad_send));
	shim_note("  bad %d", bad_send ? (int)(bad_send - send) : -1);

	for (int i = 0; i < 3; i++) {
		recv[i].wr_id = (uint64_t)0x31 + (uint64_t)i;
		recv[i].sg_list = sges + i;
		recv[i].num_sge = i;
		recv[i].next = i < 2 ? &recv[i + 1] : NULL;
	}
	recv[2].num_sge = 1;
	for (uint32_t bad = 0; bad < 4; bad++) {
		bad_recv = NULL;
		shim_poke(0, bad);
		CALL(ibv_cmd_post_recv(&qp.qp, recv, &bad_recv));
		shim_note("  bad %d", bad_recv ? (int)(bad_recv - recv) : -1);
		bad_recv = NULL;
		shim_poke(0, bad);
		CALL(ibv_cmd_post_srq_recv(&srq.srq, recv, &bad_recv));
		shim_note("  bad %d", bad_recv ? (int)(bad_recv - recv) : -1);
	}
	bad_recv = NULL;
	shim_fail_next(EINVAL);
	CALL(ibv_cmd_post_srq_recv(&srq.srq, recv, &bad_recv));
	shim_note("  bad %d", bad_recv ? (int)(bad_recv - recv) : -1);
}

void addresses(void)
{
	static struct ibv_ah ah;
	static struct ibv_ah_attr attr;
	static REQUEST(ib_uverbs_create_ah_resp) resp;
	static union ibv_gid gid;

	for (size_t i = 0; i < sizeof(attr); i++)
		((unsigned char *)&attr)[i] = (unsigned char)(i + 1);
	for (size_t i = 0; i < sizeof(gid); i++)
		gid.raw[i] = (unsigned char)(0xf0 + i);
	STALE(ah);
	STALE(resp);
	CALL(ibv_cmd_create_ah(&pd, &ah, &attr, &resp.core, sizeof(resp.core)));
	DUMP(ah);
	STALE(ah);
	STALE(resp);
	CALL(ibv_cmd_create_ah(&pd, &ah, &attr, &resp.core, sizeof(resp)));
	DUMP(ah);
	DUMP(resp);
	ah.context = context;
	ah.handle = 0x701;
	CALL(ibv_cmd_destroy_ah(&ah));
	CALL(ibv_cmd_attach_mcast(&qp.qp, &gid, 0xc001));
	CALL(ibv_cmd_detach_mcast(&qp.qp, &gid, 0xc001));
}

/* Any specification, with telling bytes behind its head. */
struct rule {
	struct ibv_flow_attr attr;
	unsigned char specs[512];
};

static unsigned char *add_spec(struct rule *rule, size_t *used, unsigned int type, uint16_t size)
{
	unsigned char *spec = rule->specs + *used;

	for (uint16_t i = 6; i < size; i++)
		spec[i] = (unsigned char)(i + type);
	memcpy(spec, &type, sizeof(type));
	memcpy(spec + 4, &size, sizeof(size));
	*used += size;
	rule->attr.num_of_specs++;
	rule->attr.size = (uint16_t)(sizeof(rule->attr) + *used);
	return spec;
}

static void one_rule(struct rule *rule)
{
	static struct ibv_flow flow;
	static unsigned char ucmd[16] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 };

	STALE(flow);
	CALL(ibv_cmd_create_flow(&qp.qp, &flow, &rule->attr, ucmd, sizeof(ucmd)));
	DUMP(flow);
}

void flows(void)
{
	static struct rule rule;
	static struct ibv_flow flow;
	static struct verbs_flow_action action = { .handle = 0x801 };
	static struct verbs_counters counters = { .handle = 0x802 };
	static const struct { unsigned int type; uint16_t size; int unmask; } specs[] = {
		{ IBV_FLOW_SPEC_ETH, sizeof(struct ibv_flow_spec_eth), 0 },
		{ IBV_FLOW_SPEC_ETH | IBV_FLOW_SPEC_INNER, sizeof(struct ibv_flow_spec_eth), 0 },
		{ IBV_FLOW_SPEC_IPV4, sizeof(struct ibv_flow_spec_ipv4), 0 },
		{ IBV_FLOW_SPEC_IPV4_EXT, sizeof(struct ibv_flow_spec_ipv4_ext), 0 },
		{ IBV_FLOW_SPEC_IPV4_EXT | IBV_FLOW_SPEC_INNER, sizeof(struct ibv_flow_spec_ipv4_ext), 0 },
		{ IBV_FLOW_SPEC_IPV4_EXT, 30, 0 },
		{ IBV_FLOW_SPEC_IPV4_EXT, 40, 0 },
		{ IBV_FLOW_SPEC_IPV4_EXT, 40, 1 },
		{ IBV_FLOW_SPEC_IPV6, sizeof(struct ibv_flow_spec_ipv6), 0 },
		{ IBV_FLOW_SPEC_IPV6, 86, 0 },
		{ IBV_FLOW_SPEC_IPV6, 84, 0 },
		{ IBV_FLOW_SPEC_IPV6, 96, 0 },
		{ IBV_FLOW_SPEC_IPV6, 96, 1 },
		{ IBV_FLOW_SPEC_ESP, sizeof(struct ibv_flow_spec_esp), 0 },
		{ IBV_FLOW_SPEC_TCP, sizeof(struct ibv_flow_spec_tcp_udp), 0 },
		{ IBV_FLOW_SPEC_UDP | IBV_FLOW_SPEC_INNER, sizeof(struct ibv_flow_spec_tcp_udp), 0 },
		{ IBV_FLOW_SPEC_VXLAN_TUNNEL, sizeof(struct ibv_flow_spec_tunnel), 0 },
		{ IBV_FLOW_SPEC_VXLAN_TUNNEL, 14, 0 },
		{ IBV_FLOW_SPEC_VXLAN_TUNNEL, 24, 0 },
		{ IBV_FLOW_SPEC_VXLAN_TUNNEL, 24, 1 },
		{ IBV_FLOW_SPEC_GRE, sizeof(struct ibv_flow_spec_gre), 0 },
		{ IBV_FLOW_SPEC_MPLS, sizeof(struct ibv_flow_spec_mpls), 0 },
		{ IBV_FLOW_SPEC_ACTION_TAG, sizeof(struct ibv_flow_spec_action_tag), 0 },
		{ IBV_FLOW_SPEC_ACTION_DROP, sizeof(struct ibv_flow_spec_action_drop), 0 },
		{ 0x77, 16, 0 },
	};

	for (size_t s = 0; s < sizeof(specs) / sizeof(specs[0]); s++) {
		unsigned char *spec;
		size_t used = 0;

		memset(&rule, 0, sizeof(rule));
		rule.attr = (struct ibv_flow_attr){ .type = IBV_FLOW_ATTR_NORMAL, .priority = 0x1234, .port = 2, .flags = 6 };
		spec = add_spec(&rule, &used, specs[s].type, specs[s].size);
		if (specs[s].unmask)
			memset(spec + 8 + (specs[s].size - 8) / 2, 0, (specs[s].size - 8) / 2);
		shim_note("type %#x size %u", specs[s].type, specs[s].size);
		one_rule(&rule);
	}

	/* Several actions in one rule, with the objects that the actions name. */
	{
		struct ibv_flow_action *action_at = &action.action;
		struct ibv_counters *counters_at = &counters.counters;
		size_t used = 0;

		memset(&rule, 0, sizeof(rule));
		rule.attr = (struct ibv_flow_attr){ .type = IBV_FLOW_ATTR_SNIFFER, .priority = 1, .port = 1 };
		add_spec(&rule, &used, IBV_FLOW_SPEC_ETH, sizeof(struct ibv_flow_spec_eth));
		memcpy(add_spec(&rule, &used, IBV_FLOW_SPEC_ACTION_HANDLE, sizeof(struct ibv_flow_spec_action_handle)) + 8,
		       &action_at, sizeof(action_at));
		memcpy(add_spec(&rule, &used, IBV_FLOW_SPEC_ACTION_COUNT, sizeof(struct ibv_flow_spec_counter_action)) + 8,
		       &counters_at, sizeof(counters_at));
		add_spec(&rule, &used, IBV_FLOW_SPEC_TCP, sizeof(struct ibv_flow_spec_tcp_udp));
		one_rule(&rule);
		rule.attr.comp_mask = 1;
		one_rule(&rule);
		memset(&rule, 0, sizeof(rule));
		rule.attr.size = sizeof(rule.attr);
		STALE(flow);
		CALL(ibv_cmd_create_flow(&qp.qp, &flow, &rule.attr, NULL, 0));
		DUMP(flow);
	}
	flow.context = context;
	flow.handle = 0x803;
	CALL(ibv_cmd_destroy_flow(&flow));
}

void flow_actions(void)
{
	static struct verbs_flow_action action;
	static struct ib_uverbs_flow_action_esp esp = { 1, 2, 3, 4, 5 };
	static struct ib_uverbs_flow_action_esp_keymat_aes_gcm keymat = { .iv = 6, .key_len = 7 };
	static struct ib_uverbs_flow_action_esp_replay_bmp replay = { 8 };
	static struct ib_uverbs_flow_action_esp_encap encap = { .len = 9, .type = 10 };
	struct ibv_flow_action_esp_attr attr = {
		.esp_attr = &esp,
		.keymat_proto = IB_UVERBS_FLOW_ACTION_ESP_KEYMAT_AES_GCM,
		.keymat_len = sizeof(keymat),
		.keymat_ptr = &keymat,
		.replay_proto = IB_UVERBS_FLOW_ACTION_ESP_REPLAY_BMP,
		.replay_len = sizeof(replay),
		.replay_ptr = &replay,
		.esp_encap = &encap,
		.comp_mask = IBV_FLOW_ACTION_ESP_MASK_ESN,
		.esn = 11,
	};

	for (int less = 0; less < 7; less++) {
		if (less == 1)
			attr.comp_mask = 0;
		if (less == 2)
			attr.esp_encap = NULL;
		if (less == 3)
			attr.replay_ptr = NULL;
		if (less == 4)
			attr.keymat_ptr = NULL;
		if (less == 5)
			attr.esp_attr = NULL;
		if (less == 6)
			attr.comp_mask = 2;
		STALE(action);
		CALL(ibv_cmd_create_flow_action_esp(context, &attr, &action,
						    less == 1 ? driver_chain(UVERBS_OBJECT_FLOW_ACTION,
									     UVERBS_METHOD_FLOW_ACTION_ESP_CREATE) :
								NULL));
		DUMP(action);
		action.action.context = context;
		action.handle = 0x804;
		CALL(ibv_cmd_modify_flow_action_esp(&action, &attr,
						    less == 1 ? driver_chain(UVERBS_OBJECT_FLOW_ACTION,
									     UVERBS_METHOD_FLOW_ACTION_ESP_MODIFY) :
								NULL));
	}
	CALL(ibv_cmd_destroy_flow_action(&action));
}
