/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* The bypass: what a socket sends to a proxy on the same host goes into the proxy's receive queue, past TCP/IP. */
#include "bypass.h"

/* The helper that reads the kernel's memory is for programs under its licence only; which the Apache one is not to it. */
char _license[] SEC("license") = "GPL";

/* Ports of a sidecar, to which the packet filter brings connections; capture by eBPF leaves those inbound the port that was dialled. */
volatile const __u32 outbound_port = 15001;
volatile const __u32 inbound_port = 15006;
/* Its other ports, whose clients may be anybody. */
volatile const __u32 health_port = 15021;
volatile const __u32 metrics_port = 15090;
/* How many bytes a peer may leave unread before the rest goes by TCP, whose window then holds the sender back: sk_msg knows no
 * such bound. More than a proxy reads at once (BATCH, 64 KiB), which its readiness depends on. */
#define MAX_QUEUED (128 << 10)
/* How many messages: the kernel keeps a kilobyte for each, a byte's too, and charges nobody. */
#define MAX_UNREAD 512
/* Therefore there is room for so many of all connections together, beyond UNREAD_FREE of each: an eighth as many times
 * MESSAGES_TOGETHER as sockets, 256 MiB. That many are taken and given back at once. */
#define UNREAD_FREE 2
#define MESSAGES_TOGETHER 32
/* A client without a peer here talks to another host: it is not looked for any longer after that many messages. */
#define MAX_UNPAIRED 16

/* How many sockets are recorded at most. */
volatile const __u32 max_sockets = 65536;

/* 0 has connections go back to TCP, each when its peer has read everything. */
volatile __u32 enabled = 1;

struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, __u64);
} sockets SEC(".maps");

/* What all workloads have, and each, by its network namespace. The least recently used namespace is forgotten when there are too
 * many: it may then have more than its share, but all together never more than there is room. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct share);
} recorded SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u64);
	__type(value, struct share);
} shares SEC(".maps");

/* Sockets that are recorded, by their cookies: the kernel does not let a program ask the hash for one that it does not send to. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, __u8);
} open SEC(".maps");

/* By the receiver's cookie: what a sender that is closed has had it keep. Only of open receivers. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct left);
} left SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct workload);
} workloads SEC(".maps");

/* Clients whose handshake's other end has not been seen: for good, where it is on another host. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct handshake);
	__type(value, struct end);
} connecting SEC(".maps");

/* By the client's cookie: the server that took it, until the client sends. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u64);
	__type(value, struct end);
} accepted SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct state);
} states SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNT_ROOM);
	__type(key, enum count);
	__type(value, __u64);
} counts SEC(".maps");

static always_inline void count(enum count what, __u64 by)
{
	__u64 *total = bpf_map_lookup_elem(&counts, &what);
	if (total)
		*total += by;
}

static always_inline void place(struct bpf_sock_ops *ops, struct handshake *h)
{
	if (is_loopback(h->address) || is_sidecar(h->address))
		h->netns = bpf_get_netns_cookie(ops);
}

/* What is given back of a count. One that was forgotten and begun anew does not know of what was before it. */
static always_inline void less(__s64 *of, __s64 by)
{
	if (*of >= by)
		__sync_fetch_and_add(of, -by);
}

static always_inline void give_back(__u64 workload, __s64 sockets, __s64 together)
{
	__u32 all = 0;
	struct share *total = bpf_map_lookup_elem(&recorded, &all);
	struct share *own = bpf_map_lookup_elem(&shares, &workload);
	if (total) {
		less(&total->sockets, sockets);
		less(&total->together, together);
	}
	if (own) {
		less(&own->sockets, sockets);
		less(&own->together, together);
	}
}

/* The peer has read all. */
static always_inline void read_all(struct state *self)
{
	self->unread = 0;
	if (!self->together)
		return;
	give_back(self->workload, 0, self->together);
	self->together = 0;
}

/* Gives back what a sender had a receiver keep unread, once: of two that do it, one deletes it. */
static always_inline void drop_left(__u64 receiver)
{
	struct left *found = bpf_map_lookup_elem(&left, &receiver);
	if (!found)
		return;
	struct left of = *found;
	if (!bpf_map_delete_elem(&left, &receiver))
		give_back(of.workload, 0, of.together);
}

/* What was written before is seen by whoever does not see what is read after. */
static always_inline void full_barrier(void)
{
	__u64 here = 0;
	/* Only instructions that return the value before are a barrier on every processor. */
	__sync_lock_test_and_set(&here, 1);
}

/* What a sender that ends has had its receiver keep stays in the sender's share until the receiver ends. */
static always_inline void leave(struct state *self)
{
	struct tcp_sock *to = (struct tcp_sock *)self->peer.sock;
	__u64 receiver = self->peer.cookie;
	struct left mine = {.workload = self->workload, .together = self->together};
	if (!mine.together)
		return;
	self->together = 0;
	/* Without memory for it, it is given back at once. */
	if (!READ(to->inet_conn.icsk_inet.sk.sk_backlog.rmem_alloc.counter) || bpf_map_update_elem(&left, &receiver, &mine, BPF_NOEXIST)) {
		give_back(mine.workload, 0, mine.together);
		return;
	}
	/* A receiver that ends meanwhile does the opposite: it first is open no longer, and then looks for what is left. */
	full_barrier();
	if (!bpf_map_lookup_elem(&open, &receiver))
		drop_left(receiver);
}

/* What a recorded socket that ends gives back. */
static always_inline void release(struct state *self)
{
	__u64 workload = self->workload, cookie = self->cookie;
	if (!workload)
		return;
	bpf_map_delete_elem(&open, &cookie);
	full_barrier();
	drop_left(cookie);
	leave(self);
	self->workload = 0;
	give_back(workload, 1, 0);
}

/* A workload may have as many sockets as are free: one gets half of them at most, and however many take what they can get,
 * there is room for the next (dynamic thresholds: Choudhury and Hahne, 1998). */
static always_inline int admit(__u64 workload)
{
	__u32 all = 0;
	struct share none = {};
	struct share *total = bpf_map_lookup_elem(&recorded, &all);
	if (!total)
		return 0;
	struct share *own = bpf_map_lookup_elem(&shares, &workload);
	if (!own) {
		bpf_map_update_elem(&shares, &workload, &none, BPF_NOEXIST);
		own = bpf_map_lookup_elem(&shares, &workload);
	}
	if (!own || own->sockets >= (__s64)max_sockets - total->sockets) {
		count(COUNT_REFUSED_WORKLOAD_SHARE, 1);
		return 0;
	}
	__sync_fetch_and_add(&total->sockets, 1);
	__sync_fetch_and_add(&own->sockets, 1);
	return 1;
}

/* Whether one more message may wait unread: the workload may have as many as are free, as with sockets. */
static always_inline int may_wait(struct state *self)
{
	if (self->unread < UNREAD_FREE + self->together * MESSAGES_TOGETHER)
		return 1;
	__u32 all = 0;
	__u64 workload = self->workload;
	struct share *total = bpf_map_lookup_elem(&recorded, &all);
	struct share *own = bpf_map_lookup_elem(&shares, &workload);
	if (!workload || !total || !own || own->together >= (__s64)max_sockets / 8 - total->together) {
		count(COUNT_FALLBACK_UNREAD_SHARE, 1);
		return 0;
	}
	__sync_fetch_and_add(&total->together, 1);
	__sync_fetch_and_add(&own->together, 1);
	self->together++;
	return 1;
}

/* Takes a socket among those that the bypass knows, if there is room. */
static always_inline int record(struct bpf_sock_ops *ops, struct bpf_sock *sk, struct state *self)
{
	__u64 cookie = self->cookie;
	__u64 workload = bpf_get_netns_cookie(ops);
	__u8 yes = 1;
	struct state *kept = bpf_sk_storage_get(&states, sk, 0, 0);
	if (kept) {
		/* It connects again, or was closed while it connected. What the peer of before has sent may wait in its queue still: it
		 * stays recorded until it is closed, and uses TCP. */
		leave(kept);
		kept->peer.cookie = 0;
		kept->unpaired = MAX_UNPAIRED;
		return 0;
	}
	kept = bpf_sk_storage_get(&states, sk, self, BPF_SK_STORAGE_GET_F_CREATE);
	if (!kept || !admit(workload))
		return 0;
	kept->workload = workload;
	if (bpf_map_update_elem(&open, &cookie, &yes, BPF_ANY) || bpf_sock_hash_update(ops, &sockets, &cookie, BPF_ANY)) {
		release(kept);
		count(COUNT_REFUSED_TOO_MANY_SOCKETS, 1);
		return 0;
	}
	/* Other programs of the machine may have asked for calls of their own. */
	bpf_sock_ops_cb_flags_set(ops, ops->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG);
	return 1;
}

/* The verifier refuses to read a field of the context whose place depends on a condition, which compilers make of two branches
 * that end alike: therefore one function for each end, and this between the families. */
#define KEEP_HERE(value) asm volatile("" : "+r"(value))

static always_inline __u32 mode(struct workload *w)
{
	return w ? w->mode : MODE_SEND;
}

/* Whether a socket that took a connection is where a sidecar is called from elsewhere: at its inbound port, or, without a packet
 * filter, at the port that was dialled (bpf/capture.bpf.c). */
static always_inline int is_inbound(struct workload *w, struct bpf_sock *sk, __u32 port)
{
	if (port == inbound_port)
		return 1;
	if (!w || !w->proxy || port == outbound_port || port == health_port || port == metrics_port)
		return 0;
	return is_of_group(sk, w->proxy);
}

static __attribute__((noinline)) int connected(struct bpf_sock_ops *ops)
{
	struct handshake h = {};
	struct bpf_sock *sk = ops->sk;
	if (!sk)
		return 1;
	__u64 netns = bpf_get_netns_cookie(ops);
	if (mode(bpf_map_lookup_elem(&workloads, &netns)) == MODE_OFF)
		return 1;
	struct state self = {.cookie = bpf_get_socket_cookie(ops)};
	__u64 cookie = self.cookie;

	if (ops->family == 2) {
		__u32 address = ops->local_ip4;
		KEEP_HERE(address);
		set_ipv4(h.address, address);
	} else {
		h.address[0] = ops->local_ip6[0];
		h.address[1] = ops->local_ip6[1];
		h.address[2] = ops->local_ip6[2];
		h.address[3] = ops->local_ip6[3];
	}
	h.port = ops->local_port;
	h.client_seq = ops->snd_nxt;
	h.server_seq = ops->rcv_nxt;
	place(ops, &h);
	/* Between parts of an application. */
	if (h.netns && !is_sidecar(h.address))
		return 1;

	struct end me = {.cookie = cookie, .sock = (__u64)bpf_skc_to_tcp_sock(sk)};
	if (bpf_map_update_elem(&connecting, &h, &me, BPF_NOEXIST)) {
		/* Whose peer it is cannot be told: neither's. */
		bpf_map_delete_elem(&connecting, &h);
		count(COUNT_REFUSED_AMBIGUOUS, 1);
		return 1;
	}
	if (!record(ops, sk, &self))
		bpf_map_delete_elem(&connecting, &h);
	return 1;
}

static __attribute__((noinline)) int taken(struct bpf_sock_ops *ops)
{
	struct handshake h = {};
	struct bpf_sock *sk = ops->sk;
	if (!sk)
		return 1;
	struct state self = {.cookie = bpf_get_socket_cookie(ops)};
	__u64 cookie = self.cookie;

	if (ops->family == 2) {
		__u32 address = ops->remote_ip4;
		KEEP_HERE(address);
		set_ipv4(h.address, address);
	} else {
		h.address[0] = ops->remote_ip6[0];
		h.address[1] = ops->remote_ip6[1];
		h.address[2] = ops->remote_ip6[2];
		h.address[3] = ops->remote_ip6[3];
	}
	h.port = __builtin_bswap32(ops->remote_port);
	h.client_seq = ops->rcv_nxt;
	h.server_seq = ops->snd_nxt;
	place(ops, &h);

	struct end *found = bpf_map_lookup_elem(&connecting, &h);
	if (!found)
		return 1;
	struct end client = *found;
	bpf_map_delete_elem(&connecting, &h);

	__u64 netns = bpf_get_netns_cookie(ops);
	struct workload *w = bpf_map_lookup_elem(&workloads, &netns);
	__u32 how = mode(w);
	if (how == MODE_OFF)
		return 1;

	/* Only proxies are sent to: applications may wait for data in ways that sockets in a map do not know, unless they are said
	 * not to. */
	__u32 port = ops->local_port;
	int inbound = is_inbound(w, sk, port), to_sidecar = port == outbound_port, from_sidecar = is_sidecar(h.address);
	int to_client = inbound || from_sidecar || (to_sidecar && how == MODE_BOTH);
	int to_server = inbound || to_sidecar || (from_sidecar && how == MODE_BOTH);
	if (!to_client && !to_server)
		return 1;
	if (to_client)
		self.peer = client;
	else
		self.unpaired = MAX_UNPAIRED;
	if (!record(ops, sk, &self))
		return 1;
	if (to_server) {
		struct end me = {.cookie = cookie, .sock = (__u64)bpf_skc_to_tcp_sock(sk)};
		bpf_map_update_elem(&accepted, &client.cookie, &me, BPF_ANY);
	}
	count(COUNT_CONNECTIONS, 1);
	return 1;
}

static __attribute__((noinline)) int changed(struct bpf_sock_ops *ops)
{
	struct bpf_sock *sk = ops->sk;
	if (!sk || ops->args[1] != BPF_TCP_CLOSE)
		return 1;
	struct state *self = bpf_sk_storage_get(&states, sk, 0, 0);
	struct tcp_sock *tcp = bpf_skc_to_tcp_sock(sk);
	if (!self || !tcp)
		return 1;
	/* Whoever has it may read what it was sent before. Of one that the kernel has for itself, nobody says that it is closed. */
	struct socket *had = tcp->inet_conn.icsk_inet.sk.sk_socket;
	if (had && had->file)
		return 1;
	/* Nobody has it, or not yet: what it was sent goes with its record, as what is reset may. */
	__u64 cookie = self->cookie;
	bpf_map_delete_elem(&sockets, &cookie);
	release(self);
	return 1;
}

/* Whoever has a socket closes it. */
SEC("cgroup/sock_release")
int closed(struct bpf_sock *sk)
{
	/* One that is connecting may still be established before the kernel ends it: with a state, it is not recorded then. */
	struct state *self = bpf_sk_storage_get(&states, sk, 0, sk->state == BPF_TCP_SYN_SENT ? BPF_SK_STORAGE_GET_F_CREATE : 0);
	if (self)
		release(self);
	return 1;
}

SEC("sockops")
int established(struct bpf_sock_ops *ops)
{
	if (ops->op == BPF_SOCK_OPS_STATE_CB)
		return changed(ops);
	if (!enabled)
		return 1;
	if (ops->op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB)
		return connected(ops);
	if (ops->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		return taken(ops);
	return 1;
}

/* Whether the peer is known. */
static always_inline int is_paired(struct state *self)
{
	if (self->peer.cookie)
		return 1;
	if (self->unpaired >= MAX_UNPAIRED)
		return 0;
	self->unpaired++;
	__u64 cookie = self->cookie;
	struct end *server = bpf_map_lookup_elem(&accepted, &cookie);
	if (!server)
		return 0;
	self->peer = *server;
	bpf_map_delete_elem(&accepted, &cookie);
	return 1;
}

/* Whether somebody has a socket locked, or waits for that: messages may have no place in its queue yet. */
static always_inline int is_locked(struct tcp_sock *to)
{
	struct list_head *first = READ(to->inet_conn.icsk_inet.sk.sk_lock.wq.head.next);
	return READ(to->inet_conn.icsk_inet.sk.sk_lock.owned) || first != __builtin_preserve_access_index(&to->inet_conn.icsk_inet.sk.sk_lock.wq.head);
}

/* Runs with the sender locked, which it no longer is while the message before waits for its place in the receiver's queue. */
SEC("sk_msg")
int sent(struct sk_msg_md *msg)
{
	struct bpf_sock *sk = msg->sk;
	if (!sk)
		return SK_PASS;
	struct state *self = bpf_sk_storage_get(&states, sk, 0, 0);
	if (!self || !is_paired(self))
		return SK_PASS;
	struct tcp_sock *from = bpf_skc_to_tcp_sock(sk);
	if (!from)
		return SK_PASS;
	/* TCP says what is wrong. */
	__u8 tcp = from->inet_conn.icsk_inet.sk.__sk_common.skc_state;
	if (tcp != BPF_TCP_ESTABLISHED && tcp != BPF_TCP_CLOSE_WAIT)
		return SK_PASS;
	__u64 cookie = self->peer.cookie;
	__u32 size = msg->size;

	/* The peer may be closed, and its memory another connection's by now: what is read wrongly then only decides between two
	 * ways that both end at the hash, where the cookie is not found. */
	struct tcp_sock *to = (struct tcp_sock *)self->peer.sock;
	if (READ(to->copied_seq) != from->write_seq) {
		count(COUNT_FALLBACK_TCP_UNREAD, 1);
		return SK_PASS;
	}
	__u32 queued = READ(to->inet_conn.icsk_inet.sk.sk_backlog.rmem_alloc.counter);
	if (!queued && self->unread && !is_locked(to))
		read_all(self);
	if (queued >= MAX_QUEUED || self->unread >= MAX_UNREAD) {
		count(COUNT_FALLBACK_RECEIVER_BEHIND, 1);
		return SK_PASS;
	}
	if (!queued && !enabled) {
		count(COUNT_FALLBACK_SWITCHED_OFF, 1);
		return SK_PASS;
	}
	if (from->inet_conn.icsk_ulp_ops) {
		count(COUNT_FALLBACK_KERNEL_TLS, 1);
		return SK_PASS;
	}
	if (!may_wait(self))
		return SK_PASS;
	if (bpf_msg_redirect_hash(msg, &sockets, &cookie, BPF_F_INGRESS) != SK_PASS) {
		count(COUNT_FALLBACK_RECEIVER_GONE, 1);
		return SK_PASS;
	}
	self->unread++;
	count(COUNT_MESSAGES, 1);
	count(COUNT_BYTES, size);
	return SK_PASS;
}
