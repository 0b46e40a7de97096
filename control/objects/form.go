package objects

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Default fills in the defaults that are written into stored objects, as Kubernetes does for its kinds. Istio's
// fields stay as they were written; their defaults are the model's.
func Default(o *Object) {
	if fill := defined[o.Kind].defaults; fill != nil {
		fill(o.Resource)
	}
}

// Form is what is to be said of an object by itself.
type Form struct {
	// Errors are what is wrong with it: names, ranges, contradictions, fields that are refused. What it names elsewhere is not
	// looked at. They have a path but neither file nor line.
	Errors []*Error
	// Ignored are the fields that are set and have no effect, with the reason, for its status.
	Ignored []FieldMessage
	// RegexSize is that of all of its regular expressions; see [MaxNamespaceRegexSize].
	RegexSize int
}

// CheckForm says what is wrong with an object by itself, as [FormOf] does.
func CheckForm(o *Object) []*Error { return FormOf(o).Errors }

// FormOf looks at an object by itself.
func FormOf(o *Object) Form {
	c := &checker{key: o.Key()}
	c.metadata(o)
	d, known := defined[o.Kind]
	if !known {
		c.fail("", fmt.Sprintf("kind %s is not defined", o.Kind.Kind), "this is a fault of Heddle; report it")
	} else if d.form != nil {
		d.form(c, o.Resource)
	}
	c.treatments(o)
	return Form{Errors: c.errs, Ignored: c.ignored, RegexSize: c.regexSizes}
}

type checker struct {
	key     Key
	errs    []*Error
	ignored []FieldMessage
	// regexSizes is the size of all regular expressions so far.
	regexSizes int
}

// fail adds an error. An object that is wrong from end to end has [maxErrors], the last of which says that there are more.
func (c *checker) fail(path, problem, remedy string) {
	switch len(c.errs) {
	case maxErrors:
		return
	case maxErrors - 1:
		path, problem, remedy = "", "too many errors", "correct those before this one to see the others"
	}
	c.errs = append(c.errs, &Error{Object: c.key, Path: path, Problem: problem, Remedy: remedy})
}

func (c *checker) metadata(o *Object) {
	name := o.GetName()
	switch {
	case name == "":
		c.fail("metadata.name", "missing", "give the object a name")
	case o.Kind == Service:
		c.dnsLabel1035("metadata.name", name)
	case o.Kind == Namespace, o.Kind == GlobalNamespace:
		c.dnsLabel("metadata.name", name)
	case o.Kind == Cluster:
		c.clusterName("metadata.name", name)
	case o.Kind == Workload:
		// Replicas are called name-ordinal and that is a DNS label and a directory.
		c.dnsLabel("metadata.name", name)
		if len(name) > 57 {
			c.fail("metadata.name", "is longer than 57 characters", "shorten it: replicas add an ordinal to it")
		}
	default:
		if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
			c.fail("metadata.name", fmt.Sprintf("%q is not a valid name", name),
				"use lower-case letters, digits, '-' and '.', and begin and end with a letter or digit")
		}
	}
	if ns := o.GetNamespace(); o.Kind.Namespaced {
		c.dnsLabel("metadata.namespace", ns)
	}
	c.labels("metadata.labels", o.GetLabels())
	for _, key := range slices.Sorted(maps.Keys(o.GetAnnotations())) {
		if problems := validation.IsQualifiedName(strings.ToLower(key)); len(problems) > 0 {
			c.fail(joinKey("metadata.annotations", key), "is not a valid annotation name", problems[0])
		}
	}
}

func (c *checker) dnsLabel(path, name string) {
	if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
		c.fail(path, fmt.Sprintf("%q is not a DNS label", name),
			"use at most 63 lower-case letters, digits and '-', and begin and end with a letter or digit")
	}
}

func (c *checker) dnsLabel1035(path, name string) {
	if problems := validation.IsDNS1035Label(name); len(problems) > 0 {
		c.fail(path, fmt.Sprintf("%q is not a valid service name", name),
			"use at most 63 lower-case letters, digits and '-', begin with a letter, end with a letter or digit")
	}
}

func (c *checker) labels(path string, labels map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		if problems := validation.IsQualifiedName(key); len(problems) > 0 {
			c.fail(joinKey(path, key), "is not a valid label name", problems[0])
		}
		if problems := validation.IsValidLabelValue(labels[key]); len(problems) > 0 {
			c.fail(joinKey(path, key), fmt.Sprintf("%q is not a valid label value", labels[key]), problems[0])
		}
	}
}

func (c *checker) port(path string, port int64) {
	switch {
	case port == 0:
		c.fail(path, "missing", "give a port from 1 to 65535")
	case port < 1 || port > 65535:
		c.fail(path, fmt.Sprintf("%d is not a port", port), "use 1 to 65535")
	}
}

// exportTo checks visibility lists: ".", "*", "~" and namespaces.
func (c *checker) exportTo(path string, values []string) {
	for i, v := range values {
		switch v {
		case ".", "*", "~":
			if len(values) > 1 && v != "." {
				c.fail(fmt.Sprintf("%s[%d]", path, i), fmt.Sprintf("%q cannot stand beside others", v),
					"leave only it, or only the others")
			}
		default:
			c.dnsLabel(fmt.Sprintf("%s[%d]", path, i), v)
		}
	}
}

// host checks a host name in which the first label may be "*".
func (c *checker) host(path, host string) {
	if host == "" {
		c.fail(path, "is empty", `give a host name, or "*" for every host`)
		return
	}
	if host == "*" {
		return
	}
	if address, err := netip.ParseAddr(host); err == nil {
		c.noZone(path, address)
		return
	}
	name := strings.ToLower(strings.TrimPrefix(host, "*."))
	if len(validation.IsDNS1123Subdomain(name)) > 0 {
		c.fail(path, fmt.Sprintf("%q is not a host name", host),
			`use a DNS name such as cart.shop.svc.cluster.local, with at most one "*" as its first label`)
	}
}

// noZone refuses an address of IPv6 that has a zone: no proxy takes one.
func (c *checker) noZone(path string, address netip.Addr) {
	if address.Zone() != "" {
		c.fail(path, fmt.Sprintf("%q has a zone, which is of one machine", address), "leave out the % and what follows")
	}
}

// SetCreated keeps the metadata that belongs to the store: it takes uid, creation time and generation over from the
// stored object, or makes new ones.
func SetCreated(o, stored *Object, now metav1.Time, uid string, changed bool) {
	if stored != nil {
		o.SetUID(stored.GetUID())
		o.SetCreationTimestamp(stored.GetCreationTimestamp())
		o.SetGeneration(stored.GetGeneration())
		if changed {
			o.SetGeneration(stored.GetGeneration() + 1)
		}
		return
	}
	o.SetUID(types.UID(uid))
	// Not what a manifest says: the oldest of two that want the same has it.
	o.SetCreationTimestamp(now)
	o.SetGeneration(1)
}
