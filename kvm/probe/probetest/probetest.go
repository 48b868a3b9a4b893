// Package probetest tells tests what kind of guests this machine's KVM runs.
package probetest

import (
	"os"
	"sync"
	"testing"

	"github.com/forkvm/forkvm/kvm/kvmtest"
	"github.com/forkvm/forkvm/kvm/probe"
)

var flavor struct {
	once sync.Once
	info probe.Info
	err  error
}

// NeedLinux skips the test, in the manner of kvmtest.Skip, where no ordinary
// kernel runs. With FORKVM_TEST_KERNEL in the environment one does: whoever
// names a kernel knows that it runs here.
func NeedLinux(t testing.TB) {
	t.Helper()
	sys := kvmtest.OpenOrSkip(t)
	if os.Getenv("FORKVM_TEST_KERNEL") != "" {
		return
	}
	flavor.once.Do(func() { flavor.info, flavor.err = probe.Flavor(sys) })
	if flavor.err != nil {
		t.Fatal(flavor.err)
	}
	if flavor.info.Emulated {
		kvmtest.Skip(t, flavor.info.Name+" is an emulated KVM, which ordinary kernels do not run on")
	}
}
