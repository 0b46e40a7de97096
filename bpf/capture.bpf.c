/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Capture: what a workload dials goes to its proxy, and so does who dials the workload; what it asks for names goes to the cluster's
 * DNS server. All without a packet filter. */
#include "capture.h"

/* Reading a socket's control group is for programs under the kernel's licence only; which the Apache one is not to it. */
char _license[] SEC("license") = "GPL";

/* Ports of a sidecar: where captured connections go, and what others may dial. */
volatile const __u32 outbound_port = 15001;
volatile const __u32 inbound_port = 15006;
volatile const __u32 health_port = 15021;
volatile const __u32 metrics_port = 15090;

/* Where the cluster's DNS server listens. Its port 53 may be another server's of the machine. */
volatile const __u32 dns_port = 15053;

/* How many connections that its proxy has not taken one workload may have: a 64th of what there is room for. */
volatile const __u32 max_pending = 4096;

/* How many blocks of ports all may have on which programs have listened: seven eighths of what there is room for, so that those
 * which the agent declares have room too. */
volatile const __u32 max_blocks = 57344;

/* Of the program `steered` alone, which each workload has its own of: the cookie of its network namespace, which the kernel
 * does not tell such programs. */
volatile const __u64 steered_netns = 0;

#define SLOTS 8

#define ECONNREFUSED 111
#define ENETUNREACH 101
#define IPPROTO_TCP 6
#define IPPROTO_UDP 17
#define IPPROTO_MPTCP 262
#define SOL_IP 0
#define SOL_IPV6 41
#define SO_ORIGINAL_DST 80
#define PAGE 4096
/* Where resolvers ask (RFC 1035, section 4.2). */
#define ASKED_PORT 53

struct sockaddr_in {
	__u16 family;
	__u16 port;
	__u32 address;
	__u64 unused;
};

struct sockaddr_in6 {
	__u16 family;
	__u16 port;
	__u32 flow;
	__u32 address[4];
	__u32 scope;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct workload);
} workloads SEC(".maps");

/* Of those workloads of which not everything is captured. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct rules);
} rules SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct usage);
} usages SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BLOCKS_COUNT);
	__type(key, enum block_count);
	__type(value, __s64);
} blocks SEC(".maps");

/* From when a client has its port until its proxy takes the connection. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 262144);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct client);
	__type(value, struct destination);
} pending SEC(".maps");

/* How many sockets of applications listen on which port. Blocks in which nobody listens any longer stay until the workload goes:
 * one that could be removed while another socket is being counted would have to be locked. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct block);
	__type(value, struct ports);
} ports SEC(".maps");

/* Where proxies take connections from outside. */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, 65536);
	__type(key, struct slot);
	__type(value, __u64);
} listeners SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct memory);
} memories SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNT_ROOM);
	__type(key, enum count);
	__type(value, __u64);
} counts SEC(".maps");

static always_inline void count(enum count what)
{
	__u64 *total = bpf_map_lookup_elem(&counts, &what);
	if (total)
		*total += 1;
}

static always_inline void copy(__u32 *to, const __u32 *from)
{
	to[0] = from[0];
	to[1] = from[1];
	to[2] = from[2];
	to[3] = from[3];
}

static always_inline int is_same(const __u32 *a, const __u32 *b)
{
	return a[0] == b[0] && a[1] == b[1] && a[2] == b[2] && a[3] == b[3];
}

/* No address, which as a destination means the machine itself. */
static always_inline int is_any(const __u32 *a)
{
	return !a[0] && !a[1] && (!a[2] || a[2] == __builtin_bswap32(0xffff)) && !a[3];
}

/* The group that a socket was made by, as nft's skgid has it; -1 where there is none, as of one that no program made. */
static always_inline __u64 group_of(struct bpf_sock *sk)
{
	struct tcp_sock *tcp = bpf_skc_to_tcp_sock(sk);
	if (!tcp)
		return -1;
	struct socket *s = tcp->inet_conn.icsk_inet.sk.sk_socket;
	if (!s)
		return -1;
	struct file *f = s->file;
	if (!f)
		return -1;
	const struct cred *c = f->f_cred;
	return c ? c->fsgid.val : -1ULL;
}

enum verdict {
	AS_IT_IS,
	TO_OUTBOUND,
	TO_INBOUND,
	TO_DNS,
	NO_DIRECT,
	NO_FAMILY,
};

/* Whether that is where a workload asks for names. */
static always_inline int is_asked(const struct workload *w, const __u32 *to, __u32 port)
{
	return port == ASKED_PORT && is_same(to, w->dns);
}

/* What becomes of a connection: by the rules of the packet filter that capture has otherwise (control/agent/network). */
static always_inline enum verdict judge(struct workload *w, struct rules *r, struct bpf_sock *sk, const __u32 *to, __u32 port, const __u32 *from)
{
	/* Its user would not do: a program that may change its user takes the proxy's. */
	int by_proxy = is_in_cgroup(sk, w->proxy);
	int loopback = is_loopback(to) || is_any(to);
	int local = loopback || is_same(to, w->address) || is_sidecar_source(to);

	/* The proxy could not tell where the connection was to go, and would be an open relay. */
	if ((port == outbound_port || port == inbound_port) && (local || !by_proxy))
		return NO_DIRECT;
	if (local)
		return by_proxy && !loopback && !is_sidecar_source(from) && !(r && has_port(&r->excluded_ports, port)) ? TO_INBOUND : AS_IT_IS;
	if (by_proxy)
		return AS_IT_IS;
	if (is_mapped(to) != is_mapped(w->address))
		return NO_FAMILY;
	if (is_asked(w, to, port))
		return TO_DNS;
	return !r || is_captured(r, to, port, group_of(sk)) ? TO_OUTBOUND : AS_IT_IS;
}

/* Notes where a socket's application meant to go. */
static always_inline int remember(struct bpf_sock *sk, const __u32 *address, __u32 port, __u32 kind)
{
	struct memory *m = bpf_sk_storage_get(&memories, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!m)
		return 0;
	copy(m->address, address);
	m->port = port;
	m->kind = kind;
	return 1;
}

static always_inline int refuse(int error, __u32 why)
{
	count(why);
	bpf_set_retval(-error);
	return 0;
}

/* Does with a connection what is to be done. Returns where it goes: 0 nowhere, 1 where it was to go, else the port. */
static always_inline __u32 direct(struct bpf_sock_addr *ctx, const __u32 *to, __u32 port, const __u32 *from, struct workload *w, __u64 netns)
{
	struct bpf_sock *sk = ctx->sk;
	if (!sk)
		return refuse(ECONNREFUSED, COUNT_REFUSED_MEMORY);
	enum verdict v = judge(w, bpf_map_lookup_elem(&rules, &netns), sk, to, port, from);
	if (v == NO_DIRECT)
		return refuse(ECONNREFUSED, COUNT_REFUSED_DIRECT);
	if (v == NO_FAMILY)
		return refuse(ENETUNREACH, COUNT_REFUSED_FAMILY);
	if (v == AS_IT_IS) {
		/* A socket may connect again, elsewhere. */
		struct memory *m = bpf_sk_storage_get(&memories, sk, 0, 0);
		if (m)
			m->kind = KIND_NONE;
		return 1;
	}
	if (!remember(sk, to, port, v == TO_DNS ? KIND_ASKING : KIND_DIALLED))
		return refuse(ECONNREFUSED, COUNT_REFUSED_MEMORY);
	if (v == TO_INBOUND)
		return inbound_port;
	if (v == TO_DNS) {
		count(COUNT_DNS);
		return dns_port;
	}
	count(COUNT_OUTBOUND);
	return outbound_port;
}

#include "capture_dns.h"

static always_inline int is_tcp(struct bpf_sock_addr *ctx)
{
	__u32 protocol = ctx->protocol;
	return protocol == IPPROTO_TCP || protocol == IPPROTO_MPTCP;
}

SEC("cgroup/connect4")
int connect4(struct bpf_sock_addr *ctx)
{
	__u64 netns = bpf_get_netns_cookie(ctx);
	struct workload *w = bpf_map_lookup_elem(&workloads, &netns);
	struct bpf_sock *sk = ctx->sk;
	if (!w || !sk || !(is_tcp(ctx) || is_udp(ctx)))
		return 1;
	__u32 to[4], from[4];
	set_ipv4(to, ctx->user_ip4);
	set_ipv4(from, sk->src_ip4);
	__u32 port = __builtin_bswap16(ctx->user_port);
	if (is_udp(ctx))
		port = direct_datagrams(ctx, to, port, w);
	else
		port = direct(ctx, to, port, from, w, netns);
	if (port < 2)
		return port;
	ctx->user_port = __builtin_bswap16(port);
	if (port == inbound_port || port == dns_port)
		return 1; /* The one listens on all addresses, the other on the one that was dialled. */
	ctx->user_ip4 = __builtin_bswap32(0x7f000001);
	if (is_any(from)) {
		/* The proxy sees the workload's address, as with a packet filter. One that has bound its port keeps what it has. */
		struct sockaddr_in source = {.family = AF_INET, .address = w->address[3]};
		bpf_bind(ctx, &source, sizeof source);
	}
	return 1;
}

SEC("cgroup/connect6")
int connect6(struct bpf_sock_addr *ctx)
{
	__u64 netns = bpf_get_netns_cookie(ctx);
	struct workload *w = bpf_map_lookup_elem(&workloads, &netns);
	struct bpf_sock *sk = ctx->sk;
	if (!w || !sk || !(is_tcp(ctx) || is_udp(ctx)))
		return 1;
	__u32 to[4] = {ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3]};
	__u32 from[4] = {sk->src_ip6[0], sk->src_ip6[1], sk->src_ip6[2], sk->src_ip6[3]};
	__u32 port = __builtin_bswap16(ctx->user_port);
	if (is_udp(ctx))
		port = direct_datagrams(ctx, to, port, w);
	else
		port = direct(ctx, to, port, from, w, netns);
	if (port < 2)
		return port;
	ctx->user_port = __builtin_bswap16(port);
	if (port == inbound_port || port == dns_port)
		return 1;
	/* IPv4 by a socket of IPv6 stays IPv4. */
	ctx->user_ip6[0] = 0;
	ctx->user_ip6[1] = 0;
	ctx->user_ip6[2] = is_mapped(to) ? __builtin_bswap32(0xffff) : 0;
	ctx->user_ip6[3] = is_mapped(to) ? __builtin_bswap32(0x7f000001) : __builtin_bswap32(1);
	if (is_any(from)) {
		struct sockaddr_in6 source = {.family = AF_INET6};
		copy(source.address, w->address);
		bpf_bind(ctx, &source, sizeof source);
	}
	return 1;
}

/* The address that was dialled, for the application that asks for its peer's. */
static always_inline struct memory *dialled(struct bpf_sock_addr *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	struct memory *m = sk ? bpf_sk_storage_get(&memories, sk, 0, 0) : 0;
	return m && m->kind == KIND_DIALLED ? m : 0;
}

SEC("cgroup/getpeername4")
int getpeername4(struct bpf_sock_addr *ctx)
{
	struct memory *m = dialled(ctx);
	if (!m)
		return show_asked4(ctx);
	ctx->user_ip4 = m->address[3];
	ctx->user_port = __builtin_bswap16(m->port);
	return 1;
}

SEC("cgroup/getpeername6")
int getpeername6(struct bpf_sock_addr *ctx)
{
	struct memory *m = dialled(ctx);
	if (!m)
		return show_asked6(ctx);
	ctx->user_ip6[0] = m->address[0];
	ctx->user_ip6[1] = m->address[1];
	ctx->user_ip6[2] = m->address[2];
	ctx->user_ip6[3] = m->address[3];
	ctx->user_port = __builtin_bswap16(m->port);
	return 1;
}

/* Whether a socket of the proxy's has the address that was dialled. It is told the port that it listens on instead, as with a packet
 * filter: a connection whose own address is the one that was dialled is one that nobody redirected, to Envoy and to ours. */
static always_inline int is_steered(struct bpf_sock_addr *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	struct memory *m = sk ? bpf_sk_storage_get(&memories, sk, 0, 0) : 0;
	return m && m->kind == KIND_STEERED;
}

SEC("cgroup/getsockname4")
int getsockname4(struct bpf_sock_addr *ctx)
{
	if (is_steered(ctx))
		ctx->user_port = __builtin_bswap16(inbound_port);
	return 1;
}

SEC("cgroup/getsockname6")
int getsockname6(struct bpf_sock_addr *ctx)
{
	if (is_steered(ctx))
		ctx->user_port = __builtin_bswap16(inbound_port);
	return 1;
}

/* SO_ORIGINAL_DST of the proxy's accepted sockets, of which the kernel knows nothing without a packet filter. */
SEC("cgroup/getsockopt")
int original(struct bpf_sockopt *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	if (ctx->optname == SO_ORIGINAL_DST && (ctx->level == SOL_IP || ctx->level == SOL_IPV6) && sk) {
		struct memory *m = bpf_sk_storage_get(&memories, sk, 0, 0);
		if (m && (m->kind == KIND_ACCEPTED || m->kind == KIND_STEERED) && is_mapped(m->address) == (ctx->level == SOL_IP)) {
			if (ctx->level == SOL_IP) {
				struct sockaddr_in *to = ctx->optval;
				if ((void *)(to + 1) > ctx->optval_end)
					return 1;
				to->family = AF_INET;
				to->port = __builtin_bswap16(m->port);
				to->address = m->address[3];
				to->unused = 0;
				ctx->optlen = sizeof *to;
			} else {
				struct sockaddr_in6 *to = ctx->optval;
				if ((void *)(to + 1) > ctx->optval_end)
					return 1;
				to->family = AF_INET6;
				to->port = __builtin_bswap16(m->port);
				to->flow = 0;
				copy(to->address, m->address);
				to->scope = 0;
				ctx->optlen = sizeof *to;
			}
			ctx->retval = 0;
			return 1;
		}
	}
	/* Longer answers than the program can see are to pass as they are. */
	if (ctx->optlen > PAGE)
		ctx->optlen = 0;
	return 1;
}

static always_inline void tell_of_states(struct bpf_sock_ops *ops)
{
	/* Other programs of the machine may have asked for calls of their own. */
	bpf_sock_ops_cb_flags_set(ops, ops->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG);
}

/* Forgets that a client is on its way, if it is that socket's. */
static always_inline int arrive(struct client *c, __u64 cookie)
{
	struct destination *d = bpf_map_lookup_elem(&pending, c);
	if (!d || d->cookie != cookie || bpf_map_delete_elem(&pending, c))
		return 0;
	/* The agent's are not counted. */
	struct usage *own = cookie ? bpf_map_lookup_elem(&usages, &c->netns) : 0;
	if (own)
		__sync_fetch_and_add(&own->pending, -1);
	return 1;
}

/* An application's socket has its port, and its first packet is about to go to the proxy. */
static __attribute__((noinline)) int connecting(struct bpf_sock_ops *ops)
{
	struct bpf_sock *sk = ops->sk;
	struct memory *m = sk ? bpf_sk_storage_get(&memories, sk, 0, 0) : 0;
	if (!m || m->kind != KIND_DIALLED)
		return 1;
	struct client c = {.netns = bpf_get_netns_cookie(ops), .port = ops->local_port};
	set_local(ops, c.address);
	struct usage *own = bpf_map_lookup_elem(&usages, &c.netns);
	if (!own || own->pending >= max_pending) {
		/* The proxy refuses the connection: it does not learn where it was to go. */
		count(COUNT_REFUSED_PENDING);
		return 1;
	}
	struct destination d = {.port = m->port, .cookie = bpf_get_socket_cookie(ops)};
	copy(d.address, m->address);
	long refused = bpf_map_update_elem(&pending, &c, &d, BPF_NOEXIST);
	if (!refused)
		__sync_fetch_and_add(&own->pending, 1);
	else if (bpf_map_update_elem(&pending, &c, &d, BPF_EXIST)) {
		count(COUNT_REFUSED_PENDING);
		return 1;
	}
	tell_of_states(ops);
	return 1;
}

/* A socket of a workload's namespace was made for a connection from outside of the socket. */
static __attribute__((noinline)) int taken(struct bpf_sock_ops *ops)
{
	struct bpf_sock *sk = ops->sk;
	__u64 netns = bpf_get_netns_cookie(ops);
	struct workload *w = bpf_map_lookup_elem(&workloads, &netns);
	if (!w || !sk || !is_in_cgroup(sk, w->proxy))
		return 1;
	__u32 port = ops->local_port;
	if (port == outbound_port || port == inbound_port) {
		struct client c = {.netns = netns, .port = __builtin_bswap32(ops->remote_port)};
		set_remote(ops, c.address);
		struct destination *found = bpf_map_lookup_elem(&pending, &c);
		if (!found)
			return 1;
		struct destination d = *found;
		/* Without the memory the proxy refuses it. */
		remember(sk, d.address, d.port, KIND_ACCEPTED);
		arrive(&c, d.cookie);
		return 1;
	}
	if (port == health_port || port == metrics_port)
		return 1;
	__u32 address[4];
	set_local(ops, address);
	if (is_loopback(address))
		return 1; /* The proxy's own ports there. */
	remember(sk, address, port, KIND_STEERED);
	return 1;
}

/* Makes a block of ports known, if its workload may have one more: as many as are free, so that one gets half of them at most and
 * there is room for the next (dynamic thresholds: Choudhury and Hahne, 1998). */
static always_inline void take(struct block *b)
{
	struct ports none = {};
	enum block_count which = BLOCKS_TAKEN;
	__s64 *taken = bpf_map_lookup_elem(&blocks, &which);
	which = BLOCKS_RETURNED;
	__s64 *returned = bpf_map_lookup_elem(&blocks, &which);
	struct usage *own = bpf_map_lookup_elem(&usages, &b->netns);
	if (!taken || !returned || !own || own->blocks >= (__s64)max_blocks - (*taken - *returned))
		return;
	if (bpf_map_update_elem(&ports, b, &none, BPF_NOEXIST))
		return;
	__sync_fetch_and_add(taken, 1);
	__sync_fetch_and_add(&own->blocks, 1);
}

static __attribute__((noinline)) int listening(struct bpf_sock_ops *ops)
{
	struct bpf_sock *sk = ops->sk;
	__u64 netns = bpf_get_netns_cookie(ops);
	struct workload *w = bpf_map_lookup_elem(&workloads, &netns);
	if (!w || !sk)
		return 1;
	__u32 number = ops->local_port;
	if (is_in_cgroup(sk, w->proxy)) {
		if (number != inbound_port)
			return 1;
#pragma unroll
		for (__u32 i = 0; i < SLOTS; i++) {
			struct slot s = {.netns = netns, .number = i};
			if (!bpf_sock_hash_update(ops, &listeners, &s, BPF_NOEXIST))
				return 1;
		}
		return 1; /* The kernel chooses among all of them, also those that are not known here. */
	}
	struct block b = {.netns = netns, .number = number / BLOCK};
	struct ports *p = bpf_map_lookup_elem(&ports, &b);
	if (!p) {
		take(&b);
		p = bpf_map_lookup_elem(&ports, &b);
	}
	__u32 nowhere[4] = {};
	if (!p || !remember(sk, nowhere, number, KIND_LISTENING)) {
		count(COUNT_REFUSED_PORTS);
		return 1;
	}
	__sync_fetch_and_add(&p->open[number % BLOCK], 1);
	tell_of_states(ops);
	return 1;
}

static __attribute__((noinline)) int changed(struct bpf_sock_ops *ops)
{
	struct bpf_sock *sk = ops->sk;
	if (!sk || ops->args[1] != BPF_TCP_CLOSE)
		return 1;
	struct memory *m = bpf_sk_storage_get(&memories, sk, 0, 0);
	if (!m)
		return 1;
	__u64 netns = bpf_get_netns_cookie(ops);
	if (m->kind == KIND_LISTENING) {
		__u32 number = m->port;
		struct block b = {.netns = netns, .number = number / BLOCK};
		struct ports *p = bpf_map_lookup_elem(&ports, &b);
		m->kind = KIND_NONE;
		if (p && p->open[number % BLOCK])
			__sync_fetch_and_add(&p->open[number % BLOCK], -1);
	} else if (m->kind == KIND_DIALLED) {
		struct client c = {.netns = netns, .port = ops->local_port};
		set_local(ops, c.address);
		arrive(&c, bpf_get_socket_cookie(ops));
	}
	return 1;
}

SEC("sockops")
int watched(struct bpf_sock_ops *ops)
{
	switch (ops->op) {
	case BPF_SOCK_OPS_TCP_CONNECT_CB:
		return connecting(ops);
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		return taken(ops);
	case BPF_SOCK_OPS_TCP_LISTEN_CB:
		return listening(ops);
	case BPF_SOCK_OPS_STATE_CB:
		return changed(ops);
	}
	return 1;
}

static always_inline int drop(__u32 why)
{
	count(why);
	return SK_DROP;
}

static always_inline void set_source(struct bpf_sk_lookup *ctx, __u32 *a)
{
	if (ctx->family == AF_INET) {
		__u32 address = ctx->remote_ip4;
		SEPARATE_READ(address);
		set_ipv4(a, address);
	} else {
		a[0] = ctx->remote_ip6[0];
		a[1] = ctx->remote_ip6[1];
		a[2] = ctx->remote_ip6[2];
		a[3] = ctx->remote_ip6[3];
	}
}

/* Runs for packets to a workload's namespace that belong to no connection. */
SEC("sk_lookup")
int steered(struct bpf_sk_lookup *ctx)
{
	if (ctx->protocol != IPPROTO_TCP)
		return SK_PASS;
	__u64 netns = steered_netns;
	struct workload *w = bpf_map_lookup_elem(&workloads, &netns);
	if (!w)
		return drop(COUNT_REFUSED_NO_PROXY);
	__u32 from[4];
	set_source(ctx, from);
	/* Within the workload: from its proxy, or between its parts, whose connect(2) is looked at above. By the source, since the
	 * kernel calls the interface with the address the one on which such packets come. Whoever sends them from outside gets no
	 * answer: that stays inside. */
	if (is_loopback(from) || is_sidecar_source(from) || is_same(from, w->address))
		return SK_PASS;
	__u32 number = ctx->local_port;
	if (number == outbound_port || number == inbound_port)
		return drop(COUNT_REFUSED_DIRECT);
	if (is_mapped(from) != is_mapped(w->address))
		return drop(COUNT_REFUSED_FAMILY);
	if (number == health_port || number == metrics_port)
		return SK_PASS;
	struct rules *r = bpf_map_lookup_elem(&rules, &netns);
	if (r && !is_captured_inbound(r, number))
		return SK_PASS;

	/* Each connection holds its local port, which is the dialled one. If all ports were taken, strangers could hold all those that
	 * the workload dials from. */
	struct block b = {.netns = netns, .number = number / BLOCK};
	struct ports *p = bpf_map_lookup_elem(&ports, &b);
	if (!p || !p->open[number % BLOCK]) {
		b.declared = 1;
		p = bpf_map_lookup_elem(&ports, &b);
		if (!p || !p->open[number % BLOCK])
			return drop(COUNT_REFUSED_CLOSED);
	}
#pragma unroll
	for (__u32 i = 0; i < SLOTS; i++) {
		struct slot s = {.netns = netns, .number = i};
		struct bpf_sock *proxy = bpf_map_lookup_elem(&listeners, &s);
		if (!proxy)
			continue;
		if (proxy->state != BPF_TCP_LISTEN) {
			/* Shut down, and not closed yet. */
			bpf_sk_release(proxy);
			continue;
		}
		long refused = bpf_sk_assign(ctx, proxy, 0);
		bpf_sk_release(proxy);
		if (refused)
			return drop(COUNT_REFUSED_NO_PROXY);
		count(COUNT_INBOUND);
		return SK_PASS;
	}
	return drop(COUNT_REFUSED_NO_PROXY);
}
