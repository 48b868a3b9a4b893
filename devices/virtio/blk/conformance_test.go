package blk_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/forkvm/forkvm/devices/devtest"
	"github.com/forkvm/forkvm/devices/virtio/blk"
)

// patient is a backend that cannot tell whether it has to wait.
type patient struct{ blk.Backend }

// conformance plugs the device into the suite. No backend here blocks: a
// request is answered by itself.
func conformance(cfg blk.Config, backend func() blk.Backend, request devtest.Request) devtest.Virtio[*blk.Device, blk.State] {
	env := func() blk.Env { return blk.Env{Backend: backend()} }
	made := func(t testing.TB, d *blk.Device, err error) *blk.Device {
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	return devtest.Virtio[*blk.Device, blk.State]{
		New: func(t testing.TB) *blk.Device {
			d, err := blk.New(cfg, env())
			return made(t, d, err)
		},
		Save: (*blk.Device).Save,
		Restore: func(t testing.TB, s blk.State) *blk.Device {
			d, err := blk.Restore(cfg, env(), s)
			return made(t, d, err)
		},
		Request: request,
	}
}

// statusIs checks an answer to a request other than a read.
func statusIs(want byte) func([]byte) error {
	return func(in []byte) error {
		if !bytes.Equal(in, []byte{want}) {
			return errors.New("not the status expected")
		}
		return nil
	}
}

var (
	readRequest = devtest.Request{Out: header(typeIn, 3), In: sector + 1, Check: func(in []byte) error {
		if len(in) != sector+1 || in[sector] != statusOK || !bytes.Equal(in[:sector], pattern(64 * sector)[3*sector:4*sector]) {
			return errors.New("not sector 3 and a status of 0")
		}
		return nil
	}}
	writeRequest = devtest.Request{Out: append(header(typeOut, 4), pattern(2*sector)...), In: 1, Check: statusIs(statusOK)}
)

func TestConformance(t *testing.T) {
	refused := writeRequest
	refused.Check = statusIs(statusIOErr)
	second := writeRequest
	second.Queue = 1
	flush := devtest.Request{Out: header(typeFlush, 0), In: 1, Check: statusIs(statusOK)}
	for _, c := range []struct {
		name    string
		cfg     blk.Config
		backend func() blk.Backend
		request devtest.Request
	}{
		{"Read", blk.Config{}, waits, readRequest},
		{"ReadPromptly", blk.Config{}, prompt, readRequest},
		{"Write", blk.Config{Queues: 3}, waits, second},
		{"WritePromptly", blk.Config{Queues: 3}, prompt, second},
		{"Flush", blk.Config{}, waits, flush},
		{"Refused", blk.Config{ReadOnly: true}, prompt, refused},
	} {
		t.Run(c.name, func(t *testing.T) { devtest.TestVirtio(t, conformance(c.cfg, c.backend, c.request)) })
	}
}

func prompt() blk.Backend { return blk.NewMemory(pattern(64 * sector)) }
func waits() blk.Backend  { return patient{prompt()} }

func FuzzDriver(f *testing.F) {
	devtest.FuzzVirtio(f, conformance(blk.Config{Queues: 2}, waits, writeRequest))
}

func FuzzDriverPromptly(f *testing.F) {
	devtest.FuzzVirtio(f, conformance(blk.Config{Queues: 2}, prompt, writeRequest))
}
