// Package federation makes clusters one mesh. One cluster is the primary: it has the root, hands out join tokens, signs
// the members' intermediates and relays what each cluster says of itself to the others. Members dial out to it over mutual
// TLS and keep everything they need on disk, so that every cluster goes on when the primary or a link is dead.
//
// A peer's words are hostile until its certificate says otherwise, and bounded afterwards too.
package federation

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/durable"
)

// Membership says whose mesh a cluster belongs to. A cluster without one is the primary of its own.
type Membership struct {
	// Primary is the primary's name.
	Primary string `json:"primary"`
	// Address, host:port, is where its east-west gateways are found.
	Address string `json:"address"`
	// RootHash is the SHA-256 of the mesh's root key, hexadecimal.
	RootHash string `json:"rootHash"`
	// Joined is when the cluster joined, by the primary's clock.
	Joined time.Time `json:"joined"`
}

// dir is where federation keeps everything of a cluster.
func dir(c cluster.Cluster) string { return filepath.Join(c.Data(), "federation") }

func membershipPath(c cluster.Cluster) string { return filepath.Join(dir(c), "membership.json") }

// AuthorityDir is where the certificate authority of a cluster lies.
func AuthorityDir(c cluster.Cluster) string { return filepath.Join(c.Data(), "ca") }

// ReadMembership gives the cluster's membership, and false when it has joined nobody.
func ReadMembership(c cluster.Cluster) (Membership, bool, error) {
	var m Membership
	found, err := readJSON(membershipPath(c), &m)
	if err != nil {
		return Membership{}, false, fmt.Errorf("membership of cluster %s: %w; restore the file from a backup", c.Name, err)
	}
	return m, found, nil
}

func writeMembership(c cluster.Cluster, m Membership) error {
	if err := durable.WriteJSON(membershipPath(c), m, 0o600); err != nil {
		return fmt.Errorf("keep the membership of cluster %s: %w", c.Name, err)
	}
	return nil
}

// readJSON says whether the file was there.
func readJSON(path string, into any) (bool, error) {
	err := durable.ReadJSON(path, into)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
