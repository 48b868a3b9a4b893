package snapshot

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestGCWaitsForWriters(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	a := mustCreate(t, s, Draft{Memory: tableOf(t, pages{1})})
	writing := make(chan struct{})
	goOn := make(chan struct{})
	created := make(chan error, 1)
	go func() {
		_, err := s.Create(ctx, Draft{Memory: tableOf(t, pages{2}), Progress: func(done, total int64) {
			if done == total {
				close(writing)
				<-goOn
			}
		}})
		created <- err
	}()
	<-writing
	// Deleting is immediate; only the layer stays for now.
	if err := s.Delete(ctx, a.ID); err != nil {
		t.Fatal(err)
	}
	if got := listed(t, s); len(got) != 0 {
		t.Errorf("listed: %v", got)
	}
	if got := layerFiles(t, dir); len(got) != 1 {
		t.Errorf("layers %v", got)
	}
	limited, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := s.GC(limited); !errors.Is(err, context.Canceled) {
		t.Errorf("collection while somebody writes: %v", err)
	}
	collected := make(chan error, 1)
	go func() {
		got, err := s.GC(ctx)
		if err == nil && got.Layers != 1 {
			err = errors.New("not one layer collected")
		}
		collected <- err
	}()
	close(goOn)
	if err := errors.Join(<-created, <-collected); err != nil {
		t.Fatal(err)
	}
	if got := listed(t, s); len(got) != 1 {
		t.Errorf("listed: %v", got)
	}
	noLeftovers(t, s, dir)
}

// What cannot be read may need any layer, so none is taken away.
func TestGCKeepsLayersOfUnreadableSnapshots(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	a := mustCreate(t, s, Draft{Memory: tableOf(t, pages{1})})
	b := mustCreate(t, s, Draft{Memory: tableOf(t, pages{2})})
	future := newID()
	body := []byte(magic + " 2 " + strings.Repeat("0", 64) + "\nsomething")
	if err := os.WriteFile(filepath.Join(dir, manifestName(future)), body, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Load(ctx, future, nil); !errors.Is(err, ErrVersion) || !strings.Contains(err.Error(), "version 1") {
		t.Errorf("load: %v, want ErrVersion in words", err)
	}
	if err := s.Delete(ctx, a.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := s.GC(ctx); !errors.Is(err, ErrVersion) || !strings.Contains(err.Error(), future) {
		t.Errorf("gc: %v, want ErrVersion and the id", err)
	}
	if got := layerFiles(t, dir); len(got) != 2 {
		t.Errorf("layers %v", got)
	}
	infos, err := s.List(ctx)
	if err != nil || len(infos) != 2 {
		t.Fatalf("%v, %v", infos, err)
	}
	for _, i := range infos {
		if (i.ID == future) != errors.Is(i.Err, ErrVersion) || i.ID != future && i.ID != b.ID {
			t.Errorf("listed: %s, %v", i.ID, i.Err)
		}
	}
	if err := s.VerifyAll(ctx, nil); !errors.Is(err, ErrVersion) {
		t.Errorf("verify: %v", err)
	}
	if err := s.Delete(ctx, future); err != nil {
		t.Fatal(err)
	}
	noLeftovers(t, s, dir)
}

// While layers are being removed nobody counts on one that is there.
func TestEverybodyWaitsForGC(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	id := mustCreate(t, s, Draft{Memory: tableOf(t, pages{1})}).ID
	l, err := s.lock(ctx, lockName, exclusive)
	if err != nil {
		t.Fatal(err)
	}
	other := openStore(t, dir)
	all := map[string]func(context.Context) error{
		"Load": func(ctx context.Context) error { _, err := other.Load(ctx, id, nil); return err },
		"Outgoing": func(ctx context.Context) error {
			out, err := other.Outgoing(ctx, id)
			if err == nil {
				out.Close()
			}
			return err
		},
		"Verify": func(ctx context.Context) error { return other.Verify(ctx, id, nil) },
		"Create": func(ctx context.Context) error {
			_, err := other.Create(ctx, Draft{Memory: tableOf(t, pages{1})})
			return err
		},
		"Relabel": func(ctx context.Context) error { return other.Relabel(ctx, id, "x") },
		"Delete":  func(ctx context.Context) error { return other.Delete(ctx, id) },
		"GC":      func(ctx context.Context) error { _, err := other.GC(ctx); return err },
	}
	for name, do := range all {
		limited, cancel := context.WithTimeout(ctx, 30*time.Millisecond)
		if err := do(limited); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v, want it to wait", name, err)
		}
		cancel()
	}
	l.unlock()
	for _, name := range []string{"Load", "Outgoing", "Verify", "Create", "Relabel", "Delete", "GC"} {
		if err := all[name](ctx); err != nil {
			t.Error(err)
		}
	}
}

// A layer must not go before it is certain that the manifest is gone: after a
// loss of power there would be a snapshot without it.
func TestGCMakesDeletionDurableFirst(t *testing.T) {
	dir := t.TempDir()
	var ops []string
	s, err := open(dir, func(op string, names ...string) error {
		ops = append(ops, op+" "+filepath.Dir(names[0])+" "+names[0])
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	a := mustCreate(t, s, Draft{Memory: tableOf(t, pages{1})})
	if err := os.Remove(filepath.Join(dir, manifestName(a.ID))); err != nil { // by a process that was killed then
		t.Fatal(err)
	}
	ops = nil
	if _, err := s.GC(ctx); err != nil {
		t.Fatal(err)
	}
	if len(ops) < 2 || ops[0] != "syncdir . "+snapshotsDir || !strings.HasPrefix(ops[1], "remove "+layersDir) {
		t.Errorf("changes %q", ops)
	}

	// A deletion that removes no layer is made durable as well.
	b := mustCreate(t, s, Draft{Memory: tableOf(t, pages{1})})
	mustCreate(t, s, Draft{Memory: tableOf(t, pages{1})})
	ops = nil
	if err := s.Delete(ctx, b.ID); err != nil {
		t.Fatal(err)
	}
	removed := slices.IndexFunc(ops, func(op string) bool { return strings.HasPrefix(op, "remove "+snapshotsDir) })
	if removed < 0 || !slices.Contains(ops[removed:], "syncdir . "+snapshotsDir) {
		t.Errorf("changes %q", ops)
	}
}
