package vmm

import (
	"testing"
	"time"
)

// BenchmarkFork forks a machine whose guest is a few bytes, so that what is
// measured is forkvm and KVM: time per fork and close, and of the fork the
// phases.
func BenchmarkFork(b *testing.B) {
	vm := startMicro(b, guestCounter)
	awaitCounter(b, vm, 100)
	var create, restore, pause time.Duration
	for b.Loop() {
		children, err := vm.Fork(b.Context(), 1)
		if err != nil {
			b.Fatal(err)
		}
		t := children[0].Timings()
		create += t.Create
		restore += t.Restore
		pause += t.Pause
		closeVM(b, children[0])
	}
	for name, d := range map[string]time.Duration{"create": create, "restore": restore, "pause": pause} {
		b.ReportMetric(float64(d.Microseconds())/float64(b.N), name+"-µs/op")
	}
}
