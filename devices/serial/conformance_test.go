package serial_test

import (
	"testing"

	"github.com/forkvm/forkvm/devices/devtest"
	"github.com/forkvm/forkvm/devices/serial"
)

func TestConformance(t *testing.T) {
	devtest.TestBus(t, devtest.Bus[*serial.Device, serial.State]{
		New:  func(testing.TB) *serial.Device { return serial.New(serial.Config{}, serial.Env{}) },
		Save: (*serial.Device).Save,
		Restore: func(_ testing.TB, s serial.State) *serial.Device {
			return serial.Restore(serial.Config{}, serial.Env{}, s)
		},
		Size: serial.Ports,
	})
}
