/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* What the programs use of the kernel's helpers (bpf-helpers(7)), and of the loader's conventions (libbpf's, which cilium/ebpf
 * follows): these few lines instead of a package of headers. */
#pragma once

#include <linux/bpf.h>

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, value) int(*name)[value]
#define __type(name, value) typeof(value) *name
#define always_inline inline __attribute__((always_inline))
/* A type of the kernel of which only the named fields are known: the loader finds their offsets in the running kernel's BTF. */
#define KERNEL_TYPE __attribute__((preserve_access_index))

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static long (*bpf_map_update_elem)(void *map, const void *key, const void *value, __u64 flags) = (void *)BPF_FUNC_map_update_elem;
static long (*bpf_map_delete_elem)(void *map, const void *key) = (void *)BPF_FUNC_map_delete_elem;
static __u64 (*bpf_get_socket_cookie)(void *of) = (void *)BPF_FUNC_get_socket_cookie;
static __u64 (*bpf_get_current_cgroup_id)(void) = (void *)BPF_FUNC_get_current_cgroup_id;
static __u64 (*bpf_get_netns_cookie)(void *ctx) = (void *)BPF_FUNC_get_netns_cookie;
static long (*bpf_sock_hash_update)(struct bpf_sock_ops *ops, void *map, void *key, __u64 flags) = (void *)BPF_FUNC_sock_hash_update;
static long (*bpf_sock_ops_cb_flags_set)(struct bpf_sock_ops *ops, int flags) = (void *)BPF_FUNC_sock_ops_cb_flags_set;
static long (*bpf_msg_redirect_hash)(struct sk_msg_md *msg, void *map, void *key, __u64 flags) = (void *)BPF_FUNC_msg_redirect_hash;
static void *(*bpf_sk_storage_get)(void *map, void *sk, void *value, __u64 flags) = (void *)BPF_FUNC_sk_storage_get;
static long (*bpf_sk_storage_delete)(void *map, void *sk) = (void *)BPF_FUNC_sk_storage_delete;
static long (*bpf_seq_write)(void *seq, const void *data, __u32 size) = (void *)BPF_FUNC_seq_write;
static void *(*bpf_skc_to_tcp_sock)(void *sk) = (void *)BPF_FUNC_skc_to_tcp_sock;
static long (*bpf_set_retval)(int retval) = (void *)BPF_FUNC_set_retval;
static long (*bpf_bind)(struct bpf_sock_addr *ctx, void *addr, int addr_len) = (void *)BPF_FUNC_bind;
static long (*bpf_sk_assign)(void *ctx, void *sk, __u64 flags) = (void *)BPF_FUNC_sk_assign;
static long (*bpf_sk_release)(void *sk) = (void *)BPF_FUNC_sk_release;
static long (*bpf_probe_read_kernel)(void *to, __u32 size, const void *from) = (void *)BPF_FUNC_probe_read_kernel;

/* Reads a field of a kernel's object that the verifier knows nothing of. Zero when it is not there. */
#define READ(field)                                                                               \
	({                                                                                        \
		typeof(field) value = 0;                                                          \
		bpf_probe_read_kernel(&value, sizeof value, __builtin_preserve_access_index(&(field))); \
		value;                                                                            \
	})

/* Reads a field of some bits, whose place the loader finds as that of others; what a byte or more holds is no pointer. */
enum field_info { FIELD_BYTE_OFFSET, FIELD_BYTE_SIZE, FIELD_LEFT_SHIFT = 4, FIELD_RIGHT_SHIFT };
#define FIELD_INFO(of, field, what) __builtin_preserve_field_info((of)->field, what)
#define READ_BITS(of, field)                                                                                   \
	({                                                                                                     \
		const void *at = (const char *)(of) + FIELD_INFO(of, field, FIELD_BYTE_OFFSET);               \
		__u64 bits = 0;                                                                                \
		bpf_probe_read_kernel(&bits, FIELD_INFO(of, field, FIELD_BYTE_SIZE), at);                     \
		bits << FIELD_INFO(of, field, FIELD_LEFT_SHIFT) >> FIELD_INFO(of, field, FIELD_RIGHT_SHIFT); \
	})
