/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Redirects what one socket sends to another one, so that it can be seen what the kernel makes of it. */
#include "helpers.h"

char _license[] SEC("license") = "Apache-2.0";

/* The receiver, and the sender. */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, 2);
	__type(key, __u64);
	__type(value, __u64);
} ends SEC(".maps");

SEC("sk_msg")
int redirect_to_receiver(struct sk_msg_md *msg)
{
	__u64 receiver = 0;
	return bpf_msg_redirect_hash(msg, &ends, &receiver, BPF_F_INGRESS);
}
