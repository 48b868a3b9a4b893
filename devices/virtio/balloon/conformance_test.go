package balloon_test

import (
	"sync/atomic"
	"testing"

	"github.com/forkvm/forkvm/devices/devtest"
	"github.com/forkvm/forkvm/devices/virtio/balloon"
	"github.com/forkvm/forkvm/devices/virtio/virtiotest"
)

// conformance plugs the device into the suite. The host's side is a change of
// the target; released counts the pieces that were, all of which are checked.
func conformance(request devtest.Request, released *atomic.Int64) devtest.Virtio[*balloon.Device, balloon.State] {
	cfg := balloon.Config{MinRange: page}
	env := func(t testing.TB) balloon.Env {
		return balloon.Env{Release: func(rs []balloon.Range) error {
			checkReleased(t, rs, 512*kib)
			released.Add(int64(len(rs)))
			return nil
		}}
	}
	made := func(t testing.TB, d *balloon.Device, err error) *balloon.Device {
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	return devtest.Virtio[*balloon.Device, balloon.State]{
		New: func(t testing.TB) *balloon.Device {
			d, err := balloon.New(cfg, env(t))
			return made(t, d, err)
		},
		Save: (*balloon.Device).Save,
		Restore: func(t testing.TB, s balloon.State) *balloon.Device {
			d, err := balloon.Restore(cfg, env(t), s)
			return made(t, d, err)
		},
		Request: request,
		Prime:   func(*virtiotest.Driver) {}, // it takes no buffers for that
		Host:    func(_ testing.TB, d *balloon.Device) { d.SetTarget(d.Target() + 1) },
	}
}

// checkReleased fails unless the pieces are as Env promises to a guest with so
// many bytes of RAM. In the suite none has more than 512 KiB.
func checkReleased(t testing.TB, rs []balloon.Range, ram uint64) {
	end := uint64(0)
	for i, r := range rs {
		switch {
		case r.GPA%page != 0 || r.Size%page != 0 || r.Size == 0:
			t.Errorf("piece %x is not whole pages", r)
		case i > 0 && r.GPA <= end:
			t.Errorf("piece %x begins before %#x, where the last ended", r, end)
		case r.End() > ram || r.End() < r.GPA:
			t.Errorf("piece %x is not RAM", r)
		}
		end = r.End()
	}
	if len(rs) == 0 {
		t.Error("nothing to release")
	}
}

// inflatePage puts page 40 into the balloon, which no ring of the suite is near.
var inflatePage = devtest.Request{Queue: inflateQ, Out: []byte{40, 0, 0, 0}}

func TestConformanceInflate(t *testing.T) {
	var released atomic.Int64
	devtest.TestVirtio(t, conformance(inflatePage, &released))
	if released.Load() == 0 {
		t.Error("the suite released nothing")
	}
}

func TestConformanceDeflate(t *testing.T) {
	devtest.TestVirtio(t, conformance(devtest.Request{Queue: deflateQ, Out: []byte{40, 0, 0, 0}}, new(atomic.Int64)))
}

func TestConformanceReport(t *testing.T) {
	devtest.TestVirtio(t, conformance(devtest.Request{Queue: reportQ, In: 64}, new(atomic.Int64)))
}

func FuzzDriver(f *testing.F) { devtest.FuzzVirtio(f, conformance(inflatePage, new(atomic.Int64))) }
