/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* What the programs of the bypass share. docs/design/0032 says why it is made like this. */
#pragma once

#include "address.h"
#include "kernel.h"

/* A connection as both of its ends know it, whatever the packet filter made of the address that was dialled: the client's
 * address, and the two initial sequence numbers, which the kernel draws. netns is 0 but for loopback addresses, which
 * every namespace has. */
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

/* A workload, by the cookie of its network namespace. One that is not known is in MODE_SEND. */
struct workload {
	/* The control group of its proxy, 0 when that is not known. */
	__u64 proxy;
	__u32 mode;
	__u32 unused;
};

/* A socket: its cookie, by which it is redirected to, and where it is. */
struct end {
	__u64 cookie;
	__u64 sock;
};

/* What a socket knows of itself. */
struct state {
	/* Whom it sends to; cookie 0 while that is not known. */
	struct end peer;
	__u64 cookie;
	/* In whose share it is, by the cookie of the network namespace; 0 when it is in nobody's any longer. */
	__u64 workload;
	/* Messages that were sent before the peer was known; MAX_UNPAIRED of one that is not to look for a peer. */
	__u32 unpaired;
	/* Messages that went straight to the peer since it had read all. */
	__u32 unread;
	/* Times MESSAGES_TOGETHER of them that were asked for. */
	__u32 together;
	__u32 unused;
};

/* What a workload has: sockets that are recorded, and room for unread messages, in MESSAGES_TOGETHER. */
struct share {
	__s64 sockets;
	__s64 together;
};

/* What a sender that is closed has left unread, in MESSAGES_TOGETHER, and in whose share it is. */
struct left {
	__u64 workload;
	__u64 together;
};

enum count {
	COUNT_CONNECTIONS,              /* both ends were found on this host */
	COUNT_MESSAGES,                 /* went straight to the peer */
	COUNT_BYTES,                    /* of these messages */
	COUNT_FALLBACK_TCP_UNREAD,      /* by TCP: the peer has not read yet what went that way */
	COUNT_FALLBACK_RECEIVER_BEHIND, /* by TCP: the peer does not keep up */
	COUNT_FALLBACK_UNREAD_SHARE,    /* by TCP: the workload has its share of the unread messages */
	COUNT_FALLBACK_RECEIVER_GONE,   /* by TCP: the peer is closed */
	COUNT_FALLBACK_KERNEL_TLS,      /* by TCP: the kernel encrypts it */
	COUNT_FALLBACK_SWITCHED_OFF,    /* by TCP: the bypass is to end, and the peer has read all */
	COUNT_REFUSED_TOO_MANY_SOCKETS, /* no bypass: the kernel has no room for its record */
	COUNT_REFUSED_AMBIGUOUS,        /* no bypass: two connections look the same */
	COUNT_REFUSED_WORKLOAD_SHARE,   /* no bypass: the workload has its share of the sockets */
	COUNT_COUNT,
};

/* Places of the pinned counters, so that one more does not make it a map of another size, which no agent takes over. */
#define COUNT_ROOM 32
_Static_assert(COUNT_COUNT <= COUNT_ROOM, "the counters have no place left");
