package dns

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/miekg/dns"
)

// Files that name a machine's resolvers.
const (
	// ResolvFile is where programs look.
	ResolvFile = "/etc/resolv.conf"
	// SystemdFile is where systemd-resolved names the resolvers behind itself (systemd-resolved.service(8)).
	SystemdFile = "/run/systemd/resolve/resolv.conf"
)

// Resolvers reads the machine's resolvers from the first file in the form of /etc/resolv.conf that names any, as
// host:port. With foreign, those on the machine's loopback do not count: whoever asks has a loopback of its own.
func Resolvers(foreign bool, files ...string) ([]string, error) {
	var failure error
	for _, file := range files {
		config, err := dns.ClientConfigFromFile(file)
		if err != nil {
			if failure == nil {
				failure = fmt.Errorf("read resolvers: %w", err)
			}
			continue
		}
		var upstreams []string
		for _, server := range config.Servers {
			if address, err := netip.ParseAddr(server); foreign && err == nil && address.IsLoopback() {
				failure = fmt.Errorf("%s names only resolvers on the machine's loopback, for example %s, which are not reached from a network namespace; name another one there", file, server)
				continue
			}
			upstreams = append(upstreams, net.JoinHostPort(server, config.Port))
		}
		if len(upstreams) > 0 {
			return upstreams, nil
		}
	}
	if failure == nil {
		failure = fmt.Errorf("no resolver is named in %v", files)
	}
	return nil, failure
}

// ResolvConf is the /etc/resolv.conf of a workload.
func ResolvConf(server netip.Addr, namespace, domain string) string {
	return fmt.Sprintf("# Written by Heddle.\nnameserver %s\nsearch %s.svc.%s svc.%s %s\noptions ndots:5 timeout:2 attempts:3\n",
		server, namespace, domain, domain, domain)
}
