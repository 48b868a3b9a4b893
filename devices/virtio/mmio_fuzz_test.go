package virtio_test

import (
	"testing"

	"github.com/forkvm/forkvm/devices/devtest"
	"github.com/forkvm/forkvm/devices/virtio/rng"
)

// FuzzMMIO plays a hostile driver against the transport and the simplest of
// devices.
func FuzzMMIO(f *testing.F) {
	devtest.FuzzVirtio(f, devtest.Virtio[*rng.Device, rng.State]{
		New:     func(testing.TB) *rng.Device { return rng.New(rng.Config{}) },
		Save:    (*rng.Device).Save,
		Restore: func(_ testing.TB, s rng.State) *rng.Device { return rng.Restore(rng.Config{}, s) },
		Request: devtest.Request{In: 64},
	})
}
