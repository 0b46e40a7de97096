package resolve

import (
	"fmt"
	"strings"
	"testing"

	"heddle.io/heddle/control/model"
)

// Who may write external services and machines in one namespace takes nothing of another's by them.
func TestEntriesTakeNothingOfOthers(t *testing.T) {
	const entry = "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: { name: e, namespace: evil }\nspec: { %s }\n"
	const machine = "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: { name: e, namespace: evil }\nspec: { address: %q, serviceAccount: cart }\n"
	host := func(h string) string {
		return fmt.Sprintf(entry, fmt.Sprintf("hosts: [%q], resolution: STATIC, endpoints: [{ address: 192.0.2.9 }], ports: [{ name: http, number: 80, protocol: HTTP }]", h))
	}
	for manifest, reason := range map[string]string{
		host("cart.shop.svc.cluster.local"):                        "HostOfOthers",
		host("Cart.Shop.SVC.Cluster.Local"):                        "HostOfOthers",
		host("cart.shop.svc"):                                      "HostOfOthers",
		host("*.shop.svc.cluster.local"):                           "HostOfOthers",
		host("*.svc.cluster.local"):                                "HostOfOthers",
		host("*.cluster.local"):                                    "HostOfOthers",
		host("*.local"):                                            "HostOfOthers",
		host("cart.shop.shop.svc.cluster.local"):                   "HostOfOthers",
		host("cart.shop.svc.cluster.local.shop.svc.cluster.local"): "HostOfOthers",
		host("cart.shop.svc.cluster.local.cluster.local"):          "HostOfOthers",
		host("evil.svc.cluster.local"):                             "HostOfOthers",
		host("cart.evil.svc.cluster.local"):                        "",
		host("*.evil.svc.cluster.local"):                           "",
		host("cluster.local.example.com"):                          "",
		host("*.example.local"):                                    "",
		fmt.Sprintf(entry, "hosts: [a.example.com], addresses: [10.244.0.0/24], resolution: NONE, ports: [{ name: t, number: 6379, protocol: TCP }]"):                                      "AddressTaken",
		fmt.Sprintf(entry, "hosts: [a.example.com], resolution: DNS, ports: [{ name: http, number: 15000, protocol: HTTP }]"):                                                              "ProxyAdministration",
		fmt.Sprintf(entry, "hosts: [a.example.com], resolution: DNS, endpoints: [{ address: localhost }], ports: [{ name: http, number: 80, targetPort: 15000, protocol: HTTP }]"):         "ProxyAdministration",
		fmt.Sprintf(entry, "hosts: [a.example.com], resolution: STATIC, endpoints: [{ address: 127.0.0.1, ports: { http: 15000 } }], ports: [{ name: http, number: 80, protocol: HTTP }]"): "ProxyAdministration",
		fmt.Sprintf(machine, "127.0.0.1"):        "AddressNotOfMachine",
		fmt.Sprintf(machine, "0.0.0.0"):          "AddressNotOfMachine",
		fmt.Sprintf(machine, "::ffff:127.0.0.1"): "AddressNotOfMachine",
		fmt.Sprintf(machine, "192.0.2.9"):        "",
	} {
		o := decode(t, manifest)
		mesh, report := world(o, nil)
		_, errs := Check(model.DefaultSettings("cluster1"), nil, writes(o))
		refused := ""
		for _, f := range report.Refused(o[0].Key()) {
			refused = f.Reason
		}
		if refused != reason || (len(errs) > 0) != (reason != "") {
			t.Errorf("%s: refused with %q (%v), want %q", manifest, refused, errs, reason)
		}
		// Also what was stored before, or is restored by force, takes nothing.
		if reason == "AddressTaken" {
			continue
		}
		if reason != "" && len(mesh.Services)+len(mesh.Replicas) > 0 {
			t.Errorf("%s: in force all the same", manifest)
		}
	}
	// A machine is of its own namespace's account, whatever the account is called.
	labelled := strings.Replace(fmt.Sprintf(machine, "192.0.2.9"), "serviceAccount:", "labels: { app: e }, serviceAccount:", 1)
	mesh, _ := world(decode(t, labelled+"---\napiVersion: v1\nkind: Service\nmetadata: { name: e, namespace: evil, }\nspec: { clusterIP: 10.96.0.9, selector: { app: e }, ports: [{ port: 80 }] }\n"), nil)
	var identities []string
	for _, s := range mesh.Services {
		identities = append(identities, s.Identities...)
		for _, id := range s.Identities {
			if !strings.Contains(id, "/ns/evil/") {
				t.Errorf("%s is of %s", s.Host, id)
			}
		}
	}
	if len(identities) == 0 {
		t.Error("the machine stands behind no service")
	}
}
