/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* What the programs of the bypass share. docs/design/0032 says why it is made like this. */
#pragma once

#include "ends.h"
#include "kernel.h"

/* Of the maps, whose pins the next version's programs take over: another number where one gets another name, or a value another meaning.
 * The programs of the control group keep their names: by their pins every version knows that something is attached. */
#define LAYOUT 4

/* A connection as both of its ends know it, whatever the packet filter made of the address that was dialled: the client's
 * address, and the two initial sequence numbers, which the kernel draws. netns is 0 but for loopback and a sidecar's source address,
 * which every namespace has. */
struct handshake {
	__u64 netns;
	__u32 address[4];
	__u32 port;
	__u32 client_seq;
	__u32 server_seq;
	__u32 unused;
};

/* What of a workload bypasses TCP. */
enum mode {
	MODE_SEND, /* what it sends to its proxy, and what proxies send each other */
	MODE_BOTH, /* also what its proxy sends it */
	MODE_OFF,
};

/* A workload or gateway, by the cookie of its network namespace. One that is not known is in MODE_SEND. */
struct workload {
	/* The control group of its proxy, 0 when that is not known. */
	__u64 proxy_cgroup;
	__u32 mode;
	__u32 unused;
};

/* A socket: its cookie, by which it is redirected to, and its address in the kernel's memory. */
struct socket_ref {
	__u64 cookie;
	__u64 address;
};

/* What a client does not see itself: its server. */
struct pair {
	struct socket_ref server;
	/* The client may send to it past TCP. */
	__u32 to_server;
	__u32 unused;
};

/* How far a socket is. */
enum stage {
	STAGE_ESTABLISHED, /* by TCP */
	STAGE_READY,       /* has its place among the recorded ones, and waits for the other end */
	STAGE_TAKEN,       /* record_socket is at it */
	STAGE_RECORDED,
	STAGE_OVER,        /* uses TCP, or is closed */
};

/* What a socket knows of itself. */
struct state {
	/* The other end; a client's is 0 until it has found its pair. */
	struct socket_ref peer;
	__u64 cookie;
	/* In whose share it is, by the cookie of the network namespace. */
	__u64 netns;
	/* enum stage */
	__u32 stage;
	__u32 is_client;
	/* What it had to write and to read next when it was established. */
	__u32 write_seq;
	__u32 read_seq;
	/* Rounds in which it needed its pair, and the last of them. */
	__u32 pair_rounds;
	__u32 pair_round;
	/* A bit for each enum count that it was counted in. */
	__u32 refusals;
	/* It may send to its peer past TCP; it does, as both are recorded. */
	__u32 may_redirect;
	__u32 redirects;
	/* Of a server: its client may send to it past TCP. */
	__u32 to_server;
	/* It connected again: what the peer of before has sent may wait in its queue still. */
	__u32 reused;
	__u32 unused;
	/* Messages that went straight to the peer since it had read all, and blocks of room that were taken for them. */
	__u32 unread_messages;
	__u64 unread_blocks;
};

/* What a workload has: sockets that have a place, and blocks of room for unread messages. */
struct share {
	__s64 sockets;
	__s64 unread_blocks;
};

/* The room for what a sender that is closed has left unread, and in whose share it is. */
struct orphaned_room {
	__u64 netns;
	__u64 unread_blocks;
};

/* The context of a program that runs for each socket's storage (the kernel's net/core/bpf_sk_storage.c). */
struct bpf_iter_meta {
	void *seq;
	__u64 session_id;
	__u64 seq_num;
} KERNEL_TYPE;
struct bpf_iter__bpf_sk_storage_map {
	struct bpf_iter_meta *meta;
	void *map, *sk;
	struct state *value;
};

/* New ones go to the end: their places are those of pinned counters. */
enum count {
	COUNT_CONNECTIONS,              /* both ends were found on this host */
	COUNT_MESSAGES,                 /* went straight to the peer */
	COUNT_BYTES,                    /* of these messages */
	COUNT_FALLBACK_TCP_UNREAD,      /* by TCP: the peer has not read yet what went that way */
	COUNT_FALLBACK_RECEIVER_BEHIND, /* by TCP: the peer does not keep up */
	COUNT_FALLBACK_UNREAD_SHARE,    /* by TCP: the workload has its share of the unread messages */
	COUNT_FALLBACK_RECEIVER_GONE,   /* by TCP: the peer is closed */
	COUNT_FALLBACK_UPPER_LAYER,     /* by TCP: the sender or the receiver has an upper layer protocol, such as kernel TLS */
	COUNT_FALLBACK_SWITCHED_OFF,    /* by TCP: the bypass is to end, and the peer has read all */
	COUNT_REFUSED_NOT_RECORDED,     /* no bypass: the kernel does not record it */
	COUNT_REFUSED_AMBIGUOUS,        /* no bypass: two connections look the same */
	COUNT_REFUSED_WORKLOAD_SHARE,   /* no bypass: the workload has its share of the sockets */
	COUNT_REFUSED_BLOCKING,         /* no bypass: a program waits in calls that read the socket */
	COUNT_REFUSED_ZEROCOPY,         /* no bypass: a program asks to be told what was sent (MSG_ZEROCOPY) */
	COUNT_COUNT,
};

/* Places of the pinned counters, so that one more does not make it a map of another size, which no agent takes over. */
#define COUNT_ROOM 32
_Static_assert(COUNT_COUNT <= COUNT_ROOM, "the counters have no place left");
