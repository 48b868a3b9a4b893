package bare

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/forkvm/forkvm/kvm/kvmtest"
	"github.com/forkvm/forkvm/test/bench/microguest"
)

const memory = 64 << 20

// TestMain is a server where a test asks for one.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "serve" {
		if err := Serve(os.Stdin, os.Stdout); err != nil {
			panic(err)
		}
		return
	}
	os.Exit(m.Run())
}

func newParent(t *testing.T, g microguest.Params) *Parent {
	t.Helper()
	kvmtest.OpenOrSkip(t)
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	h, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	p, err := h.NewParent(memory, g)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// word is the guest's count in page i of its data.
func word(m *machine, i int64) uint64 {
	return binary.LittleEndian.Uint64(m.ram[microguest.Data+i*pageSize:])
}

// TestFork follows the counts of a parent's page: once at its boot, once in
// each round, once in a child.
func TestFork(t *testing.T) {
	p := newParent(t, microguest.Params{Pages: 3, ChildPages: 5})
	for round := range uint64(2) {
		for _, n := range []int{0, 2} { // shells made ahead
			if err := p.Round(); err != nil {
				t.Fatal(err)
			}
			counted := word(p.m, 2)
			var pool *Pool
			if n > 0 {
				var err error
				if pool, err = p.Prepare(n); err != nil {
					t.Fatal(err)
				}
			}
			f, err := p.Fork(2, pool)
			if err != nil {
				t.Fatal(err)
			}
			if f.DirtyPages != 3 {
				t.Errorf("round %d: %d dirty pages", round, f.DirtyPages)
			}
			for i, m := range f.machines {
				if got := word(m, 2); got != counted+1 {
					t.Errorf("round %d: child %d counted to %d, its parent to %d", round, i, got, counted)
				}
				if c := f.Children[i]; c.StateReady < f.Pause || c.FirstInstruction <= c.StateReady {
					t.Errorf("times of a child %+v, pause %v", c, f.Pause)
				}
			}
			if word(p.m, 2) != counted {
				t.Error("a child's write reached its parent")
			}
			f.Close()
		}
	}
}

func TestForkOfAParentThatWroteNothingCopiesNothing(t *testing.T) {
	p := newParent(t, microguest.Params{})
	for range 2 {
		if err := p.Round(); err != nil {
			t.Fatal(err)
		}
		f, err := p.Fork(1, nil)
		if err != nil {
			t.Fatal(err)
		}
		if f.DirtyPages != 0 {
			t.Errorf("%d dirty pages", f.DirtyPages)
		}
		f.Close()
	}
}

func TestReset(t *testing.T) {
	const childPages = 5
	p := newParent(t, microguest.Params{Pages: 1, ChildPages: childPages})
	f, err := p.Fork(1, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	child := f.machines[0]
	counted := word(child, 0)
	for range 3 {
		if err := f.Wander(); err != nil {
			t.Fatal(err)
		}
		if got := word(child, childPages); got != 1 {
			t.Errorf("the child wrote its last page %d times", got)
		}
		_, pages, err := p.Reset(f)
		if err != nil {
			t.Fatal(err)
		}
		// Its own pages, the round's, and that of the generation id.
		if pages != childPages+2 {
			t.Errorf("%d pages dropped", pages)
		}
		if last, first := word(child, childPages), word(child, 0); last != 0 || first != counted {
			t.Errorf("after the reset: %d in the last page, %d in the first, want 0, %d", last, first, counted)
		}
	}
}

func TestStateIsExact(t *testing.T) {
	p := newParent(t, microguest.Params{Pages: 1})
	st, err := p.h.save(p.m)
	if err != nil {
		t.Fatal(err)
	}
	m, err := p.h.newMachine(memory, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer m.close()
	if err := p.h.restore(m, st); err != nil {
		t.Fatal(err)
	}
	again, err := p.h.save(m)
	if err != nil {
		t.Fatal(err)
	}
	if st.regs != again.regs || st.sregs != again.sregs || st.mp != again.mp || st.xcrs != again.xcrs ||
		!bytes.Equal(st.xsave, again.xsave) || st.khz != again.khz || st.events != again.events {
		t.Error("the vCPU is another after a restore")
	}
	if again.clock.Clock < st.clock.Clock {
		t.Error("the clock went back")
	}
}

func TestClient(t *testing.T) {
	kvmtest.OpenOrSkip(t)
	c, err := Start(t.Context(), os.Args[0], "serve")
	if err != nil {
		t.Fatal(err)
	}
	guest := microguest.Params{Pages: 2, ChildPages: 4}
	for _, r := range []Request{
		{Kind: Pooled, N: 3, Memory: memory, Guest: guest, Usage: true},
		{Kind: Cold, N: 1, Memory: memory, Guest: guest},
		{Kind: Reset, N: 1, Memory: memory, Guest: guest},
	} {
		s, err := c.Measure(r)
		if err != nil {
			t.Fatal(err)
		}
		if len(s.Children) != r.N || s.Children[0].FirstInstruction <= 0 || s.DirtyPages < guest.Pages || (s.Usage.Total() != 0) != r.Usage {
			t.Errorf("%+v: %+v", r, s)
		}
	}
	for _, r := range []Request{{Kind: Pooled}, {Kind: "other", N: 1}, {Kind: Cold, N: 1, Memory: memory, Guest: microguest.Params{Pages: 1 << 20}}} {
		if _, err := c.Measure(r); err == nil {
			t.Errorf("%+v is taken", r)
		}
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

func TestServeRefusesGarbage(t *testing.T) {
	kvmtest.OpenOrSkip(t)
	var out bytes.Buffer
	if err := Serve(strings.NewReader("{not json"), &out); err == nil {
		t.Error("taken")
	}
	if err := Serve(strings.NewReader(""), &out); err != nil {
		t.Error(err)
	}
	if json.Valid(out.Bytes()) && out.Len() > 0 {
		t.Errorf("answers %q", out.String())
	}
}

// TestChildSeesTheLayer has more pages than are copied.
func TestChildSeesTheLayer(t *testing.T) {
	for _, pages := range []int64{fewPages, fewPages + 1} {
		p := newParent(t, microguest.Params{Pages: pages})
		if err := p.Round(); err != nil {
			t.Fatal(err)
		}
		for _, pooled := range []bool{true, false} {
			var pool *Pool
			if pooled {
				var err error
				if pool, err = p.Prepare(1); err != nil {
					t.Fatal(err)
				}
			}
			f, err := p.Fork(1, pool)
			if err != nil {
				t.Fatal(err)
			}
			for i := range pages {
				if got, want := word(f.machines[0], i), word(p.m, i)+1; got != want {
					t.Errorf("%d pages, pooled %v: page %d counts %d, want %d", pages, pooled, i, got, want)
				}
			}
			f.Close()
		}
	}
}
