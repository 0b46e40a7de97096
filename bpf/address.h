/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Addresses of IPv6, or of IPv4 mapped into it (RFC 4291, section 2.5.5.2), in network order. */
#pragma once

#include "helpers.h"

#define AF_INET 2
#define AF_INET6 10

static always_inline int is_mapped(const __u32 *a)
{
	return !a[0] && !a[1] && a[2] == __builtin_bswap32(0xffff);
}

static always_inline void set_ipv4(__u32 *a, __u32 address)
{
	a[0] = 0;
	a[1] = 0;
	a[2] = __builtin_bswap32(0xffff);
	a[3] = address;
}

static always_inline int is_loopback(const __u32 *a)
{
	if (is_mapped(a))
		return (a[3] & __builtin_bswap32(0xff000000)) == __builtin_bswap32(0x7f000000);
	return !a[0] && !a[1] && !a[2] && a[3] == __builtin_bswap32(1);
}

/* The address that a sidecar calls its application from: 127.0.0.6 or ::6. */
static always_inline int is_sidecar_source(const __u32 *a)
{
	if (is_mapped(a))
		return a[3] == __builtin_bswap32(0x7f000006);
	return !a[0] && !a[1] && !a[2] && a[3] == __builtin_bswap32(6);
}
