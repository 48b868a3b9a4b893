package i8042_test

import (
	"testing"

	"github.com/forkvm/forkvm/devices/devtest"
	"github.com/forkvm/forkvm/devices/i8042"
)

func TestConformance(t *testing.T) {
	devtest.TestBus(t, devtest.Bus[*i8042.Device, i8042.State]{
		New:     func(testing.TB) *i8042.Device { return i8042.New(i8042.Config{}, i8042.Env{}) },
		Save:    (*i8042.Device).Save,
		Restore: func(_ testing.TB, s i8042.State) *i8042.Device { return i8042.Restore(i8042.Config{}, i8042.Env{}, s) },
		Size:    i8042.Ports,
	})
}
