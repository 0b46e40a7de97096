package etcd

import (
	"strings"

	"heddle.io/heddle/control/objects"
)

// An object lies below its kind's spec/, its status below status/ with the same ending, so that a status never changes
// the object's version and one watch sees both:
//
//	/heddle/objects/<group or core>/<kind>/spec/<namespace or _>/<name>
//	/heddle/objects/<group or core>/<kind>/status/<namespace or _>/<name>
//	/heddle/records/<name>/…
//	/heddle/format
//
// No part can hold a slash: names are DNS names.
const (
	root          = "/heddle/"
	objectsPrefix = root + "objects/"
	specPart      = "spec/"
	statusPart    = "status/"
)

func kindPrefix(kind *objects.Kind) string {
	return objectsPrefix + groupPart(kind.Group) + "/" + kind.Kind + "/"
}

func groupPart(group string) string {
	if group == "" {
		return "core"
	}
	return group
}

func namespacePart(namespace string) string {
	if namespace == "" {
		return "_"
	}
	return namespace
}

// below is the part of keys in a namespace; all of them for an empty one.
func below(namespace string) string {
	if namespace == "" {
		return ""
	}
	return namespace + "/"
}

func specKey(key objects.Key) string { return partKey(key, specPart) }

func statusKey(key objects.Key) string { return partKey(key, statusPart) }

func partKey(key objects.Key, part string) string {
	return objectsPrefix + groupPart(key.Group) + "/" + key.Kind + "/" + part + namespacePart(key.Namespace) + "/" + key.Name
}

// path names an object's place, for what is sealed.
func path(key objects.Key) string {
	return groupPart(key.Group) + "/" + key.Kind + "/" + namespacePart(key.Namespace) + "/" + key.Name
}

// place is what a key of etcd holds.
type place struct {
	key    objects.Key
	status bool
}

// parseKey reads what specKey and statusKey wrote. What is neither gives an empty one.
func parseKey(text string) place {
	rest, ok := strings.CutPrefix(text, objectsPrefix)
	parts := strings.Split(rest, "/")
	if !ok || len(parts) != 5 || parts[2]+"/" != specPart && parts[2]+"/" != statusPart {
		return place{}
	}
	p := place{key: objects.Key{Group: parts[0], Kind: parts[1], Namespace: parts[3], Name: parts[4]}, status: parts[2]+"/" == statusPart}
	if p.key.Group == "core" {
		p.key.Group = ""
	}
	if p.key.Namespace == "_" {
		p.key.Namespace = ""
	}
	return p
}
