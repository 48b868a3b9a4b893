package balloon_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/forkvm/forkvm/devices/virtio/virtiotest"
)

const configInterrupt = 2

// target is what the driver reads.
func (g *guest) target() uint32 { return binary.LittleEndian.Uint32(g.Config(0, 4)) }

// setActual is what the driver does when its balloon has another size.
func (g *guest) setActual(pages uint32) { g.Write(virtiotest.RegConfig+4, pages) }

func TestTarget(t *testing.T) {
	boot(t, everything, func(t *testing.T, g *guest) {
		if g.target() != 0 || g.irq.Count() != 0 {
			t.Errorf("target %d before any was set, %d interrupts", g.target(), g.irq.Count())
		}
		g.dev.SetTarget(1000)
		if s := g.AckInterrupt(); s != configInterrupt || g.target() != 1000 {
			t.Errorf("interrupt status %d, target %d", s, g.target())
		}
		g.dev.SetTarget(1000)
		if n := g.irq.Count(); n != 1 {
			t.Errorf("%d interrupts for one change", n)
		}
		g.setActual(700)
		if got := g.dev.Actual(); got != 700 {
			t.Errorf("actual size %d, want 700", got)
		}
	})
}

func TestWait(t *testing.T) {
	boot(t, everything, func(t *testing.T, g *guest) {
		if err := g.dev.Wait(t.Context()); err != nil {
			t.Errorf("there already, and yet: %v", err)
		}
		g.dev.SetTarget(1000)
		done := make(chan error, 1)
		go func() { done <- g.dev.Wait(t.Context()) }()
		g.setActual(700)
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatalf("back at 700 of 1000: %v", err)
		default:
		}
		g.setActual(1000)
		if err := <-done; err != nil {
			t.Error(err)
		}
		// The target may come to meet the driver.
		g.setActual(900)
		go func() { done <- g.dev.Wait(t.Context()) }()
		synctest.Wait()
		g.dev.SetTarget(900)
		if err := <-done; err != nil {
			t.Error(err)
		}
		g.dev.SetTarget(0)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { done <- g.dev.Wait(ctx) }()
		synctest.Wait()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want that the context has ended", err)
		}
		// Without a driver there is no balloon.
		go func() { done <- g.dev.Wait(t.Context()) }()
		synctest.Wait()
		g.Reset()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A target that is set while the device is quiet becomes known on Resume: here
// and in the children that were captured meanwhile.
func TestTargetSetWhileQuiet(t *testing.T) {
	boot(t, everything, func(t *testing.T, g *guest) {
		g.mmio.Quiesce()
		g.dev.SetTarget(1000)
		child := g.fork(t)
		for _, g := range []*guest{g, child} {
			if g.irq.Count() != 0 {
				t.Fatal("interrupt by a quiet device")
			}
			g.mmio.Resume()
			if s := g.AckInterrupt(); s != configInterrupt || g.target() != 1000 {
				t.Errorf("interrupt status %d, target %d", s, g.target())
			}
		}
		// Those who know are not told again.
		child = child.fork(t)
		child.mmio.Resume()
		if child.irq.Count() != 0 {
			t.Error("told twice")
		}
	})
}

func TestChildHasItsParentsBalloon(t *testing.T) {
	boot(t, everything, func(t *testing.T, g *guest) {
		g.dev.SetTarget(1000)
		g.setActual(900)
		child := g.fork(t)
		if child.dev.Target() != 1000 || child.dev.Actual() != 900 {
			t.Errorf("%d of %d pages, want 900 of 1000", child.dev.Actual(), child.dev.Target())
		}
		child.mmio.Resume()
		child.dev.SetTarget(10)
		if g.dev.Target() != 1000 || g.target() != 1000 {
			t.Error("the parent's target has changed")
		}
	})
}

// Another driver, such as that of a kernel that rebooted, starts with an empty
// balloon, and learns what the host wants.
func TestTargetOutlivesTheDriver(t *testing.T) {
	boot(t, everything, func(t *testing.T, g *guest) {
		g.dev.SetTarget(1000)
		g.setActual(1000)
		g.Reset()
		if g.dev.Target() != 1000 || g.dev.Actual() != 0 {
			t.Errorf("%d of %d pages after a reset, want 0 of 1000", g.dev.Actual(), g.dev.Target())
		}
		g.dev.SetTarget(500)
		before := g.irq.Count()
		if err := g.Start(everything); err != nil {
			t.Fatal(err)
		}
		if s := g.AckInterrupt(); s&configInterrupt == 0 || g.irq.Count() == before || g.target() != 500 {
			t.Errorf("interrupt status %d, target %d", s, g.target())
		}
	})
}

func TestWriteConfigKeepsToItsFields(t *testing.T) {
	boot(t, everything, func(t *testing.T, g *guest) {
		g.dev.SetTarget(0x01020304)
		g.dev.WriteConfig(0, bytes.Repeat([]byte{0xee}, 16))
		want := []byte{4, 3, 2, 1, 0xee, 0xee, 0xee, 0xee, 0, 0, 0, 0, 0xee, 0xee, 0xee, 0xee}
		if got := g.Config(0, 16); !bytes.Equal(got, want) {
			t.Errorf("configuration space % x, want % x", got, want)
		}
		g.dev.WriteConfig(14, []byte{1, 2, 3}) // beyond the end
		g.dev.WriteConfig(^uint64(0), []byte{1, 2, 3})
		if got := g.Config(0, 16); !bytes.Equal(got, want) {
			t.Errorf("configuration space % x, want % x", got, want)
		}
		if got := g.dev.Stats().Refused; got != 2 {
			t.Errorf("%d refused, want 2", got)
		}
	})
}
