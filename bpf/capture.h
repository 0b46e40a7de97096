/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* What the programs of capture share with each other and with the agent. docs/design/0035 says why it is made like this. */
#pragma once

#include "ends.h"
#include "interception.h"
#include "kernel.h"

/* A workload whose traffic is captured, by the cookie of its network namespace. */
struct workload {
	__u32 address[4];
	/* The cluster's DNS server: port 53 there is where it asks for names. */
	__u32 dns[4];
	/* The control group of its proxy. */
	__u64 proxy;
};

/* A client on its way to the proxy of its own namespace. */
struct client {
	__u64 netns;
	__u32 address[4];
	__u32 port;
	__u32 unused;
};

/* Where it meant to go. */
struct destination {
	__u32 address[4];
	__u32 port;
	__u32 unused;
	/* Of the client's socket; 0 of the agent's. */
	__u64 cookie;
};

enum kind {
	KIND_NONE,
	KIND_DIALLED,   /* its peer is the proxy, its application dialled the address */
	KIND_ACCEPTED,  /* the proxy's: its client dialled the address */
	KIND_STEERED,   /* the same, and its own address is the one that was dialled */
	KIND_LISTENING, /* it counts among those that listen on its port */
	KIND_ASKING,    /* its application has dialled the address, port 53 of the cluster's DNS server, or sent datagrams there */
};

/* What is known of a socket. */
struct memory {
	__u32 address[4];
	__u32 port;
	__u32 kind;
};

/* Who takes connections to neighbouring ports: the application's sockets that listen, or, declared, whoever does. One workload can
 * have 1024 of the first kind, whatever its programs do. */
#define BLOCK 64
struct block {
	__u64 netns;
	__u32 number;
	__u32 declared;
};

/* How many sockets listen on each. */
struct ports {
	__u32 open[BLOCK];
};

/* A proxy has as many sockets for what comes as it has workers. */
struct slot {
	__u64 netns;
	__u32 number;
	__u32 unused;
};

/* What a workload has of what there is room for. */
struct usage {
	__s64 pending; /* connections on their way to its proxy */
	__s64 blocks;  /* of ports on which its application has listened */
};

/* Counts of such blocks of all workloads. */
enum block_count {
	BLOCKS_TAKEN,    /* ever, by the programs alone */
	BLOCKS_RETURNED, /* of workloads that are gone, by the agent alone */
	BLOCKS_COUNT,
};

enum count {
	COUNT_OUTBOUND,         /* connections of applications that went to their proxy */
	COUNT_INBOUND,          /* packets that asked for a connection, given to the proxy */
	COUNT_REFUSED_DIRECT,   /* dialled a port of the proxy that only captured connections may use */
	COUNT_REFUSED_FAMILY,   /* by the family of addresses that the cluster does not have */
	COUNT_REFUSED_CLOSED,   /* to a port on which nobody listens */
	COUNT_REFUSED_NO_PROXY, /* the proxy does not listen */
	COUNT_REFUSED_MEMORY,   /* the kernel had no memory for the address that was dialled, or sent to */
	COUNT_REFUSED_PENDING,  /* too many connections that the proxy has not taken */
	COUNT_REFUSED_PORTS,    /* of sockets that listen: no room to note it, so that nobody reaches them from outside */
	COUNT_DNS,              /* to port 53 of the cluster's DNS server: connections, and datagrams of sockets without one */
	COUNT_COUNT,
};

/* Places of the pinned counters, so that one more does not make it a map of another size, which no agent takes over. */
#define COUNT_ROOM 32
_Static_assert(COUNT_COUNT <= COUNT_ROOM, "the counters have no place left");
