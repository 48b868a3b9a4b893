package devtest

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/forkvm/forkvm/devices"
	"github.com/forkvm/forkvm/devices/virtio"
	"github.com/forkvm/forkvm/devices/virtio/rng"
)

// Devices with one fault each, to see that the suite finds it.
type (
	deaf     struct{ *rng.Device }
	restless struct{ *rng.Device }
	undead   struct{ *rng.Device }
	frail    struct{ *rng.Device }
	mute     struct{ *rng.Device }
	garbled  struct{ *rng.Device }
	nosy     struct {
		*rng.Device
		mem devices.Memory
	}
)

func (d deaf) Resume()                          {}
func (d restless) Quiesce()                     {}
func (d undead) Reset()                         {}
func (d frail) Quiesce()                        { d.Device.Reset() }
func (d garbled) ReadConfig(_ uint64, _ []byte) {}

func (d mute) Activate(a virtio.Activation) error {
	a.Interrupt = devices.InterruptFunc(func() {})
	return d.Device.Activate(a)
}

func (d *nosy) Activate(a virtio.Activation) error {
	d.mem = a.Memory
	return d.Device.Activate(a)
}

func (d *nosy) Notify(q int) {
	if d.mem != nil {
		d.mem.Slice(0, 1)
	}
	d.Device.Notify(q)
}

type suite = Virtio[virtio.Device, rng.State]

// suiteFor handles the device that wrap makes of a good one.
func suiteFor(wrap func(*rng.Device) virtio.Device) *suite {
	return &suite{
		New:     func(testing.TB) virtio.Device { return wrap(rng.New(rng.Config{})) },
		Save:    func(virtio.Device) rng.State { return rng.State{} },
		Restore: func(_ testing.TB, s rng.State) virtio.Device { return wrap(rng.Restore(rng.Config{}, s)) },
		Request: Request{In: 8},
	}
}

func good(d *rng.Device) virtio.Device { return d }

func TestSuiteFindsFaults(t *testing.T) {
	hasty := suiteFor(good)
	hasty.Restore = func(testing.TB, rng.State) virtio.Device { return rng.New(rng.Config{}) }
	for _, c := range []struct {
		name  string
		suite *suite
		test  func(testing.TB, *suite)
	}{
		{"does not look at its queue on Resume", suiteFor(func(d *rng.Device) virtio.Device { return deaf{d} }), testSwallowedNotification[virtio.Device, rng.State]},
		{"does not end its pause", suiteFor(func(d *rng.Device) virtio.Device { return deaf{d} }), testPauseAndResume[virtio.Device, rng.State]},
		{"serves while quiet", suiteFor(func(d *rng.Device) virtio.Device { return restless{d} }), testQuiesce[virtio.Device, rng.State]},
		{"looks at memory while quiet", suiteFor(func(d *rng.Device) virtio.Device { return &nosy{Device: d} }), testQuiesce[virtio.Device, rng.State]},
		{"serves after a reset", suiteFor(func(d *rng.Device) virtio.Device { return undead{d} }), testReset[virtio.Device, rng.State]},
		{"resets itself on Quiesce", suiteFor(func(d *rng.Device) virtio.Device { return frail{d} }), testPauseAndResume[virtio.Device, rng.State]},
		{"raises no interrupt", suiteFor(func(d *rng.Device) virtio.Device { return mute{d} }), testRequests[virtio.Device, rng.State]},
		{"leaves a read unanswered", suiteFor(func(d *rng.Device) virtio.Device { return garbled{d} }), testProperties[virtio.Device, rng.State]},
		{"serves before Resume when restored", hasty, testOutstanding[virtio.Device, rng.State]},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !fails(t, func(t testing.TB) { c.test(t, c.suite) }) {
				t.Error("the suite has no objection")
			}
			if fails(t, func(t testing.TB) { c.test(t, suiteFor(good)) }) {
				t.Error("the suite objects to a good device")
			}
		})
	}
}

// A port that is a byte of memory, with faults on demand.
type port struct {
	value  byte
	ignore bool // reads leave the buffer alone
}

type portState struct{ Value byte }

func (p *port) Read(_ uint64, b []byte) {
	if p.ignore {
		return
	}
	for i := range b {
		b[i] = p.value
	}
}

func (p *port) Write(_ uint64, b []byte) {
	for _, v := range b {
		p.value += v
	}
}

func TestBusSuiteFindsFaults(t *testing.T) {
	program := []byte{0, 1, 7, 0, 0x81, 0, 2, 1, 2, 0, 0x84, 0, 0x81, 0, 0x81, 0, 0x81}
	for _, c := range []struct {
		name    string
		restore func(portState) *port
		ignore  bool
		want    bool
	}{
		{"good", func(s portState) *port { return &port{value: s.Value} }, false, false},
		{"forgets", func(portState) *port { return &port{} }, false, true},
		{"leaves a read unanswered", func(s portState) *port { return &port{value: s.Value, ignore: true} }, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := Bus[*port, portState]{
				New:     func(testing.TB) *port { return &port{ignore: c.ignore} },
				Save:    func(p *port) portState { return portState{p.value} },
				Restore: func(_ testing.TB, s portState) *port { return c.restore(s) },
				Size:    1,
			}
			if got := fails(t, func(t testing.TB) { b.runTwins(t, program) }); got != c.want {
				t.Errorf("the suite objects: %v, want %v", got, c.want)
			}
		})
	}
}

func TestStatesMustBePlain(t *testing.T) {
	for _, c := range []struct {
		name  string
		check func(testing.TB)
		want  bool
	}{
		{"exported", func(t testing.TB) { plain(t, portState{1}) }, false},
		{"hidden field", func(t testing.TB) { plain(t, struct{ hidden int }{1}) }, true},
		{"function", func(t testing.TB) { plain(t, struct{ F func() }{}) }, true},
		{"pointer to nothing", func(t testing.TB) { plain(t, struct{ T *time.Time }{}) }, false},
	} {
		if got := fails(t, c.check); got != c.want {
			t.Errorf("%s: the suite objects: %v, want %v", c.name, got, c.want)
		}
	}
}

// recorder is a testing.TB that takes note of a failure instead of failing.
type recorder struct {
	testing.TB
	failed bool
}

func (r *recorder) Errorf(format string, args ...any) {
	r.TB.Logf("found: %s", fmt.Sprintf(format, args...))
	r.failed = true
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

func (r *recorder) Error(args ...any) { r.Errorf("%s", fmt.Sprint(args...)) }
func (r *recorder) Fatal(args ...any) { r.Fatalf("%s", fmt.Sprint(args...)) }

// fails tells whether test fails, in a bubble as the suite's tests run in.
func fails(t *testing.T, test func(testing.TB)) bool {
	var r *recorder
	synctest.Test(t, func(t *testing.T) {
		r = &recorder{TB: t}
		done := make(chan struct{})
		go func() {
			defer close(done)
			test(r)
		}()
		<-done
	})
	return r.failed
}
