package agent

import (
	"bytes"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/guestagent/proto"
)

// TestRing compares the ring with what it stands for: the end of a slice.
func TestRing(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, max := range []int{1, 2, 7, 64, 1000} {
		r := ring{max: max}
		var all []byte
		for range 500 {
			b := make([]byte, rng.IntN(2*max+3))
			for i := range b {
				b[i] = byte(rng.Uint32())
			}
			r.write(b)
			all = append(all, b...)
			if r.end != int64(len(all)) || len(r.buf) > max {
				t.Fatalf("max %d: end %d of %d, %d bytes kept", max, r.end, len(all), len(r.buf))
			}
			from := int64(rng.IntN(len(all) + 2))
			got, first := drainRing(&r, from, 1+rng.IntN(max+3))
			kept := int64(len(all) - min(len(all), max))
			want := all[min(int64(len(all)), max64(from, kept)):]
			if !bytes.Equal(got, want) || (len(got) > 0 && first != max64(from, kept)) {
				t.Fatalf("max %d: read %d bytes from %d, want %d from %d", max, len(got), first, len(want), max64(from, kept))
			}
		}
	}
}

func max64(a, b int64) int64 { return max(a, b) }

// drainRing reads from off on in pieces of n bytes.
func drainRing(r *ring, off int64, n int) (all []byte, first int64) {
	p := make([]byte, n)
	first = -1
	for {
		k, at := r.read(off, p)
		if k == 0 {
			return all, first
		}
		if first < 0 {
			first = at
		}
		all = append(all, p[:k]...)
		off = at + int64(k)
	}
}

func TestParseStat(t *testing.T) {
	st, ok := parseStat([]byte("42 (a) b (c) d) S 7 42 40 0 -1 4194304 79\n"))
	if want := (procStat{pid: 42, ppid: 7, group: 42, session: 40}); !ok || st != want {
		t.Errorf("%+v, %v", st, ok)
	}
	if st, ok := parseStat([]byte("1 (x) Z 0 1 1")); !ok || !st.zombie {
		t.Errorf("%+v, %v", st, ok)
	}
	for _, bad := range []string{"", "1", "1 (x", "1 x) S", "1 (x) S", "(x) S 1 2 3", "a (x) S 1 2 3", "1 )x( S 1 2 3", "1 (x) S a b c"} {
		if st, ok := parseStat([]byte(bad)); ok {
			t.Errorf("%q became %+v", bad, st)
		}
	}
}

func TestBootParameter(t *testing.T) {
	for cmdline, want := range map[string]string{
		"":                      "",
		"quiet":                 "",
		"forkvm.hostname=a":     "a",
		"x forkvm.hostname=a\n": "a",
		"forkvm.hostname=a forkvm.hostname=\"b\" -- forkvm.hostname=c": "b",
		"xforkvm.hostname=a": "",
	} {
		if got := bootParameter(cmdline, "forkvm.hostname"); got != want {
			t.Errorf("%q: %q, want %q", cmdline, got, want)
		}
	}
}

func TestDedupe(t *testing.T) {
	got := dedupe([]string{"A=1", "B=2", "A=3", "C", "C=", "=x"})
	want := []string{"A=3", "B=2", "C=", "=x"}
	if len(got) != len(want) {
		t.Fatalf("%q", got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestLoadModulesReportsEach(t *testing.T) {
	if errs := loadModules("/no/such/list"); errs != nil {
		t.Errorf("no list: %v", errs)
	}
	list := t.TempDir() + "/modules"
	if err := writeFile(list, "# comment\n\n/no/such/a.ko\n/no/such/b.ko.xz\n"); err != nil {
		t.Fatal(err)
	}
	if errs := loadModules(list); len(errs) != 2 {
		t.Errorf("two missing modules: %v", errs)
	}
}

func writeFile(name, text string) error { return os.WriteFile(name, []byte(text), 0o644) }

// TestOutputWaitsForTheReply checks that what a spare writes as soon as it has
// its command is read, but not delivered before the client was told of it.
func TestOutputWaitsForTheReply(t *testing.T) {
	s := newServer(Options{})
	p := &process{done: make(chan struct{})}
	var sent lockedBuffer
	std, err := s.streams(p, &proto.ExecRequest{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	p.pumpLater()
	for _, o := range p.outs {
		o.connect(proto.NewWriter(&sent))
	}
	if _, err := unix.Write(int(std.child[1]), []byte("early")); err != nil {
		t.Fatal(err)
	}
	for unread := 1; unread > 0; {
		if unread, err = unix.IoctlGetInt(int(std.child[1]), unix.TIOCINQ); err != nil {
			t.Fatal(err)
		}
	}
	if got := sent.String(); got != "" {
		t.Errorf("delivered before run: %q", got)
	}
	exited := make(chan syscall.WaitStatus, 1)
	exited <- 0
	p.exited = exited
	std.closeChild()
	p.run(0, 0, nil)
	if got := sent.String(); !strings.HasSuffix(got, "early") {
		t.Errorf("delivered after run: %q", got)
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
