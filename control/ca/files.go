package ca

import (
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"heddle.io/heddle/control/durable"
)

// errNeverMade: there is no certificate. A certificate without its key is another error.
var errNeverMade = errors.New("no certificate yet")

// errMismatched: certificate and key do not belong together.
var errMismatched = errors.New("key and certificate do not belong together")

// load reads a certificate and its key, or says errNeverMade.
func load(dir, name string) (issuer, error) {
	path := filepath.Join(dir, name+".pem")
	certPEM, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return issuer{}, errNeverMade
	}
	if err != nil {
		return issuer{}, err
	}
	block, _ := pem.Decode(certPEM)
	if block == nil || block.Type != "CERTIFICATE" {
		return issuer{}, fmt.Errorf("%s holds no PEM certificate; restore it from a backup", path)
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return issuer{}, fmt.Errorf("%s: %w", path, err)
	}
	keyPath := filepath.Join(dir, name+"-key.pem")
	keyPEM, err := os.ReadFile(keyPath)
	if err != nil {
		return issuer{}, fmt.Errorf("%s exists but its key cannot be read (%w); restore it from a backup", path, err)
	}
	block, _ = pem.Decode(keyPEM)
	if block == nil {
		return issuer{}, fmt.Errorf("%s holds no PEM key; restore it from a backup", keyPath)
	}
	key, err := parseKey(block.Bytes)
	if err != nil {
		return issuer{}, fmt.Errorf("%s: %w", keyPath, err)
	}
	if !belongs(key, certificate) {
		return issuer{}, fmt.Errorf("%w: %s is not the key of %s; restore the pair that belongs together", errMismatched, keyPath, path)
	}
	return issuer{certificate: certificate, key: key}, nil
}

func parseKey(der []byte) (crypto.Signer, error) {
	parsed, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, err
	}
	key, ok := parsed.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("a key of type %T cannot sign", parsed)
	}
	return key, nil
}

// belongs says whether the key is the certificate's.
func belongs(key crypto.Signer, certificate *x509.Certificate) bool {
	public, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool })
	return ok && public.Equal(certificate.PublicKey)
}

// loadList reads a list of what parse completes; none when there is no file. Errors name the file.
func loadList[T any](path string, parse func(*T) error) ([]T, error) {
	var all []T
	err := durable.ReadJSON(path, &all)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for i := range all {
		if err := parse(&all[i]); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	return all, nil
}
