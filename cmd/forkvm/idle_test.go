package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// TestUnused: a server ends when it was not used for as long as it is to wait,
// or at the next look after that.
func TestUnused(t *testing.T) {
	const after = 15 * time.Minute
	agrees := func() (func(), bool) { return nil, true }
	for name, use := range map[string]func(u *usage, runs *atomic.Bool) time.Duration{ // for how long
		"not at all": func(*usage, *atomic.Bool) time.Duration { return 0 },
		"a request": func(u *usage, _ *atomic.Bool) time.Duration {
			end := u.begin()
			time.Sleep(2 * time.Hour)
			end()
			return 2 * time.Hour
		},
		"short ones": func(u *usage, _ *atomic.Bool) time.Duration {
			for range 10 {
				time.Sleep(14 * time.Minute)
				u.begin()()
			}
			return 140 * time.Minute
		},
		"a sandbox": func(_ *usage, runs *atomic.Bool) time.Duration {
			runs.Store(true)
			time.Sleep(2 * time.Hour)
			runs.Store(false)
			return 2 * time.Hour
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				u, began := newUsage(), time.Now()
				var runs atomic.Bool
				ended := make(chan time.Duration, 1)
				go func() {
					if u.waitUnused(t.Context(), after, runs.Load, agrees) {
						ended <- time.Since(began)
					}
				}()
				used := use(u, &runs)
				select {
				case at := <-ended:
					t.Fatalf("ended after %v, while it was used", at)
				default:
				}
				if at := <-ended; at < used+after-after/looks || at > used+after+after/looks {
					t.Errorf("was used for %v, and ended after %v", used, at)
				}
			})
		})
	}
}

// TestUnusedEndsWithItsContext, and not with the time.
func TestUnusedEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if newUsage().waitUnused(ctx, time.Hour, func() bool { return false }, nil) {
			t.Error("unused")
		}
	})
}

// TestClaimInVain: who is not alone, or is asked meanwhile, goes on for as long
// again.
func TestClaimInVain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const after = time.Minute
		u, began := newUsage(), time.Now()
		claims, back := 0, 0
		claim := func() (func(), bool) {
			switch claims++; claims {
			case 1:
				return nil, false
			case 2:
				u.begin()() // by somebody who knows of no locks
			}
			return func() { back++ }, true
		}
		if !u.waitUnused(t.Context(), after, func() bool { return false }, claim) || claims != 3 || back != 1 {
			t.Errorf("claimed %d times, gave back %d times", claims, back)
		}
		if took := time.Since(began); took < 3*after || took > 3*after+3*after/looks {
			t.Errorf("ended after %v", took)
		}
	})
}

// TestLocks: commands share a server, and it ends alone.
func TestLocks(t *testing.T) {
	state := t.TempDir()
	e := &serverEnd{state: state, log: slog.New(slog.DiscardHandler), usage: newUsage()}
	var used []*os.File
	for range 2 {
		f, err := takeLock(t.Context(), state, useLock, unix.LOCK_SH)
		if err != nil {
			t.Fatal(err)
		}
		used = append(used, f)
	}
	for _, f := range used {
		if _, ok := e.claim(); ok {
			t.Fatal("claimed while it is used")
		}
		f.Close()
	}
	giveBack, ok := e.claim()
	if !ok {
		t.Fatal("not claimed though nobody uses it")
	}
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan error)
	go func() {
		_, err := takeLock(ctx, state, useLock, unix.LOCK_SH)
		got <- err
	}()
	cancel()
	if err := await(t, got, "end of waiting for a lock"); !errors.Is(err, context.Canceled) {
		t.Errorf("while it ends: %v", err)
	}
	giveBack()
	f, err := takeLock(t.Context(), state, useLock, unix.LOCK_SH)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
}

// TestAServerIsAlwaysThere: whenever a server ends, who asks gets an answer, of
// it or of the next.
func TestAServerIsAlwaysThere(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	run := func(args ...string) (out, errs string, err error) {
		cmd := exec.CommandContext(t.Context(), "forkvm", args...)
		cmd.Env = append(os.Environ(), "FORKVM_STATE="+state, "FORKVM_TEMPLATES="+filepath.Join(state, "templates"), idleVariable+"=1ms")
		var stdout, stderr strings.Builder
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		err = cmd.Run()
		return stdout.String(), stderr.String(), err
	}
	var asked sync.WaitGroup
	for range 3 {
		asked.Go(func() {
			for range 4 {
				if out, errs, err := run("ls", "--json"); err != nil || out != "[]\n" {
					t.Errorf("%v: %s%s", err, out, errs)
				}
			}
		})
	}
	asked.Wait()
	if err := signalServer(state, 0); errors.Is(err, errGoesOn) { // otherwise it had ended before
		t.Error(err)
	}
	if _, errs, err := run("ls"); err != nil || !strings.Contains(errs, "started a server") {
		t.Errorf("after the end of one: %v: %s", err, errs)
	}
	if _, errs, err := run("serve", "stop"); err != nil || errs != "" {
		t.Errorf("%v: %s", err, errs)
	}
	if _, err := os.Stat(filepath.Join(state, "forkvm.sock")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket: %v", err)
	}
}

// TestStopSaysHowItWent.
func TestStopSaysHowItWent(t *testing.T) {
	for _, test := range []struct {
		tell func(e *serverEnd)
		want string
	}{
		{func(e *serverEnd) { e.tell(nil) }, ""},
		{func(e *serverEnd) { e.tell(errors.New("could not pause")) }, "the server has ended: could not pause"},
		{func(*serverEnd) {}, "did not say how"}, // killed
	} {
		socket := filepath.Join(t.TempDir(), "socket")
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		asked := make(chan struct{})
		e := &serverEnd{usage: newUsage(), stop: func() { close(asked) }}
		srv := &http.Server{Handler: e.handler(http.NotFoundHandler())}
		go srv.Serve(l)
		defer srv.Close()
		got := make(chan error, 1)
		go func() { got <- stopAt(t.Context(), "unix://"+socket) }()
		await(t, asked, "request to stop")
		select {
		case err := <-got:
			t.Errorf("it did not wait for the end: %v", err)
		default:
		}
		test.tell(e)
		for _, c := range e.waiting {
			c.Close() // as the end of the process does
		}
		if err := await(t, got, "answer"); (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("error %v, want %q", err, test.want)
		}
	}
}

// TestOnlyASocketStops: over TCP there is no such path, with any key.
func TestOnlyASocketStops(t *testing.T) {
	e := &serverEnd{usage: newUsage(), stop: func() { t.Error("stopped") }}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: e.handler(newFakeService().handler())}
	go srv.Serve(l)
	defer srv.Close()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+l.Addr().String()+stopPath, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-API-Key", fakeKey)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusNotFound {
		t.Errorf("status %s", resp.Status)
	}
}

// TestStopOfAnOldServer: one that does not know how says so.
func TestStopOfAnOldServer(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "socket")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.NotFoundHandler()}
	go srv.Serve(l)
	defer srv.Close()
	if err := stopAt(t.Context(), socket); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("error %v", err)
	}
	srv.Close()
	if err := stopAt(t.Context(), socket); err != nil {
		t.Errorf("where none runs: %v", err)
	}
}

// TestManyStop: whoever asks a server to stop knows that it has ended when there
// is an answer.
func TestManyStop(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	run := func(args ...string) error {
		cmd := exec.CommandContext(t.Context(), "forkvm", args...)
		cmd.Env = append(os.Environ(), "FORKVM_STATE="+state, "FORKVM_TEMPLATES="+filepath.Join(state, "templates"))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%v: %v: %s", args, err, out)
		}
		return err
	}
	if run("ls") != nil {
		return
	}
	var asked sync.WaitGroup
	for range 4 {
		asked.Go(func() {
			if run("serve", "stop") != nil {
				return
			}
			if pid, err := serverOf(state); pid != 0 || err != nil {
				t.Errorf("process %d has not ended: %v", pid, err)
			}
		})
	}
	asked.Wait()
}
