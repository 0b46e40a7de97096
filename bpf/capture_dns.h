/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* What goes to port 53 of the cluster's DNS server goes to the port where it listens, and what comes from there comes from port 53 to
 * the application, which takes no other answers. A part of capture.bpf.c, with whose maps it works.
 *
 * A socket of datagrams that has a peer is looked at once, when it connects; one without with each datagram. It may ask other servers
 * too: those are left alone. */
#pragma once

static always_inline int is_udp(struct bpf_sock_addr *ctx)
{
	return ctx->protocol == IPPROTO_UDP;
}

/* Whether a proxy connects or sends. By its program, as the kernel does not tell the group of a socket of datagrams; into the
 * proxy's nobody comes who is not put there. */
static always_inline int is_by_proxy(const struct workload *w)
{
	return bpf_get_current_cgroup_id() == w->proxy;
}

/* Does with a socket of datagrams that connects what is to be done. Returns as direct does. */
static always_inline __u32 direct_datagrams(struct bpf_sock_addr *ctx, const __u32 *to, __u32 port, const struct workload *w)
{
	struct bpf_sock *sk = ctx->sk;
	if (!sk)
		return refuse(ECONNREFUSED, COUNT_REFUSED_MEMORY);
	if (!is_asked(w, to, port) || is_by_proxy(w)) {
		/* A socket may connect again: here to a peer that its application knows by the other port. */
		struct memory *m = bpf_sk_storage_get(&memories, sk, 0, 0);
		if (m && port == dns_port && is_same(to, m->address))
			m->kind = KIND_NONE;
		return 1;
	}
	if (!remember(sk, to, port, KIND_ASKING))
		return refuse(ECONNREFUSED, COUNT_REFUSED_MEMORY);
	count(COUNT_DNS);
	return dns_port;
}

/* A datagram that says where it goes; its socket may have another peer. */
static always_inline int send(struct bpf_sock_addr *ctx, const __u32 *to, __u32 port)
{
	__u64 netns = bpf_get_netns_cookie(ctx);
	struct workload *w = bpf_map_lookup_elem(&workloads, &netns);
	struct bpf_sock *sk = ctx->sk;
	if (!w || !sk || !is_asked(w, to, port) || is_by_proxy(w))
		return 1;
	if (!remember(sk, to, port, KIND_ASKING))
		return refuse(ECONNREFUSED, COUNT_REFUSED_MEMORY);
	count(COUNT_DNS);
	ctx->user_port = __builtin_bswap16(dns_port);
	return 1;
}

/* Also for sockets of IPv6 that send to addresses of IPv4. */
SEC("cgroup/sendmsg4")
int sendmsg4(struct bpf_sock_addr *ctx)
{
	__u32 port = __builtin_bswap16(ctx->user_port);
	if (port != ASKED_PORT || !is_udp(ctx))
		return 1;
	__u32 to[4];
	set_ipv4(to, ctx->user_ip4);
	return send(ctx, to, port);
}

SEC("cgroup/sendmsg6")
int sendmsg6(struct bpf_sock_addr *ctx)
{
	__u32 port = __builtin_bswap16(ctx->user_port);
	if (port != ASKED_PORT || !is_udp(ctx))
		return 1;
	__u32 to[4] = {ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3]};
	return send(ctx, to, port);
}

/* Whether an address is the one at which the socket's application has asked for names. */
static always_inline int has_asked(struct bpf_sock_addr *ctx, const __u32 *address)
{
	struct bpf_sock *sk = ctx->sk;
	struct memory *m = sk ? bpf_sk_storage_get(&memories, sk, 0, 0) : 0;
	return m && m->kind == KIND_ASKING && is_same(address, m->address);
}

/* Shows an application the port that it asked instead of the one where the server listens. */
static always_inline int show_asked4(struct bpf_sock_addr *ctx)
{
	if (__builtin_bswap16(ctx->user_port) != dns_port)
		return 1;
	__u32 address[4];
	set_ipv4(address, ctx->user_ip4);
	if (has_asked(ctx, address))
		ctx->user_port = __builtin_bswap16(ASKED_PORT);
	return 1;
}

static always_inline int show_asked6(struct bpf_sock_addr *ctx)
{
	if (__builtin_bswap16(ctx->user_port) != dns_port)
		return 1;
	__u32 address[4] = {ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3]};
	if (has_asked(ctx, address))
		ctx->user_port = __builtin_bswap16(ASKED_PORT);
	return 1;
}

SEC("cgroup/recvmsg4")
int recvmsg4(struct bpf_sock_addr *ctx)
{
	return show_asked4(ctx);
}

SEC("cgroup/recvmsg6")
int recvmsg6(struct bpf_sock_addr *ctx)
{
	return show_asked6(ctx);
}
