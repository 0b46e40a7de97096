/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* The addresses of a connection's ends, read from a program's context. */
#pragma once

#include "address.h"

/* The verifier wants each field of the context read at a place that is known. Compilers make of two branches that end alike one read
 * at a place that depends on the condition: therefore one function for each end, and this between the families. */
#define SEPARATE_READ(value) asm volatile("" : "+r"(value))

static always_inline void set_local(struct bpf_sock_ops *ops, __u32 *a)
{
	if (ops->family == AF_INET) {
		__u32 address = ops->local_ip4;
		SEPARATE_READ(address);
		set_ipv4(a, address);
	} else {
		a[0] = ops->local_ip6[0];
		a[1] = ops->local_ip6[1];
		a[2] = ops->local_ip6[2];
		a[3] = ops->local_ip6[3];
	}
}

static always_inline void set_remote(struct bpf_sock_ops *ops, __u32 *a)
{
	if (ops->family == AF_INET) {
		__u32 address = ops->remote_ip4;
		SEPARATE_READ(address);
		set_ipv4(a, address);
	} else {
		a[0] = ops->remote_ip6[0];
		a[1] = ops->remote_ip6[1];
		a[2] = ops->remote_ip6[2];
		a[3] = ops->remote_ip6[3];
	}
}
