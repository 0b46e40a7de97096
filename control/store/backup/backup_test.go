package backup

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"heddle.io/heddle/control/store/storetest"
)

func TestBackupIsReadAsItWasWritten(t *testing.T) {
	m := storetest.NewMemory()
	for _, name := range []string{"a", "b"} {
		if _, err := m.Write(t.Context(), storetest.Put(storetest.Account(t, name, "1"))); err != nil {
			t.Fatal(err)
		}
	}
	var file bytes.Buffer
	taken := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	if n, err := Write(t.Context(), &file, m, Header{Cluster: "c", Version: "1.2", Taken: taken}); err != nil || n != 2 {
		t.Fatalf("%d, %v", n, err)
	}
	header, all, err := Read(file.Bytes())
	if err != nil || header.Cluster != "c" || header.Version != "1.2" || !header.Taken.Equal(taken) || len(all) != 2 {
		t.Fatalf("%+v, %d objects, %v", header, len(all), err)
	}
	if o, err := m.Import(all[1]); err != nil || o.GetName() != "b" || o.GetLabels()["l"] != "1" || o.Version != "" {
		t.Errorf("%+v, %v", o, err)
	}
	// Cut anywhere, or with any byte changed, it is refused.
	whole := file.Bytes()
	for n := range whole {
		if _, _, err := Read(whole[:n]); !errors.Is(err, ErrDamaged) {
			t.Fatalf("cut at %d of %d: %v", n, len(whole), err)
		}
		changed := bytes.Clone(whole)
		changed[n] ^= 1
		if _, _, err := Read(changed); err == nil {
			t.Fatalf("byte %d changed: it is read", n)
		}
	}
}

func TestOtherFormatsAreRefused(t *testing.T) {
	var file bytes.Buffer
	if _, err := Write(t.Context(), &file, storetest.NewMemory(), Header{Cluster: "c", Version: "9.9"}); err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(file.String(), `"heddleBackup":1`, `"heddleBackup":2`, 1)
	body := text[:strings.LastIndexByte(strings.TrimSuffix(text, "\n"), '\n')+1]
	sum := sha256.Sum256([]byte(body))
	end, err := json.Marshal(footer{SHA256: hex.EncodeToString(sum[:])})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := Read([]byte(body + string(end) + "\n")); err == nil || errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "9.9") {
		t.Errorf("%v", err)
	}
}
