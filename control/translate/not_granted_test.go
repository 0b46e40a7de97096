package translate

import (
	"testing"

	"heddle.io/heddle/control/model"
)

// A destination that routes may not use must not be reached through the cluster that others have for it.
func TestNotGrantedHasNoCluster(t *testing.T) {
	d := model.Destination{Host: "db.data.svc.cluster.local", Port: 80}
	open := destinationCluster(d)
	if d.Missing, d.NotGranted = true, true; destinationCluster(d) == open {
		t.Errorf("both go to %s", open)
	}
}
