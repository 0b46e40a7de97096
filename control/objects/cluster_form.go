package objects

import (
	"encoding/hex"
	"fmt"
	"strings"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/cluster"
)

// clusterName checks the name of a cluster as `heddle up` does.
func (c *checker) clusterName(path, name string) {
	if _, err := cluster.New(name); err != nil {
		c.fail(path, fmt.Sprintf("%q cannot be the name of a cluster", name),
			`use 1 to 40 lower-case letters, digits and inner hyphens, and not "federation"`)
	}
}

// clusterPattern checks the name of a cluster in which "*" may stand alone, at the beginning or at the end.
func (c *checker) clusterPattern(path, v string) {
	before := len(c.errs)
	c.wildcard(path, v)
	if len(c.errs) == before && !patternOf(v, 40) {
		c.fail(path, fmt.Sprintf("%q is not the name of a cluster", v), `use names such as "cluster1", or "*" for any`)
	}
}

// patternOf says whether a pattern can match a name of lower-case letters, digits and hyphens of at most that length.
func patternOf(v string, most int) bool {
	return v != "" && len(strings.ReplaceAll(v, "*", "")) <= most &&
		strings.Trim(v, "abcdefghijklmnopqrstuvwxyz0123456789-*") == "" &&
		!strings.HasPrefix(v, "-") && !strings.HasSuffix(v, "-")
}

func (c *checker) cluster(o *v1alpha1.Cluster) {
	if key := o.Spec.Key; key != "" {
		if sum, err := hex.DecodeString(key); err != nil || len(sum) != 32 || strings.ToLower(key) != key {
			c.fail("spec.key", "is not a SHA-256 hash", "it is written when a cluster joins; do not set it by hand")
		}
	}
}
