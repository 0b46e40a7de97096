package interception

import (
	"fmt"
	"net/netip"
	"os/user"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range texts {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

// one makes annotations of one.
func one(name, text string) map[string]string { return map[string]string{name: text} }

func TestWhatIsRead(t *testing.T) {
	for _, c := range []struct {
		annotations, variables map[string]string
		want                   Rules
		text                   string
	}{
		{nil, nil, Rules{}, ""},
		{one("example.com/other", "x"), nil, Rules{}, ""},
		// What leaves nothing out says nothing.
		{map[string]string{IncludeOutboundIPRanges: "*", ExcludeOutboundIPRanges: "", IncludeOutboundPorts: "80", ExcludeOutboundPorts: " ",
			IncludeInboundPorts: "*", ExcludeInboundPorts: "", ExcludeInterfaces: ""}, map[string]string{IncludeGroups: "*", ExcludeGroups: ""}, Rules{}, ""},
		{one(ExcludeOutboundPorts, "5432, 3306,3306"), nil, Rules{ExcludedOutboundPorts: []uint16{3306, 5432}}, "outbound to ports 3306, 5432"},
		{one(ExcludeOutboundIPRanges, "10.1.2.3/16,10.1.7.0/24,2001:db8::1/32,10.1.0.0/16"), nil,
			Rules{ExcludedRanges: prefixes("10.1.0.0/16", "2001:db8::/32")}, "outbound to 10.1.0.0/16, 2001:db8::/32"},
		{one(IncludeOutboundIPRanges, ""), nil, Rules{OnlyRanges: true}, "all outbound"},
		{map[string]string{IncludeOutboundIPRanges: "10.0.0.0/8", IncludeOutboundPorts: "80"}, nil,
			Rules{OnlyRanges: true, IncludedRanges: prefixes("10.0.0.0/8"), IncludedOutboundPorts: []uint16{80}}, "outbound to others than 10.0.0.0/8, port 80"},
		{one(IncludeInboundPorts, ""), nil, Rules{OnlyInboundPorts: true}, "all inbound"},
		{one(IncludeInboundPorts, "8080"), nil, Rules{OnlyInboundPorts: true, IncludedInboundPorts: []uint16{8080}}, "inbound to other ports than 8080"},
		// Istio's own templates name its status port, and the health and metrics ports.
		{one(ExcludeInboundPorts, "15020,15021,15090"), nil, Rules{ExcludedInboundPorts: []uint16{15020, 15021, 15090}}, "inbound to ports 15020, 15021, 15090"},
		{map[string]string{IncludeInboundPorts: "8080", ExcludeInboundPorts: "9090"}, nil,
			Rules{OnlyInboundPorts: true, IncludedInboundPorts: []uint16{8080}}, "inbound to other ports than 8080"},
		{nil, one(ExcludeGroups, "java,101"), Rules{Groups: []string{"101", "java"}}, "outbound of groups 101, java"},
		{nil, one(IncludeGroups, "101"), Rules{OnlyGroups: true, Groups: []string{"101"}}, "outbound of other groups than 101"},
		{nil, one(IncludeGroups, ""), Rules{OnlyGroups: true}, "outbound of all groups"},
	} {
		got, problems := Parse(c.annotations, c.variables)
		if len(problems) > 0 || !reflect.DeepEqual(got, c.want) || got.String() != c.text {
			t.Errorf("%v %v: %+v %q %v", c.annotations, c.variables, got, got, problems)
		}
		if got.CaptureAll() != (c.text == "") || got.CaptureAll() != reflect.DeepEqual(got, Rules{}) {
			t.Errorf("%v %v: %v is all", c.annotations, c.variables, got)
		}
	}
}

func TestWhatIsRefused(t *testing.T) {
	many := make([]string, Most+1)
	for i := range many {
		many[i] = fmt.Sprint(1000 + i)
	}
	most, tooMany := strings.Join(many[:Most], ","), strings.Join(many, ",")
	if r, problems := Parse(one(ExcludeOutboundPorts, most), nil); len(problems) > 0 || len(r.ExcludedOutboundPorts) != Most {
		t.Errorf("%v %v", r, problems)
	}
	for _, c := range []struct {
		annotations, variables map[string]string
		name, want             string
	}{
		{one(ExcludeOutboundPorts, "80,x"), nil, ExcludeOutboundPorts, `"x" is no port`},
		{one(ExcludeOutboundPorts, "0"), nil, ExcludeOutboundPorts, `"0" is no port`},
		{one(ExcludeOutboundPorts, "65536"), nil, ExcludeOutboundPorts, `"65536" is no port`},
		{one(ExcludeOutboundPorts, "80-90"), nil, ExcludeOutboundPorts, `"80-90" is no port`},
		{one(ExcludeOutboundPorts, "80,,90"), nil, ExcludeOutboundPorts, "entry 2"},
		{one(ExcludeOutboundPorts, "80,"), nil, ExcludeOutboundPorts, "entry 2"},
		{one(ExcludeOutboundPorts, "*"), nil, ExcludeOutboundPorts, `"*" cannot stand here`},
		{one(IncludeOutboundPorts, "*"), nil, IncludeOutboundPorts, `"*" cannot stand here`},
		{one(ExcludeInboundPorts, "*"), nil, ExcludeInboundPorts, IncludeInboundPorts},
		{one(ExcludeInboundPorts, "15006"), nil, ExcludeInboundPorts, "port 15006 is the proxy's"},
		{one(ExcludeOutboundPorts, "15001"), nil, ExcludeOutboundPorts, "port 15001 is the proxy's"},
		{one(IncludeInboundPorts, "15021"), nil, IncludeInboundPorts, "always left alone"},
		{one(ExcludeOutboundPorts, tooMany), nil, ExcludeOutboundPorts, "has 65 entries, of which 64"},
		{one(IncludeInboundPorts, "*,80"), nil, IncludeInboundPorts, `"*" cannot stand here`},
		{one(ExcludeOutboundIPRanges, "10.0.0.1"), nil, ExcludeOutboundIPRanges, "192.0.2.1/32"},
		{one(ExcludeOutboundIPRanges, "*"), nil, ExcludeOutboundIPRanges, `"" leaves out all`},
		{one(ExcludeOutboundIPRanges, "::ffff:10.0.0.0/104"), nil, ExcludeOutboundIPRanges, "no range"},
		{one(ExcludeOutboundIPRanges, "fe80::%eth0/64"), nil, ExcludeOutboundIPRanges, "no range"},
		{one(IncludeOutboundIPRanges, "*,10.0.0.0/8"), nil, IncludeOutboundIPRanges, `"*" cannot stand here`},
		{one(IncludeOutboundIPRanges, "127.0.0.0/8"), nil, IncludeOutboundIPRanges, "within the workload"},
		{one(IncludeOutboundIPRanges, "::1/128"), nil, IncludeOutboundIPRanges, "within the workload"},
		{one(ExcludeInterfaces, "eth1"), nil, ExcludeInterfaces, "one interface"},
		{one(Prefix+"excludeOutboundPort", "80"), nil, Prefix + "excludeOutboundPort", "is not supported"},
		{one(Prefix+"kubevirtInterfaces", "net1"), nil, Prefix + "kubevirtInterfaces", "is not supported"},
		{map[string]string{IncludeInboundPorts: "80,81", ExcludeInboundPorts: "81"}, nil, ExcludeInboundPorts, "port 81 is in"},
		{nil, one(ExcludeGroups, "a b"), ExcludeGroups, "no group"},
		{nil, one(ExcludeGroups, "4294967295"), ExcludeGroups, "no group's number"},
		{nil, one(ExcludeGroups, "*"), ExcludeGroups, IncludeGroups},
		{nil, map[string]string{IncludeGroups: "1", ExcludeGroups: "2"}, ExcludeGroups, "set one"},
		// One that is wrong has the others count for nothing.
		{map[string]string{ExcludeOutboundPorts: "80", ExcludeInboundPorts: "x"}, one(ExcludeGroups, "7"), ExcludeInboundPorts, "no port"},
	} {
		got, problems := Parse(c.annotations, c.variables)
		if len(problems) != 1 || problems[0].Name != c.name || !strings.Contains(problems[0].Error(), c.want) || problems[0].Remedy == "" {
			t.Errorf("%v %v: %v", c.annotations, c.variables, problems)
		}
		if !got.CaptureAll() {
			t.Errorf("%v %v: half heeded: %v", c.annotations, c.variables, got)
		}
	}
	if _, problems := Parse(map[string]string{ExcludeInboundPorts: "x,y", IncludeOutboundIPRanges: "z"}, nil); len(problems) != 3 {
		t.Errorf("%v", problems)
	}
}

// Whatever is written, what is captured is what the words say, and there is room for it.
func FuzzParse(f *testing.F) {
	for i, text := range []string{"", "*", "80,81", "10.0.0.0/8,::/0", "101,java", "10.1.0.0/16,10.0.0.0/8", ","} {
		f.Add(uint8(i), text, text)
	}
	names := []string{IncludeOutboundIPRanges, ExcludeOutboundIPRanges, IncludeOutboundPorts, ExcludeOutboundPorts, IncludeInboundPorts, ExcludeInboundPorts, ExcludeInterfaces}
	f.Fuzz(func(t *testing.T, which uint8, a, b string) {
		rules, problems := Parse(map[string]string{names[int(which)%len(names)]: a, names[int(which/7)%len(names)]: b}, nil)
		if len(problems) > 0 && !rules.CaptureAll() || rules.CaptureAll() != (rules.String() == "") {
			t.Errorf("%q %q: %v %v", a, b, rules, problems)
		}
		for _, n := range []int{len(rules.ExcludedOutboundPorts), len(rules.ExcludedRanges), len(rules.IncludedRanges), len(rules.IncludedOutboundPorts),
			len(rules.IncludedInboundPorts), len(rules.ExcludedInboundPorts)} {
			if n > Most {
				t.Errorf("%d entries", n)
			}
		}
	})
}

func TestWhatIsCaptured(t *testing.T) {
	at := netip.MustParseAddrPort
	for _, c := range []struct {
		annotations map[string]string
		captured    []string
		left        []string
	}{
		{nil, []string{"192.0.2.1:80", "[2001:db8::1]:80"}, nil},
		{one(ExcludeOutboundPorts, "80"), []string{"192.0.2.1:81"}, []string{"192.0.2.1:80", "[2001:db8::1]:80"}},
		{one(ExcludeOutboundIPRanges, "192.0.2.0/24,2001:db8::/32"), []string{"192.0.3.1:80", "[2001:db9::1]:80"}, []string{"192.0.2.1:80", "[::ffff:192.0.2.1]:80", "[2001:db8::1]:80"}},
		// All of IPv6 is not IPv4.
		{one(ExcludeOutboundIPRanges, "::/0"), []string{"192.0.2.1:80", "[::ffff:192.0.2.1]:80"}, []string{"[2001:db8::1]:80"}},
		{one(IncludeOutboundIPRanges, "192.0.2.0/24"), []string{"192.0.2.1:80"}, []string{"192.0.3.1:80", "[2001:db8::1]:80"}},
		{one(IncludeOutboundIPRanges, ""), nil, []string{"192.0.3.1:80"}},
		{map[string]string{IncludeOutboundIPRanges: "192.0.2.0/24", IncludeOutboundPorts: "81", ExcludeOutboundIPRanges: "192.0.2.128/25,192.0.4.0/24", ExcludeOutboundPorts: "82"},
			[]string{"192.0.2.1:80", "192.0.3.1:81"}, []string{"192.0.3.1:80", "192.0.2.129:80", "192.0.2.129:81", "192.0.4.1:81", "192.0.2.1:82"}},
	} {
		rules, problems := Parse(c.annotations, nil)
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		for want, all := range map[bool][]string{true: c.captured, false: c.left} {
			for _, to := range all {
				if got, err := rules.CaptureOutbound(at(to), 0); err != nil || got != want {
					t.Errorf("%v: %s is captured: %v %v", c.annotations, to, got, err)
				}
			}
		}
	}
	for _, c := range []struct {
		annotations map[string]string
		captured    []uint16
		left        []uint16
	}{
		{nil, []uint16{80}, nil},
		{one(ExcludeInboundPorts, "80"), []uint16{81}, []uint16{80}},
		{one(IncludeInboundPorts, "80"), []uint16{80}, []uint16{81}},
		{one(IncludeInboundPorts, ""), nil, []uint16{80}},
	} {
		rules, _ := Parse(c.annotations, nil)
		if !slices.ContainsFunc(c.captured, rules.CaptureInbound) && len(c.captured) > 0 || slices.ContainsFunc(c.left, rules.CaptureInbound) {
			t.Errorf("%v", c.annotations)
		}
	}
}

func TestGroups(t *testing.T) {
	to := netip.MustParseAddrPort("192.0.2.1:80")
	for variables, want := range map[[2]string][2]bool{ // of groups 101 and 102
		{ExcludeGroups, "101"}: {false, true}, {IncludeGroups, "101"}: {true, false}, {IncludeGroups, ""}: {false, false},
	} {
		rules, problems := Parse(nil, one(variables[0], variables[1]))
		for i, group := range []uint32{101, 102} {
			if got, err := rules.CaptureOutbound(to, group); err != nil || len(problems) > 0 || got != want[i] {
				t.Errorf("%v %d: %v %v %v", variables, group, got, err, problems)
			}
		}
	}
	first, err := user.LookupGroupId("0")
	if err != nil {
		t.Fatal(err)
	}
	if ids, err := (Rules{Groups: []string{"0", "7", first.Name}}).GroupIDs(); err != nil || !slices.Equal(ids, []uint32{0, 7}) {
		t.Errorf("%v %v", ids, err)
	}
	unknown := Rules{Groups: []string{"no-such-group"}}
	if _, err := unknown.CaptureOutbound(to, 0); err == nil || !strings.Contains(err.Error(), `"no-such-group"`) {
		t.Error(err)
	}
}
