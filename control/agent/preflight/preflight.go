// Package preflight looks, before anything is changed, whether this machine can run a cluster. Each finding says what
// is missing, where, why it is needed and what to do.
package preflight

import (
	"fmt"
	"strings"

	"heddle.io/heddle/control/agent/process"
	"heddle.io/heddle/control/cluster"
)

// Finding is one prerequisite that is not met.
type Finding struct {
	// What is missing, Where it was looked for, Why it is needed, and the Remedy.
	What, Where, Why, Remedy string
}

// Error puts the parts in one line.
func (f Finding) Error() string {
	return fmt.Sprintf("%s (%s): %s; %s", f.What, f.Where, f.Why, f.Remedy)
}

// Requirements of a cluster.
type Requirements struct {
	// Data and Run are the directories that will be made.
	Data, Run string
	// Proxies are the proxy programs.
	Proxies []string
	// Hyperscan is the proxy program that is to find regular expressions by it; empty for none.
	Hyperscan string
	// Family of the cluster's addresses; empty means IPv4.
	Family cluster.Family
	// Capture is the way of capture that was asked for; the programs are looked for when it is [cluster.CaptureEBPF].
	Capture string
	// Addresses are host:port that the agent will listen on.
	Addresses []string
}

// Bounds that the machine must offer.
const (
	// minimumDisk is for the store, whose log alone is preallocated with 64 MB, keys and rotated logs.
	minimumDisk = 512 << 20
	// Oldest kernel: mount_setattr(2), by which all that a workload sees is made read-only at once, came with 5.12.
	minimumMajor, minimumMinor = 5, 12
)

// Probes look at the machine. Tests put in others; [Machine] gives the real ones.
type Probes struct {
	UID func() int
	// Kernel release, for example "6.1.0-18-amd64".
	Kernel func() (string, error)
	// Namespaces tries to make a network and a mount namespace.
	Namespaces func() error
	// NFTables tries to talk to the kernel by the nft program.
	NFTables func() error
	// Capture tries whether the kernel takes the programs of capture by eBPF.
	Capture func() error
	// Program finds a program and returns its path.
	Program func(name string) (string, error)
	// Hyperscan has a proxy program load the library.
	Hyperscan func(proxy string) error
	// IPv6 says whether the kernel has it.
	IPv6 func() error
	// Forwarding says whether IP forwarding, a setting below /proc/sys, is on or can be switched on.
	Forwarding func(setting string) error
	// Cgroups returns the controllers that can bound workloads.
	Cgroups func() ([]string, error)
	// Disk is the free space in bytes of the file system that holds a path, which need not exist yet.
	Disk func(path string) (uint64, error)
	// Writable tries to write below a directory.
	Writable func(path string) error
	// Conflict says what uses our address ranges, or "".
	Conflict func() (string, error)
	// Listen tries to listen on an address of this machine by TCP and UDP, when the address exists.
	Listen func(address string) error
}

// Check returns everything that is missing.
func Check(p Probes, r Requirements) []Finding {
	if uid := p.UID(); uid != 0 {
		// Without root the other probes would only fail for that reason.
		return []Finding{{"root is needed", fmt.Sprintf("user id %d", uid), "workloads get network namespaces, addresses and packet filter rules, which only root may make", "run the command with sudo"}}
	}
	var out []Finding
	add := func(err error, what, where, why, remedy string) {
		if err != nil {
			out = append(out, Finding{what, where, why + ": " + err.Error(), remedy})
		}
	}
	out = append(out, kernel(p)...)
	add(p.Namespaces(), "namespaces cannot be made", "Linux kernel", "each workload runs in a network and a mount namespace of its own",
		"use a kernel with CONFIG_NET_NS, and a container or virtual machine that allows namespaces (CAP_SYS_ADMIN)")
	if _, err := p.Program("nft"); err != nil {
		add(err, "the program nft is missing", "PATH", "traffic is brought to the proxies by nftables rules", "install the package nftables, for example `apt-get install nftables`")
	} else {
		add(p.NFTables(), "nftables does not work", "nft list tables", "traffic is brought to the proxies by nftables rules", "use a kernel with CONFIG_NF_TABLES, CONFIG_NFT_NAT and CONFIG_NFT_REDIR (`modprobe nf_tables`)")
	}
	if r.Capture == cluster.CaptureEBPF {
		add(p.Capture(), "traffic cannot be captured by eBPF", "Linux kernel", "--capture "+cluster.CaptureEBPF+" was asked for",
			"use another kernel, or --capture "+cluster.CaptureAuto+" or "+cluster.CaptureNFTables+", which capture by nftables here")
	}
	forwarding := "net/ipv4/ip_forward"
	if r.Family == cluster.IPv6 {
		forwarding = "net/ipv6/conf/all/forwarding"
		add(p.IPv6(), "the kernel has no IPv6", "/proc/net/if_inet6", "the cluster's addresses are of this family", "boot without ipv6.disable=1, or leave --ip-family out")
	}
	add(p.Forwarding(forwarding), "IP forwarding cannot be switched on", "/proc/sys/"+forwarding, "workloads reach the world through this machine",
		"allow it with `sysctl -w "+strings.ReplaceAll(forwarding, "/", ".")+"=1`, or start the container with writable /proc/sys")
	if controllers, err := p.Cgroups(); err != nil || len(controllers) == 0 {
		if err == nil {
			err = fmt.Errorf("no hierarchy offers any controller")
		}
		add(err, "control groups are missing", "/proc/self/mountinfo", "workloads are bounded and found again by control groups", "mount cgroup2 on /sys/fs/cgroup")
	}
	_, launcherErr := p.Program(process.Launcher)
	add(launcherErr, "the program "+process.Launcher+" is missing", "beside heddle, and PATH", "it starts workloads and proxies, and is the first process of their sandboxes", "install it beside heddle: `make build` puts both into bin/")
	if r.Hyperscan != "" {
		add(p.Hyperscan(r.Hyperscan), "Hyperscan is missing", r.Hyperscan, "the cluster's regular expressions are to be found by it",
			"install it, on Debian with `apt-get install libhyperscan5`, or give --regex-engine portable")
	}
	for _, proxy := range r.Proxies {
		_, err := p.Program(proxy)
		add(err, "the proxy program is missing", proxy, "every workload and gateway has one", "build it with `make build`, or name it with --proxy or --gateway-proxy")
	}
	for _, dir := range []string{r.Data, r.Run} {
		add(p.Writable(dir), "a directory cannot be written", dir, "the cluster keeps its store, keys and sockets there", "make its file system writable, or free inodes")
	}
	if free, err := p.Disk(r.Data); err != nil || free < minimumDisk {
		if err == nil {
			err = fmt.Errorf("%d MB are free, %d are needed", free>>20, minimumDisk>>20)
		}
		add(err, "the disk is too full", r.Data, "the store must never run out of space", "free some space there")
	}
	conflict, err := p.Conflict()
	if err == nil && conflict != "" {
		err = fmt.Errorf("%s", conflict)
	}
	add(err, "the cluster's addresses are in use", "routes of this machine", "workloads and services need ranges of their own",
		"stop what uses them (another cluster: `heddle down --name <other>`)")
	for _, address := range r.Addresses {
		add(p.Listen(address), "an address is taken", address, "the agent listens there", "stop the program that listens there: `ss -lntup` shows it")
	}
	return out
}

func kernel(p Probes) []Finding {
	release, err := p.Kernel()
	if err != nil {
		return []Finding{{"the kernel's release is unknown", "uname", err.Error(), "run Heddle on Linux"}}
	}
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return []Finding{{"the kernel's release is unknown", "uname", fmt.Sprintf("%q is not a version", release), "run Heddle on Linux"}}
	}
	if major < minimumMajor || major == minimumMajor && minor < minimumMinor {
		return []Finding{{"the kernel is too old", strings.TrimSpace(release), fmt.Sprintf("Linux %d.%d is the oldest that can make all of a workload's view read-only (mount_setattr)", minimumMajor, minimumMinor), "boot a newer kernel"}}
	}
	return nil
}
