package balloon_test

import (
	"testing"
	"testing/synctest"
	"time"
)

// flood keeps the queue of reports filled for that long, and returns how many
// pieces were released.
func (g *guest) flood(t *testing.T, d time.Duration) (released int) {
	t.Helper()
	for start := time.Now(); time.Since(start) < d; time.Sleep(time.Millisecond) {
		for progress := true; progress; synctest.Wait() {
			for g.Rings[reportQ].Free() >= 2 {
				g.Rings[reportQ].Add(g.Mem.RAMBuffer(8*mib, 64*kib), g.Mem.RAMBuffer(9*mib, 64*kib))
			}
			g.Kick(reportQ)
			synctest.Wait()
			_, progress = g.Rings[reportQ].Take()
			for ok := progress; ok; {
				_, ok = g.Rings[reportQ].Take()
			}
			released += len(g.host.take())
		}
	}
	return released
}

// A driver that reports over and over gets a burst and then its share. It
// counts requests and pieces: three for a request of two.
func TestHostileDriverIsSlowedDown(t *testing.T) {
	boot(t, everything, func(t *testing.T, g *guest) {
		const most = 4096 + 3*2000 // in 3 s
		if got, want := g.flood(t, 3*time.Second), most/3*2; got < want*95/100 || got > want*105/100 {
			t.Errorf("%d pieces released in 3 s, want about %d", got, want)
		}
		// A reset does not help.
		g.Mem.FreeAll()
		if err := g.Start(everything); err != nil {
			t.Fatal(err)
		}
		if got, want := g.flood(t, time.Second), 2000/3*2; got > want*11/10 {
			t.Errorf("%d pieces released in the second after a reset, want at most %d", got, want)
		}
		// Time does.
		time.Sleep(10 * time.Second)
		g.host.take()
		if got, want := g.flood(t, time.Millisecond), 4096/3*2; got < want*95/100 {
			t.Errorf("%d pieces released after a rest, want about %d", got, want)
		}
	})
}

// A request that has to wait is neither lost nor in the way of a capture.
func TestRequestThatWaitsOutlivesACapture(t *testing.T) {
	boot(t, everything, func(t *testing.T, g *guest) {
		g.flood(t, 2*time.Second)
		if g.Rings[reportQ].Pending() == 0 {
			t.Fatal("nothing waits")
		}
		child := g.fork(t)
		g.host.take()
		time.Sleep(time.Minute)
		g.released(t)
		child.released(t)
		for _, g := range []*guest{g, child} {
			g.mmio.Resume()
			time.Sleep(time.Second)
			synctest.Wait()
			for ok := true; ok; {
				_, ok = g.Rings[reportQ].Take()
			}
			if n := g.Rings[reportQ].Pending(); n != 0 {
				t.Errorf("%d requests were never answered", n)
			}
		}
	})
}

// What costs the host nothing but a look is bounded as well.
func TestUselessRequestsAreSlowedDown(t *testing.T) {
	boot(t, everything, func(t *testing.T, g *guest) {
		bogus := g.pfns(1, 3, 5)
		start, sent := time.Now(), 0
		for ; time.Since(start) < time.Second; sent++ {
			g.Rings[inflateQ].Add(bogus)
			g.Kick(inflateQ)
			for synctest.Wait(); ; time.Sleep(time.Millisecond) {
				if _, ok := g.Rings[inflateQ].Take(); ok {
					break
				}
			}
		}
		if sent > (4096+2000)*105/100 {
			t.Errorf("%d requests in a second", sent)
		}
	})
}
