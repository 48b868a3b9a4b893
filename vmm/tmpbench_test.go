package vmm

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

func BenchmarkTmpPooled(b *testing.B) {
	code := []byte{0xe6, 0x80, 0xeb, 0xfc} // out 0x80, al; jmp
	vm := startMicro(b, code)
	pause(b, vm)
	var m [6][]time.Duration
	for b.Loop() {
		if err := vm.Prepare(b.Context(), 1); err != nil {
			b.Fatal(err)
		}
		time.Sleep(3 * time.Millisecond)
		t0 := time.Now()
		ch, err := vm.Fork(b.Context(), 1)
		d := time.Since(t0)
		if err != nil {
			b.Fatal(err)
		}
		for ch[0].Timings().FirstExit == 0 {
		}
		t := ch[0].Timings()
		for i, x := range []time.Duration{d, t.FirstExit, t.StateReady, t.Pause, t.Create, t.Restore} {
			m[i] = append(m[i], x)
		}
		closeVM(b, ch[0])
	}
	for i, n := range []string{"fork", "first", "state", "pause", "create", "restore"} {
		slices.Sort(m[i])
		fmt.Printf("%s p50 %v p99 %v\n", n, m[i][len(m[i])/2], m[i][len(m[i])*99/100])
	}
}
