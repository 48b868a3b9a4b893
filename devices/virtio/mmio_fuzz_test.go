package virtio_test

import (
	"encoding/json"
	"testing"

	"github.com/forkvm/forkvm/devices/devtest"
	"github.com/forkvm/forkvm/devices/virtio"
	"github.com/forkvm/forkvm/devices/virtio/rng"
	"github.com/forkvm/forkvm/devices/virtio/virtiotest"
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

// FuzzRestoreMMIO restores transports from files that anybody may have
// written. What is accepted is a state: it can be taken again.
func FuzzRestoreMMIO(f *testing.F) {
	restore := func(b []byte) (*virtio.MMIO, error) {
		var s virtio.MMIOState
		if err := json.Unmarshal(b, &s); err != nil {
			return nil, err
		}
		mem := virtiotest.NewMemory(1 << 16)
		return virtio.RestoreMMIO(rng.Restore(rng.Config{}, rng.State{}), mem, virtiotest.NewInterrupt(), s)
	}
	mem := virtiotest.NewMemory(1 << 16)
	m := virtio.NewMMIO(rng.New(rng.Config{}), mem, virtiotest.NewInterrupt())
	drv := virtiotest.NewDriver(m, mem)
	for _, step := range []func() error{
		func() error { return nil },
		func() error { return drv.Start(allFeatures) },
		func() error { drv.Rings[0].SetAvailIdx(1000); drv.Notify(0); return nil },
	} {
		if err := step(); err != nil {
			f.Fatal(err)
		}
		seed, err := json.Marshal(m.State())
		if err != nil {
			f.Fatal(err)
		}
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := restore(b)
		if err != nil {
			return
		}
		m.Resume()
		m.Quiesce()
		again, err := json.Marshal(m.State())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := restore(again); err != nil {
			t.Errorf("restored from %s, but not from its own state %s: %v", b, again, err)
		}
		m.Reset()
	})
}
