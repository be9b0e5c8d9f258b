/*
 * Steering rules, specification by specification.
 */
#include "rules.h"

struct rule rule_start(uint16_t priority)
{
	struct rule r = { .attr = { .type = IBV_FLOW_ATTR_NORMAL, .port = 1, .priority = priority } };
	return r;
}

void rule_add(struct rule *r, const void *spec, unsigned size)
{
	memcpy(r->specs + r->used, spec, size);
	r->used += size;
	r->attr.num_of_specs++;
	r->attr.size = (uint16_t)(sizeof r->attr + r->used);
}

void eth_spec(struct rule *r, unsigned inner, uint64_t dst, uint64_t src, uint16_t type, int vlan)
{
	struct ibv_flow_spec_eth s = { .type = IBV_FLOW_SPEC_ETH | inner, .size = sizeof s };
	if (dst) {
		be(s.val.dst_mac, dst, 6);
		memset(s.mask.dst_mac, 0xff, 6);
	}
	if (src) {
		be(s.val.src_mac, src, 6);
		memset(s.mask.src_mac, 0xff, 6);
	}
	if (type) {
		be((unsigned char *)&s.val.ether_type, type, 2);
		s.mask.ether_type = 0xffff;
	}
	if (vlan >= 0) {
		be((unsigned char *)&s.val.vlan_tag, (uint64_t)vlan, 2);
		be((unsigned char *)&s.mask.vlan_tag, 0x0fff, 2);
	}
	rule_add(r, &s, sizeof s);
}

void ipv4_spec(struct rule *r, uint32_t src, uint32_t dst, uint32_t mask)
{
	struct ibv_flow_spec_ipv4 s = { .type = IBV_FLOW_SPEC_IPV4, .size = sizeof s };
	be((unsigned char *)&s.val.src_ip, src, 4);
	be((unsigned char *)&s.val.dst_ip, dst, 4);
	be((unsigned char *)&s.mask.src_ip, src ? mask : 0, 4);
	be((unsigned char *)&s.mask.dst_ip, dst ? mask : 0, 4);
	rule_add(r, &s, sizeof s);
}

void port_spec(struct rule *r, unsigned kind, uint16_t src, uint16_t dst)
{
	struct ibv_flow_spec_tcp_udp s = { .type = kind, .size = sizeof s };
	be((unsigned char *)&s.val.src_port, src, 2);
	be((unsigned char *)&s.val.dst_port, dst, 2);
	s.mask.src_port = src ? 0xffff : 0;
	s.mask.dst_port = dst ? 0xffff : 0;
	rule_add(r, &s, sizeof s);
}

void tag_spec(struct rule *r, uint32_t tag)
{
	struct ibv_flow_spec_action_tag s = { .type = IBV_FLOW_SPEC_ACTION_TAG, .size = sizeof s, .tag_id = tag };
	rule_add(r, &s, sizeof s);
}

void drop_spec(struct rule *r)
{
	struct ibv_flow_spec_action_drop s = { .type = IBV_FLOW_SPEC_ACTION_DROP, .size = sizeof s };
	rule_add(r, &s, sizeof s);
}

void count_spec(struct rule *r, struct ibv_counters *c)
{
	struct ibv_flow_spec_counter_action s = { .type = IBV_FLOW_SPEC_ACTION_COUNT, .size = sizeof s, .counters = c };
	rule_add(r, &s, sizeof s);
}
