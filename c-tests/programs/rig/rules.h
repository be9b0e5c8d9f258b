/*
 * Steering rules, specification by specification.
 */
#ifndef RULES_H
#define RULES_H

#include "packets.h"
#include <infiniband/verbs.h>

/* A steering rule under construction: attributes, then the specifications in sequence. */
struct rule {
	struct ibv_flow_attr attr;
	unsigned char specs[600];
	unsigned used;
};

struct rule rule_start(uint16_t priority);
void rule_add(struct rule *r, const void *spec, unsigned size);
void eth_spec(struct rule *r, unsigned inner, uint64_t dst, uint64_t src, uint16_t type, int vlan);
void ipv4_spec(struct rule *r, uint32_t src, uint32_t dst, uint32_t mask);
void port_spec(struct rule *r, unsigned kind, uint16_t src, uint16_t dst);
void tag_spec(struct rule *r, uint32_t tag);
void drop_spec(struct rule *r);
void count_spec(struct rule *r, struct ibv_counters *c);

#endif
