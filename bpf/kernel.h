/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* The kernel's own types, as far as the programs read them. */
#pragma once

#include "helpers.h"

typedef struct {
	int counter;
} atomic_t;
struct list_head {
	struct list_head *next;
} KERNEL_TYPE;
struct wait_queue_head {
	struct list_head head;
} KERNEL_TYPE;
typedef struct {
	int owned;
	struct wait_queue_head wq;
} KERNEL_TYPE socket_lock_t;
typedef struct {
	__u32 val;
} KERNEL_TYPE kgid_t;
struct cred {
	kgid_t fsgid;
} KERNEL_TYPE;
/* The value of x86 and of arm64 (fcntl(2)). */
#define O_NONBLOCK 04000
struct file {
	unsigned int f_flags;
	const struct cred *f_cred;
} KERNEL_TYPE;
struct socket {
	struct file *file;
} KERNEL_TYPE;
struct kernfs_node {
	__u64 id;
} KERNEL_TYPE;
struct cgroup {
	struct kernfs_node *kn;
} KERNEL_TYPE;
struct sock_cgroup_data {
	struct cgroup *cgroup;
} KERNEL_TYPE;
/* Places in skc_flags. */
enum sock_flags {
	SOCK_ZEROCOPY,
};
struct sock_common {
	volatile unsigned char skc_state;
	unsigned long skc_flags;
} KERNEL_TYPE;
struct sock {
	struct sock_common __sk_common;
	struct {
		atomic_t rmem_alloc;
	} sk_backlog;
	socket_lock_t sk_lock;
	struct socket *sk_socket;
	unsigned char sk_kern_sock : 1;
	struct sock_cgroup_data sk_cgrp_data;
} KERNEL_TYPE;
struct inet_sock {
	struct sock sk;
} KERNEL_TYPE;
struct inet_connection_sock {
	struct inet_sock icsk_inet;
	const void *icsk_ulp_ops;
} KERNEL_TYPE;
struct tcp_sock {
	struct inet_connection_sock inet_conn;
	__u32 copied_seq;
	__u32 write_seq;
} KERNEL_TYPE;

/* Whether the socket was made in this control group, which nobody enters who is not put there. */
static always_inline int is_in_cgroup(struct bpf_sock *sk, __u64 id)
{
	struct tcp_sock *tcp = bpf_skc_to_tcp_sock(sk);
	if (!tcp)
		return 0;
	struct cgroup *group = tcp->inet_conn.icsk_inet.sk.sk_cgrp_data.cgroup;
	return group && group->kn->id == id;
}
