package storetest_test

import (
	"testing"

	"heddle.io/heddle/control/store"
	"heddle.io/heddle/control/store/storetest"
)

func TestMemoryKeepsTheContract(t *testing.T) {
	var m *storetest.Memory
	storetest.Run(t, storetest.Subject{
		Open:   func(*testing.T) store.Store { m = storetest.NewMemory(); return m },
		Forget: func(*testing.T) { m.Interrupt(true) },
	})
}
