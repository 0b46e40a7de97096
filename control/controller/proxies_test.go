package controller

import (
	"reflect"
	"testing"
	"time"

	"heddle.io/heddle/control/server/client"
	"heddle.io/heddle/control/xds"
)

// What the server of configuration knows of a proxy is what users are told.
func TestWhatAProxyRuns(t *testing.T) {
	since := time.Unix(1, 0)
	got := client.ProxyStatus{NodeID: "n", Name: "cart-0", Types: map[string]string{}, Errors: map[string]string{}}
	runs(&got, xds.NodeStatus{ID: "n", Connected: since, Revision: 7, Behind: 41, Failure: "no such host", Types: []xds.TypeStatus{
		{Type: "CDS", State: xds.Synced, Version: "42"}, {Type: "LDS", State: xds.Refused, Version: "40", Reason: "listener x: no"}, {Type: "RDS", State: xds.Stale}}})
	want := client.ProxyStatus{NodeID: "n", Name: "cart-0", Connected: true, Since: since, Revision: 7, Behind: 41,
		Types: map[string]string{"CDS": "SYNCED", "LDS": "NACK", "RDS": "STALE"}, Versions: map[string]string{"CDS": "42", "LDS": "40"},
		Errors: map[string]string{"configuration": "no such host", "LDS": "listener x: no"}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	runs(&got, xds.NodeStatus{ID: "n", Synced: true})
	if !got.Synced || got.Behind != 0 {
		t.Errorf("of one that has everything is said %+v", got)
	}
}
