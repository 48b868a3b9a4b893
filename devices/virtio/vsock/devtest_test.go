package vsock

import (
	"testing"

	"github.com/forkvm/forkvm/devices/devtest"
	"github.com/forkvm/forkvm/devices/virtio/virtiotest"
)

// conformance plugs the device into the suite: the request is a TX packet that
// nobody answers, the host's side a Dial. No interrupt waits for another.
func conformance() devtest.Virtio[*Device, State] {
	var packet [headerSize]byte
	h := hdr(opReset, 1, 2)
	h.encode(&packet)
	closed := func(t testing.TB, d *Device, err error) *Device {
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		d.lazyFor = 0
		return d
	}
	return devtest.Virtio[*Device, State]{
		New: func(t testing.TB) *Device {
			d, err := New(Config{})
			return closed(t, d, err)
		},
		Save: (*Device).Save,
		Restore: func(t testing.TB, s State) *Device {
			d, err := Restore(Config{}, s)
			return closed(t, d, err)
		},
		Request: devtest.Request{Queue: queueTX, Out: packet[:]},
		Prime: func(d *virtiotest.Driver) {
			for range 8 {
				d.Rings[queueRX].Add(d.Mem.In(rxBufferSize))
				d.Rings[queueEvent].Add(d.Mem.In(eventSize))
			}
			d.Kick(queueRX)
			d.Kick(queueEvent)
		},
		Host: func(t testing.TB, d *Device) { go d.Dial(t.Context(), 1024) },
	}
}

func TestConformance(t *testing.T) { devtest.TestVirtio(t, conformance()) }

func FuzzDriver(f *testing.F) { devtest.FuzzVirtio(f, conformance()) }
