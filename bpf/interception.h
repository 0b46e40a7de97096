/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* What of a workload's traffic is left alone, where Istio's annotations say so (control/interception has the words). */
#pragma once

#include "helpers.h"

/* How many entries each list has room for. */
#define MOST 64

struct port_list {
	__u32 count;
	__u16 port[MOST];
};

struct group_list {
	__u32 count;
	__u32 id[MOST];
};

/* Addresses, mapped as in capture.h, that are equal where the mask has ones. */
struct range {
	__u64 address[2];
	__u64 mask[2];
};

struct range_list {
	__u32 count;
	__u32 unused;
	struct range range[MOST];
};

enum only {
	ONLY_RANGES = 1,        /* what is dialled is captured on the included ports and in the included ranges alone */
	ONLY_INBOUND_PORTS = 2, /* the inbound ports are those that are captured, instead of those that are not */
	ONLY_GROUPS = 4,        /* the groups are those that are captured */
};

struct rules {
	__u32 only;
	__u32 unused;
	struct port_list excluded_ports, included_ports, inbound_ports;
	struct group_list groups;
	struct range_list excluded_ranges, included_ranges;
};

static __attribute__((noinline)) int has_port(const struct port_list *l, __u32 port)
{
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < MOST; i++) {
		if (i >= l->count)
			return 0;
		if (l->port[i] == port)
			return 1;
	}
	return 0;
}

static __attribute__((noinline)) int has_group(const struct group_list *l, __u32 id)
{
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < MOST; i++) {
		if (i >= l->count)
			return 0;
		if (l->id[i] == id)
			return 1;
	}
	return 0;
}

static __attribute__((noinline)) int has_address(const struct range_list *l, __u64 high, __u64 low)
{
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < MOST; i++) {
		if (i >= l->count)
			return 0;
		const struct range *r = &l->range[i];
		if (!(((high ^ r->address[0]) & r->mask[0]) | ((low ^ r->address[1]) & r->mask[1])))
			return 1;
	}
	return 0;
}

/* Whether what a socket of a group dials elsewhere is captured. One without a group (-1) is left alone for none. */
static always_inline int is_captured(const struct rules *r, const __u32 *to, __u32 port, __u64 group)
{
	__u64 high = to[0] | (__u64)to[1] << 32, low = to[2] | (__u64)to[3] << 32;

	if (has_port(&r->excluded_ports, port))
		return 0;
	if (group <= 0xffffffff && has_group(&r->groups, group) != !!(r->only & ONLY_GROUPS))
		return 0;
	if (has_address(&r->excluded_ranges, high, low))
		return 0;
	return !(r->only & ONLY_RANGES) || has_port(&r->included_ports, port) || has_address(&r->included_ranges, high, low);
}

static always_inline int is_captured_inbound(const struct rules *r, __u32 port)
{
	return has_port(&r->inbound_ports, port) == !!(r->only & ONLY_INBOUND_PORTS);
}
