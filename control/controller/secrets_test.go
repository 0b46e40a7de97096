package controller

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/seal"
)

const sealedShop = `
apiVersion: v1
kind: Secret
metadata: { name: shop-cert, namespace: istio-system }
stringData: { password: planted-secret-4711 }
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: { name: shop, namespace: istio-system }
spec:
  selector: { istio: ingressgateway }
  servers: [{ port: { number: 443, name: https, protocol: HTTPS }, hosts: [shop.example.com], tls: { mode: SIMPLE, credentialName: shop-cert } }]
`

// condition of an object's status: "True", or the reason and message that it is not.
func (i *instance) condition(kind *objects.Kind, name, condition string) string {
	o, err := i.client.Get(context.Background(), kind, cluster.GatewayNamespace, name)
	if err != nil {
		return err.Error()
	}
	for _, c := range o.Status.Conditions {
		if c.Type == condition && c.Status != "True" {
			return c.Reason + ": " + c.Message
		}
		if c.Type == condition {
			return "True"
		}
	}
	return ""
}

// A controller whose keys are lost starts, says of each Secret that it cannot be decrypted and of each object that needs it,
// takes no others, goes on as soon as the keys are back, and ends what an earlier one began.
func TestSecretsWithoutTheirKey(t *testing.T) {
	i := newInstance(t, "sealing").start()
	i.apply(sealedShop)
	eventually(t, "the Secret is accepted", func() bool { return i.condition(objects.Secret, "shop-cert", objects.ConditionAccepted) == "True" })
	i.stop()
	file := i.place.SecretsKey(cluster.Options{})
	if err := os.Rename(file, file+".away"); err != nil {
		t.Fatal(err)
	}
	i.start()
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("another key was made: %v", err)
	}
	eventually(t, "the Secret's status says it", func() bool {
		text := i.condition(objects.Secret, "shop-cert", objects.ConditionAccepted)
		return strings.HasPrefix(text, "Undecryptable: ") && strings.Contains(text, "restore the file")
	})
	eventually(t, "the Gateway's status says it", func() bool {
		return strings.Contains(i.condition(objects.Gateway, "shop", objects.ConditionResolvedRefs), "the Secret cannot be decrypted")
	})
	if status, err := i.client.Secrets(context.Background()); err != nil || len(status.Unreadable) != 1 || status.Unreadable[0].Secret != "Secret/istio-system/shop-cert" {
		t.Errorf("%+v %v", status, err)
	}
	if err := os.Rename(file+".away", file); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the Secret is back", func() bool { return i.condition(objects.Secret, "shop-cert", objects.ConditionAccepted) == "True" })
	eventually(t, "the Gateway's certificate is bad for its own reason only", func() bool {
		return strings.Contains(i.condition(objects.Gateway, "shop", objects.ConditionResolvedRefs), "has no tls.crt")
	})
	before, err := i.client.RotateSecrets(context.Background())
	if err != nil || len(before.Keys) != 1 || before.Keys[0].Secrets != 1 || before.Rotating {
		t.Fatalf("%+v %v", before, err)
	}
	i.stop()

	// Killed once the key was made.
	keys, err := seal.Open(t.Context(), seal.Options{File: file})
	if err != nil {
		t.Fatal(err)
	}
	if err := keys.Add(t.Context()); err != nil {
		t.Fatal(err)
	}
	i.start()
	eventually(t, "the rotation is at its end", func() bool {
		status, err := i.client.Secrets(context.Background())
		return err == nil && len(status.Keys) == 1 && status.Keys[0].ID == keys.Primary() && status.Keys[0].Secrets == 1 && len(status.Unreadable) == 0
	})
}
