package virtio

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"
)

// Two parties that each store their own field and then look at the other's
// must not both miss: with a plain store they do, since a load may overtake
// it. That is how a notification or an interrupt gets lost.
func TestStoresAreFullBarriers(t *testing.T) {
	for _, c := range []struct {
		name  string
		store func(r ringPart)
	}{
		{"storeWord", func(r ringPart) { storeWord(r.word(0), 1) }},
		{"half.store", func(r ringPart) { r.half(0).store(1) }},
	} {
		t.Run(c.name, func(t *testing.T) { storeBuffering(t, c.store) })
	}
}

func storeBuffering(t *testing.T, store func(ringPart)) {
	// A machine with too few processors to spare for two parties gets as far
	// as it gets.
	const rounds, budget = 100_000, 300 * time.Millisecond
	// Fields of different rounds and parties lie in different cache lines.
	fields := make([]byte, 2*64*rounds)
	at := func(round, party int) ringPart {
		return ringPart{words: fields[64*(2*round+party):][:64]}
	}
	var saw [2][rounds]uint16
	var arrived [2]atomic.Int64
	var end atomic.Int64
	end.Store(rounds)
	start := time.Now()
	run := func(me int) {
		for i := range rounds {
			mine, other := at(i, me), at(i, 1-me).half(0)
			if me == 0 && i%64 == 0 && time.Since(start) > budget {
				end.Store(int64(i))
			}
			arrived[me].Store(int64(i + 1))
			for spins := 0; arrived[1-me].Load() < int64(i+1); spins++ {
				if spins > 1000 {
					runtime.Gosched()
				}
			}
			if int64(i) >= end.Load() {
				return
			}
			store(mine)
			saw[me][i] = other.load()
		}
	}
	done := make(chan struct{})
	go func() { run(1); close(done) }()
	run(0)
	<-done
	for i := range end.Load() {
		if saw[0][i] == 0 && saw[1][i] == 0 {
			t.Fatalf("round %d: neither party saw the other's store", i)
		}
	}
}

// The other half of a word is left alone however often a half is stored.
func TestHalfStoreKeepsTheOtherHalf(t *testing.T) {
	b := make([]byte, 64)
	r := ringPart{words: b}
	*r.word(4) = 0xabcd_ffff
	for _, v := range []uint16{0, 1, 0xffff, 0x8000, 0x7fff, 0xffff, 0} {
		r.half(4).store(v)
		if got := r.half(4).load(); got != v {
			t.Errorf("stored %#x, loaded %#x", v, got)
		}
		if got := r.half(6).load(); got != 0xabcd {
			t.Fatalf("after storing %#x the other half is %#x", v, got)
		}
	}
}
