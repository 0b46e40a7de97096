package peer

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

func detail(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestRefused(t *testing.T) {
	info := func(names ...string) (out []*anypb.Any) {
		for _, name := range names {
			out = append(out, detail(t, &errdetails.ResourceInfo{ResourceType: "type.googleapis.com/x", ResourceName: name}))
		}
		return out
	}
	many := make([]string, MaxRefused+1)
	for i := range many {
		many[i] = fmt.Sprint(i)
	}
	for name, c := range map[string]struct {
		details []*anypb.Any
		want    int
	}{
		"nothing, as Envoy":         {nil, 0},
		"two":                       {info("a", "b"), 2},
		"as many as may be":         {info(many[1:]...), MaxRefused},
		"one more":                  {info(many...), 0},
		"a name that none has":      {info("a", strings.Repeat("n", MaxName+1)), 0},
		"a long word about one":     {[]*anypb.Any{detail(t, &errdetails.ResourceInfo{ResourceName: "a", Description: strings.Repeat("d", 2*maxInfo)})}, 0},
		"something else":            {append(info("a"), detail(t, &errdetails.DebugInfo{Detail: "a"})), 0},
		"bytes that are no message": {[]*anypb.Any{{TypeUrl: "type.googleapis.com/google.rpc.ResourceInfo", Value: []byte{0xff}}}, 0},
	} {
		got := Refused(&rpcstatus.Status{Details: c.details})
		if len(got) != c.want {
			t.Errorf("%s: %q", name, slices.Sorted(maps.Keys(got)))
		}
	}
	if Refused(nil) != nil {
		t.Error("an answer without an error refuses something")
	}
}
