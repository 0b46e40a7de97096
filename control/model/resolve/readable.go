package resolve

import (
	corev1 "k8s.io/api/core/v1"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
)

// readable is what a Secret or ConfigMap comes to for all that name it. Reading certificates is most of what it costs to work out
// a server or a policy, and very many of these may name the same.
type readable struct {
	// credentials are for servers that do not verify clients, and for those that do.
	credentials [2]*readCertificate
	// authorities are nil where none can be used.
	authorities []byte
	looked      bool
}

// readCertificate is a certificate, or what is wrong with it.
type readCertificate struct {
	credential *model.Credential
	problem    string
}

func (m *Model) readable(o *objects.Object) *readable {
	r := m.readables[o]
	if r == nil {
		r = &readable{}
		m.readables[o] = r
	}
	return r
}

// credentialOf is [readCredential], once for each Secret.
func (m *Model) credentialOf(secret *objects.Object, client bool) (*model.Credential, string) {
	at := &m.readable(secret).credentials[0]
	if client {
		at = &m.readable(secret).credentials[1]
	}
	if *at == nil {
		credential, problem := readCredential(secret, client)
		*at = &readCertificate{credential, problem}
	}
	return (*at).credential, (*at).problem
}

// authoritiesOf are the certificates of a ConfigMap or Secret under ca.crt, read once for each; nil where they cannot be used.
func (m *Model) authoritiesOf(o *objects.Object) []byte {
	r := m.readable(o)
	if r.looked {
		return r.authorities
	}
	r.looked = true
	var data []byte
	switch c := o.Resource.(type) {
	case *corev1.ConfigMap:
		data = []byte(c.Data[objects.AuthoritiesKey])
	case *corev1.Secret:
		data = c.Data[objects.AuthoritiesKey]
	}
	if data = line(data); certificates(data) == nil {
		r.authorities = data
	}
	return r.authorities
}
