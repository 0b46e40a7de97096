/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* The bypass: what a socket sends to a proxy on the same host goes into the proxy's receive queue, past TCP/IP. */
#include "bypass.h"

/* bpf_probe_read_kernel is for programs under the kernel's licence only, for which it does not take the Apache one. */
char _license[] SEC("license") = "GPL";

/* Ports of a sidecar, to which the packet filter brings connections; capture by eBPF leaves those inbound the port that was dialled. */
volatile const __u32 outbound_port = 15001;
volatile const __u32 inbound_port = 15006;
/* Its other ports, whose clients may be anybody. */
volatile const __u32 health_port = 15021;
volatile const __u32 metrics_port = 15090;
/* How many bytes a peer may leave unread before the rest goes by TCP, whose window then holds the sender back: sk_msg knows no
 * such bound. More than a proxy reads at once (BATCH, 64 KiB), which its readiness depends on. */
#define MAX_UNREAD_BYTES (128 << 10)
/* How many messages: the kernel keeps a kilobyte for each, a byte's too, and charges nobody. */
#define MAX_UNREAD_MESSAGES 512
/* Therefore all connections together have room for max_unread_blocks times UNREAD_BLOCK of them. A block is taken at once, so that the
 * counters that all share are seldom touched; UNREAD_FREE messages of each connection are in no block. */
#define UNREAD_FREE 2
#define UNREAD_BLOCK 32
/* A client whose pair is not there has its other end on another host: it is not looked for, nor noted again by a server, in more rounds
 * than that. */
#define MAX_PAIR_ROUNDS 16
/* Of a socket in places that is not recorded: no round has that number. */
#define WAITS 0
/* After that many sockets a round lets others have the processor. */
#define SOCKETS_AT_ONCE 16384

/* Set by who loads the programs: how many sockets are recorded at most, as sockets has places, and blocks of unread messages. */
volatile const __u32 max_sockets = 65536;
volatile const __u32 max_unread_blocks = 8192;

/* 0 has connections go back to TCP, each when its peer has read everything. */
volatile __u32 enabled = 1;
/* How often tend_socket has found something to do. */
volatile __u32 changes SEC(".data") = 0;
/* The number of the round that is made, from 1 on: see WAITS. */
volatile __u32 this_round SEC(".data") = 1;

/* Maps, counters and the programs of the control group are pinned by their names and taken over by the next version's programs. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, LAYOUT);
	__type(key, __u32);
	__type(value, __u32);
} layout SEC(".maps");

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
} total_share SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u64);
	__type(value, struct share);
} workload_shares SEC(".maps");

/* Sockets that have a place among the recorded ones, by their cookies: in which round they were recorded, or WAITS, while the other end is
 * not ready. The kernel does not let a program ask the hash of sockets for one that it does not send to. It has as many entries as there
 * are places, so that no connection pushes another's out. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, __u32);
} places SEC(".maps");

/* By the receiver's cookie: the room for what a sender that is closed has left it to read. Only of receivers that are recorded. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct orphaned_room);
} orphaned SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct workload);
} workloads SEC(".maps");

/* Clients whose server has not been seen. Those whose server is on another host stay until newer ones push them out. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct handshake);
	__type(value, struct socket_ref);
} unmatched_clients SEC(".maps");

/* By the client's cookie: who its server is, which it copies in the first round. What newer ones push out before, the server notes again. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u64);
	__type(value, struct pair);
} pairs SEC(".maps");

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

/* Every namespace has these addresses by right. */
static always_inline void add_netns_if_local(struct bpf_sock_ops *ops, struct handshake *h)
{
	if (is_loopback(h->address) || is_sidecar_source(h->address))
		h->netns = bpf_get_netns_cookie(ops);
}

/* Subtracts, unless that would be less than nothing: a namespace that was forgotten has begun at 0 since. */
static always_inline void subtract(__s64 *of, __s64 by)
{
	if (by && *of >= by)
		__sync_fetch_and_add(of, -by);
}

static always_inline void return_share(__u64 netns, __s64 sockets, __s64 unread_blocks)
{
	__u32 all = 0;
	struct share *total = bpf_map_lookup_elem(&total_share, &all);
	struct share *own = bpf_map_lookup_elem(&workload_shares, &netns);
	if (total) {
		subtract(&total->sockets, sockets);
		subtract(&total->unread_blocks, unread_blocks);
	}
	if (own) {
		subtract(&own->sockets, sockets);
		subtract(&own->unread_blocks, unread_blocks);
	}
}

/* Whether somebody has a socket locked, or waits for that: messages may have no place in its queue yet. */
static always_inline int is_locked(struct tcp_sock *to)
{
	struct list_head *first = READ(to->inet_conn.icsk_inet.sk.sk_lock.wq.head.next);
	return READ(to->inet_conn.icsk_inet.sk.sk_lock.owned) || first != __builtin_preserve_access_index(&to->inet_conn.icsk_inet.sk.sk_lock.wq.head);
}

static always_inline __u32 unread_bytes(struct tcp_sock *of)
{
	return READ(of->inet_conn.icsk_inet.sk.sk_backlog.rmem_alloc.counter);
}

/* Whether a receiver has read all that was put into its queue. In this order: what waits for the lock is in the queue when it has had it. */
static always_inline int has_read_all(struct tcp_sock *to)
{
	return !is_locked(to) && !unread_bytes(to);
}

/* The peer has read all. The sender is not the only one to find that: see tend_socket. */
static always_inline void return_unread_room(struct state *self)
{
	if (!self->unread_blocks)
		return;
	__s64 blocks = __sync_lock_test_and_set(&self->unread_blocks, 0);
	if (blocks)
		return_share(self->netns, 0, blocks);
}

/* Returns the room for what a sender left its receiver to read, once: of two that do it, one deletes it. */
static always_inline void return_orphaned(__u64 receiver)
{
	struct orphaned_room *found = bpf_map_lookup_elem(&orphaned, &receiver);
	if (!found)
		return;
	struct orphaned_room of = *found;
	if (!bpf_map_delete_elem(&orphaned, &receiver))
		return_share(of.netns, 0, of.unread_blocks);
}

static always_inline void full_barrier(void)
{
	__u64 here = 0;
	/* Only instructions that return the value before are a barrier on every processor. */
	__sync_lock_test_and_set(&here, 1);
}

/* What a sender that ends has left its receiver to read stays in the sender's share until the receiver ends. */
static always_inline void orphan_unread(struct state *self)
{
	__u64 receiver = self->peer.cookie;
	struct orphaned_room mine = {.netns = self->netns, .unread_blocks = __sync_lock_test_and_set(&self->unread_blocks, 0)};
	if (!mine.unread_blocks)
		return;
	/* Without memory for it, it is given back at once. */
	if (!unread_bytes((struct tcp_sock *)self->peer.address) || bpf_map_update_elem(&orphaned, &receiver, &mine, BPF_NOEXIST)) {
		return_share(mine.netns, 0, mine.unread_blocks);
		return;
	}
	/* This writes orphaned and then reads places, release_socket of a receiver that ends meanwhile the other way round: with
	 * the barrier between, at least one of them sees the other. */
	full_barrier();
	if (!bpf_map_lookup_elem(&places, &receiver))
		return_orphaned(receiver);
}

static always_inline void give_place_back(struct state *self)
{
	__u64 cookie = self->cookie;
	bpf_map_delete_elem(&places, &cookie);
	return_share(self->netns, 1, 0);
}

/* What a recorded socket that ends gives back. */
static always_inline void release_socket(struct state *self)
{
	give_place_back(self);
	full_barrier();
	return_orphaned(self->cookie);
	orphan_unread(self);
}

/* What a workload has; a namespace that was forgotten begins anew. */
static always_inline struct share *own_share(__u64 netns)
{
	struct share none = {};
	struct share *own = bpf_map_lookup_elem(&workload_shares, &netns);
	if (own)
		return own;
	bpf_map_update_elem(&workload_shares, &netns, &none, BPF_NOEXIST);
	return bpf_map_lookup_elem(&workload_shares, &netns);
}

/* A workload may have as many sockets as are free: one gets half of them at most, and however many take what they can get,
 * there is room for the next (dynamic thresholds: Choudhury and Hahne, 1998). */
static always_inline int take_place(__u64 netns)
{
	__u32 all = 0;
	struct share *total = bpf_map_lookup_elem(&total_share, &all);
	struct share *own = own_share(netns);
	if (!total || !own || own->sockets >= (__s64)max_sockets - total->sockets)
		return 0;
	__sync_fetch_and_add(&total->sockets, 1);
	__sync_fetch_and_add(&own->sockets, 1);
	return 1;
}

/* Takes room for one more unread message, if there is: the workload may have as many blocks as are free, as with sockets. */
static always_inline int take_unread_room(struct state *self)
{
	if (self->unread_messages < UNREAD_FREE + self->unread_blocks * UNREAD_BLOCK)
		return 1;
	__u32 all = 0;
	struct share *total = bpf_map_lookup_elem(&total_share, &all);
	struct share *own = own_share(self->netns);
	if (!total || !own || own->unread_blocks >= (__s64)max_unread_blocks - total->unread_blocks)
		return 0;
	__sync_fetch_and_add(&total->unread_blocks, 1);
	__sync_fetch_and_add(&own->unread_blocks, 1);
	__sync_fetch_and_add(&self->unread_blocks, 1);
	return 1;
}

/* Says to a client who its server is. */
static always_inline void note_pair(struct state *server, void *tcp)
{
	struct pair both = {.server = {.cookie = server->cookie, .address = (__u64)tcp}, .to_server = server->to_server};
	__u64 client = server->peer.cookie;
	bpf_map_update_elem(&pairs, &client, &both, BPF_ANY);
}

/* What a socket that is established knows of itself from now on; 0 for one that is to use TCP. */
static always_inline struct state *note_socket(struct bpf_sock_ops *ops, struct bpf_sock *sk)
{
	struct state self = {
		.cookie = bpf_get_socket_cookie(ops), .netns = bpf_get_netns_cookie(ops), .write_seq = ops->snd_nxt, .read_seq = ops->rcv_nxt,
	};
	struct state *kept = bpf_sk_storage_get(&states, sk, 0, 0);
	if (kept) {
		/* It stays recorded until it is closed, if it is. */
		kept->reused = 1;
		orphan_unread(kept);
		return 0;
	}
	kept = bpf_sk_storage_get(&states, sk, &self, BPF_SK_STORAGE_GET_F_CREATE);
	if (!kept)
		count(COUNT_REFUSED_NOT_RECORDED, 1);
	return kept;
}

static always_inline __u32 mode_of(struct workload *w)
{
	return w ? w->mode : MODE_SEND;
}

/* Whether a socket that took a connection is where a sidecar is called from elsewhere: at its inbound port, or, without a packet
 * filter, at the port that was dialled (bpf/capture.bpf.c). */
static always_inline int is_inbound(struct workload *w, struct bpf_sock *sk, __u32 port)
{
	if (port == inbound_port)
		return 1;
	if (!w || !w->proxy_cgroup || port == outbound_port || port == health_port || port == metrics_port)
		return 0;
	return is_in_cgroup(sk, w->proxy_cgroup);
}

/* The client's end of a connection. */
static __attribute__((noinline)) int active_established(struct bpf_sock_ops *ops)
{
	struct handshake h = {};
	struct bpf_sock *sk = ops->sk;
	if (!sk)
		return 1;
	__u64 netns = bpf_get_netns_cookie(ops);
	if (mode_of(bpf_map_lookup_elem(&workloads, &netns)) == MODE_OFF)
		return 1;

	set_local(ops, h.address);
	h.port = ops->local_port;
	h.client_seq = ops->snd_nxt;
	h.server_seq = ops->rcv_nxt;
	add_netns_if_local(ops, &h);
	/* From loopback: between parts of an application. */
	if (h.netns && !is_sidecar_source(h.address))
		return 1;

	struct state *self = note_socket(ops, sk);
	if (!self)
		return 1;
	self->is_client = 1;
	struct socket_ref me = {.cookie = self->cookie, .address = (__u64)bpf_skc_to_tcp_sock(sk)};
	if (bpf_map_update_elem(&unmatched_clients, &h, &me, BPF_NOEXIST)) {
		/* Whose peer it is cannot be told: neither's. */
		bpf_map_delete_elem(&unmatched_clients, &h);
		count(COUNT_REFUSED_AMBIGUOUS, 1);
	}
	return 1;
}

/* The server's end, which is established after the client's. */
static __attribute__((noinline)) int passive_established(struct bpf_sock_ops *ops)
{
	struct handshake h = {};
	struct bpf_sock *sk = ops->sk;
	if (!sk)
		return 1;
	set_remote(ops, h.address);
	h.port = __builtin_bswap32(ops->remote_port);
	h.client_seq = ops->rcv_nxt;
	h.server_seq = ops->snd_nxt;
	add_netns_if_local(ops, &h);

	struct socket_ref *found = bpf_map_lookup_elem(&unmatched_clients, &h);
	if (!found)
		return 1;
	struct socket_ref client = *found;
	bpf_map_delete_elem(&unmatched_clients, &h);

	__u64 netns = bpf_get_netns_cookie(ops);
	struct workload *w = bpf_map_lookup_elem(&workloads, &netns);
	__u32 mode = mode_of(w);
	if (mode == MODE_OFF)
		return 1;

	/* Only proxies are sent to: applications may wait for data in ways that sockets in a map do not know, unless they are said
	 * not to. */
	__u32 port = ops->local_port;
	int inbound = is_inbound(w, sk, port), to_sidecar = port == outbound_port, from_sidecar = is_sidecar_source(h.address);
	int to_client = inbound || from_sidecar || (to_sidecar && mode == MODE_BOTH);
	int to_server = inbound || to_sidecar || (from_sidecar && mode == MODE_BOTH);
	if (!to_client && !to_server)
		return 1;
	struct state *self = note_socket(ops, sk);
	if (!self)
		return 1;
	self->peer = client;
	self->may_redirect = to_client;
	self->to_server = to_server;
	note_pair(self, bpf_skc_to_tcp_sock(sk));
	count(COUNT_CONNECTIONS, 1);
	return 1;
}

/* Whoever holds a socket closes it. */
SEC("cgroup/sock_release")
int closed(struct bpf_sock *sk)
{
	struct state *self = bpf_sk_storage_get(&states, sk, 0, 0);
	if (!self)
		return 1;
	__u64 client = self->is_client ? self->cookie : self->peer.cookie;
	bpf_map_delete_elem(&pairs, &client);
	__u32 stage = __sync_lock_test_and_set(&self->stage, STAGE_OVER);
	if (stage == STAGE_READY)
		give_place_back(self);
	if (stage == STAGE_RECORDED)
		release_socket(self);
	return 1;
}

SEC("sockops")
int established(struct bpf_sock_ops *ops)
{
	if (!enabled)
		return 1;
	if (ops->op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB)
		return active_established(ops);
	if (ops->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		return passive_established(ops);
	return 1;
}

/* Why a message goes by TCP, or COUNT_MESSAGES: then it has room among the unread ones.
 *
 * The peer may be closed, and its memory another connection's by now: what is read wrongly then only decides between two
 * ways that both end at the hash, where the cookie is not found. */
static always_inline enum count choose_path(struct state *self, struct tcp_sock *from)
{
	struct tcp_sock *to = (struct tcp_sock *)self->peer.address;
	if (READ(to->copied_seq) != from->write_seq)
		return COUNT_FALLBACK_TCP_UNREAD;
	__u32 unread = unread_bytes(to);
	/* The sender is locked, but not while its message before waits for the receiver's lock: that one is counted and in no queue yet. */
	if (!unread && self->unread_messages && has_read_all(to)) {
		self->unread_messages = 0;
		return_unread_room(self);
	}
	if (unread >= MAX_UNREAD_BYTES || self->unread_messages >= MAX_UNREAD_MESSAGES)
		return COUNT_FALLBACK_RECEIVER_BEHIND;
	if (!unread && !enabled)
		return COUNT_FALLBACK_SWITCHED_OFF;
	if (from->inet_conn.icsk_ulp_ops || READ(to->inet_conn.icsk_ulp_ops))
		return COUNT_FALLBACK_UPPER_LAYER;
	return take_unread_room(self) ? COUNT_MESSAGES : COUNT_FALLBACK_UNREAD_SHARE;
}

SEC("sk_msg")
int redirect_message(struct sk_msg_md *msg)
{
	struct bpf_sock *sk = msg->sk;
	if (!sk)
		return SK_PASS;
	struct state *self = bpf_sk_storage_get(&states, sk, 0, 0);
	if (!self || !self->redirects || self->reused)
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
	enum count path = choose_path(self, from);
	if (path == COUNT_MESSAGES && bpf_msg_redirect_hash(msg, &sockets, &cookie, BPF_F_INGRESS) != SK_PASS)
		path = COUNT_FALLBACK_RECEIVER_GONE;
	count(path, 1);
	if (path != COUNT_MESSAGES)
		return SK_PASS;
	self->unread_messages++;
	count(COUNT_BYTES, size);
	return SK_PASS;
}

/* Counts why a socket does not bypass TCP, once, unless its memory is another's by now. */
static always_inline void refuse(void *sk, struct state *self, enum count why)
{
	if (self->refusals & 1u << why || bpf_get_socket_cookie(sk) != self->cookie)
		return;
	self->refusals |= 1u << why;
	count(why, 1);
}

/* Whether a program has a socket, has used it, and does not wait in calls that read it: with a socket of the map, such a call ends with
 * EAGAIN when a signal or room to send wakes it up (tcp_bpf_recvmsg). Programs that do not wait for the connection and then do wait for
 * what comes have said so before they use it. */
static always_inline int is_ready(void *sk, struct tcp_sock *tcp, struct state *self)
{
	struct socket *had = tcp->inet_conn.icsk_inet.sk.sk_socket;
	struct file *file = had ? had->file : 0;
	/* The kernel records no others. */
	if (tcp->inet_conn.icsk_inet.sk.__sk_common.skc_state != BPF_TCP_ESTABLISHED)
		return 0;
	if (!file || (tcp->write_seq == self->write_seq && tcp->copied_seq == self->read_seq))
		return 0;
	/* Nobody tells the program closed of those that the kernel made for itself (inet_release), such as the ones that sockets of MPTCP and
	 * SMC use. */
	if (READ_BITS(&tcp->inet_conn.icsk_inet.sk, sk_kern_sock)) {
		refuse(sk, self, COUNT_REFUSED_NOT_RECORDED);
		return 0;
	}
	if (!(file->f_flags & O_NONBLOCK)) {
		refuse(sk, self, COUNT_REFUSED_BLOCKING);
		return 0;
	}
	/* Nobody tells of bytes that did not go by TCP that they were sent. */
	if (tcp->inet_conn.icsk_inet.sk.__sk_common.skc_flags >> __builtin_preserve_enum_value(*(enum sock_flags *)SOCK_ZEROCOPY, 1) & 1) {
		refuse(sk, self, COUNT_REFUSED_ZEROCOPY);
		return 0;
	}
	return 1;
}

/* Takes a place among the recorded ones, or gives it back, as a socket is ready or is not any more. The program closed may run meanwhile:
 * who finds the other's stage gives the place back. */
static always_inline void keep_place(void *sk, struct state *self, int ready)
{
	__u64 cookie = self->cookie;
	__u32 waits = WAITS;
	if (ready && self->stage == STAGE_ESTABLISHED) {
		if (!take_place(self->netns)) {
			refuse(sk, self, COUNT_REFUSED_WORKLOAD_SHARE);
			return;
		}
		int failed = bpf_map_update_elem(&places, &cookie, &waits, BPF_ANY);
		if (failed)
			refuse(sk, self, COUNT_REFUSED_NOT_RECORDED);
		if (failed || __sync_val_compare_and_swap(&self->stage, STAGE_ESTABLISHED, STAGE_READY) != STAGE_ESTABLISHED)
			give_place_back(self);
		else
			changes++;
	} else if (!ready && self->stage == STAGE_READY) {
		if (__sync_val_compare_and_swap(&self->stage, STAGE_READY, STAGE_ESTABLISHED) == STAGE_READY)
			give_place_back(self);
	}
}

/* Takes a socket that has a place among those that can be sent to. Its program may be within a call: then in another round, since the
 * kernel changes the calls of a socket without a look at who has it locked. */
static always_inline void record_socket(void *sk, struct tcp_sock *tcp, struct state *self)
{
	__u64 cookie = self->cookie;
	__u32 now = this_round, waits = WAITS;
	if (is_locked(tcp) || __sync_val_compare_and_swap(&self->stage, STAGE_READY, STAGE_TAKEN) != STAGE_READY)
		return;
	int failed = bpf_map_update_elem(&places, &cookie, &now, BPF_ANY) || bpf_map_update_elem(&sockets, &cookie, sk, BPF_ANY);
	int locked = is_locked(tcp);
	/* Nothing holds the socket here: its memory may be another's, who must not be sent to. */
	int other = bpf_get_socket_cookie(sk) != cookie;
	if (!failed && !locked && !other && __sync_val_compare_and_swap(&self->stage, STAGE_TAKEN, STAGE_RECORDED) == STAGE_TAKEN) {
		changes++;
		return;
	}
	bpf_map_delete_elem(&sockets, &cookie);
	if (locked && !failed && !other && !bpf_map_update_elem(&places, &cookie, &waits, BPF_ANY) &&
	    __sync_val_compare_and_swap(&self->stage, STAGE_TAKEN, STAGE_READY) == STAGE_TAKEN)
		return;
	self->stage = STAGE_OVER;
	give_place_back(self);
	if (failed && tcp->inet_conn.icsk_inet.sk.__sk_common.skc_state == BPF_TCP_ESTABLISHED)
		refuse(sk, self, COUNT_REFUSED_NOT_RECORDED);
}

/* Whether this is one of the first rounds in which a socket needs its pair: each is counted once. */
static always_inline int may_need_pair(struct state *self)
{
	if (self->pair_round != this_round) {
		self->pair_round = this_round;
		self->pair_rounds++;
	}
	return self->pair_rounds <= MAX_PAIR_ROUNDS;
}

/* Has a client know its server. One that is not found has its server on another host, and is not looked at for ever. */
static always_inline int find_server(struct state *self)
{
	__u64 cookie = self->cookie;
	struct pair *found = bpf_map_lookup_elem(&pairs, &cookie);
	if (!found) {
		if (!may_need_pair(self))
			__sync_val_compare_and_swap(&self->stage, STAGE_ESTABLISHED, STAGE_OVER);
		return 0;
	}
	struct pair both = *found;
	/* The map's memory is used anew at once: what was copied is this connection's if it still is. */
	if (bpf_map_lookup_elem(&pairs, &cookie) != found)
		return 0;
	self->peer = both.server;
	self->may_redirect = both.to_server;
	return 1;
}

/* For a client that does not know its server, as newer connections have pushed their pair out. */
static always_inline void note_pair_again(struct state *server, void *tcp)
{
	__u64 client = server->peer.cookie;
	if (!may_need_pair(server) || bpf_map_lookup_elem(&pairs, &client))
		return;
	note_pair(server, tcp);
	changes++;
}

/* Has a socket be recorded when both ends have a place. */
static always_inline void advance(void *sk, struct state *self)
{
	struct tcp_sock *tcp = bpf_skc_to_tcp_sock(sk);
	if (!tcp || (!self->peer.cookie && !find_server(self)))
		return;
	__u64 peer = self->peer.cookie;
	keep_place(sk, self, is_ready(sk, tcp, self));
	if (!bpf_map_lookup_elem(&places, &peer)) {
		if (!self->is_client)
			note_pair_again(self, tcp);
	} else if (self->stage == STAGE_READY) {
		record_socket(sk, tcp, self);
	}
}

/* Has a recorded socket send past TCP when its peer was recorded in a round before. A program that was within TCP's own call while its
 * socket was recorded looks at one queue only: it would read the end of the stream, which comes by TCP, before what was sent past it. */
static always_inline void begin_redirecting(struct state *self)
{
	__u64 peer = self->peer.cookie;
	if (!self->may_redirect || self->redirects)
		return;
	__u32 *recorded = bpf_map_lookup_elem(&places, &peer);
	if (!recorded || *recorded == WAITS || *recorded == this_round || is_locked((struct tcp_sock *)self->peer.address))
		return;
	self->redirects = 1;
	changes++;
}

/* Runs for each socket that the bypass knows of, in rounds that the agent makes. Here, and not as they are established, sockets are
 * recorded, since who has a socket, and how it waits, is to be seen later; and an idle sender does not see that its receiver has read all.
 * The sender is not locked: of what it sends in these moments the room may be given back, and it takes new room with its next message. */
SEC("iter/bpf_sk_storage_map")
int tend_socket(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	struct state *self = ctx->value;
	void *sk = ctx->sk;
	char nothing = 0;
	if (!self || !sk)
		return 0;
	/* What is written has read(2) return, with nothing to read. */
	if (ctx->meta->seq_num % SOCKETS_AT_ONCE == SOCKETS_AT_ONCE - 1)
		bpf_seq_write(ctx->meta->seq, &nothing, 1);
	if (self->reused)
		return 0;
	if (self->stage <= STAGE_READY && enabled)
		advance(sk, self);
	if (self->stage == STAGE_OVER) {
		/* It was never recorded, or is closed: no round looks at it again. Unless its memory is another's by now. */
		if (bpf_get_socket_cookie(sk) == self->cookie)
			bpf_sk_storage_delete(&states, sk);
		return 0;
	}
	if (self->stage != STAGE_RECORDED)
		return 0;
	begin_redirecting(self);
	if (self->unread_blocks && has_read_all((struct tcp_sock *)self->peer.address)) {
		return_unread_room(self);
		changes++;
	}
	return 0;
}
