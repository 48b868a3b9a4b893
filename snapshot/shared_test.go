package snapshot

import (
	"errors"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

func init() { otherJobs["share"] = useStore }

// Several processes, each of several goroutines, use one store for all that a
// store is for. Half of the layers are the same for all, so they are written
// at once, and deleted while others write them.
func TestManyProcessesUseOneStore(t *testing.T) {
	dir := filepath.Join(memoryDir(t), "store")
	var all sync.WaitGroup
	for i := range 4 {
		cmd := job{Change: "share", Dir: dir, KillAt: i}.command(t)
		all.Go(func() {
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("process %d: %v: %s", i, err, out)
			}
		})
	}
	all.Wait()
	s := openStore(t, dir)
	if got := len(listed(t, s)); got != 4*3 {
		t.Errorf("%d snapshots, want 12", got)
	}
	if err := s.VerifyAll(ctx, nil); err != nil {
		t.Error(err)
	}
	if _, err := s.GC(ctx); err != nil {
		t.Error(err)
	}
	noLeftovers(t, s, dir)
}

// useStore is what one of the processes does: each of its goroutines leaves
// one snapshot.
func useStore(t *testing.T, j job) {
	s := openStore(t, j.Dir)
	var all sync.WaitGroup
	for g := range 3 {
		all.Go(func() {
			for round := range 12 {
				if err := useOnce(t, s, fmt.Sprintf("%d/%d/%d", j.KillAt, g, round), round == 11); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}

func useOnce(t *testing.T, s *Store, name string, keep bool) error {
	seed := int64(os.Getpid())
	for _, c := range name {
		seed = seed*31 + int64(c)
	}
	rng := rand.New(rand.NewSource(seed))
	table := overlay(t, tableOf(t, pages{1, 2, 3, 4}), pages{0, byte(rng.Intn(3) + 10), 0, 0})
	info, err := s.Create(ctx, Draft{Label: name, Memory: table, Disks: []Disk{{"own", tableOf(t, pages{byte(rng.Intn(250) + 1)})}}})
	if err != nil {
		return err
	}
	snap, err := s.Load(ctx, info.ID, nil)
	if err != nil {
		return err
	}
	defer snap.Release()
	if got, want := content(t, snap.Memory), content(t, table); got != want {
		t.Errorf("memory %s, want %s", got, want)
	}
	if err := s.Relabel(ctx, info.ID, "again "+name); err != nil {
		return err
	}
	if _, err := s.List(ctx); err != nil {
		return err
	}
	if keep {
		return nil
	}
	if rng.Intn(4) == 0 {
		if _, err := s.GC(ctx); err != nil {
			return err
		}
	}
	return s.Delete(ctx, info.ID)
}

// A label that is being changed does not bring a deleted snapshot back.
func TestRelabelDoesNotRevive(t *testing.T) {
	dir := memoryDir(t)
	s := openStore(t, dir)
	for range 100 {
		id := mustCreate(t, s, Draft{Memory: tableOf(t, pages{1})}).ID
		var all sync.WaitGroup
		for i := range 3 {
			all.Go(func() {
				if err := s.Relabel(ctx, id, fmt.Sprint(i)); err != nil && !errors.Is(err, ErrNotFound) {
					t.Error(err)
				}
			})
		}
		all.Go(func() {
			if err := s.Delete(ctx, id); err != nil {
				t.Error(err)
			}
		})
		all.Wait()
		if _, err := s.Load(ctx, id, nil); !errors.Is(err, ErrNotFound) {
			t.Fatalf("deleted, and load says %v", err)
		}
	}
	if got := listed(t, s); len(got) > 0 {
		t.Errorf("listed: %v", got)
	}
}

// However many load a snapshot at once, its layers are verified by one.
func TestManyLoadOneSnapshot(t *testing.T) {
	dir := memoryDir(t)
	large := make(pages, 2000)
	for i := range large {
		large[i] = byte(i%255 + 1)
	}
	id := mustCreate(t, openStore(t, dir), Draft{Memory: tableOf(t, large)}).ID
	s := openStore(t, dir)
	var all sync.WaitGroup
	var mu sync.Mutex
	layers := map[*Layer]bool{}
	for range 8 {
		all.Go(func() {
			snap, err := s.Load(ctx, id, nil)
			if err != nil {
				t.Error(err)
				return
			}
			t.Cleanup(snap.Release)
			mu.Lock()
			defer mu.Unlock()
			layers[snap.Memory.Extents()[0].Layer] = true
		})
	}
	all.Wait()
	if len(layers) != 1 {
		t.Errorf("%d layers were made of one file", len(layers))
	}
}
