package vmm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/forkvm/forkvm/kvm"
	"github.com/forkvm/forkvm/snapshot"
)

// shellPool keeps shells of one kind ready, so that a fork has only to map
// memory and restore state, and an empty layer for the next capture. It is
// shared by all machines of that kind, and lives as long as one of them or of
// their images does.
type shellPool struct {
	key  shellKey
	spec shellSpec

	mu       sync.Mutex
	users    int      // guarded by mu
	want     int      // guarded by mu: how many to keep ready
	ready    []*shell // guarded by mu
	building int      // guarded by mu
	failed   error    // guarded by mu: of the last shell built ahead

	layer *snapshot.LayerWriter // guarded by mu: nil while there is none

	changed chan struct{} // guarded by mu: closed and replaced when a shell was built or failed
}

// shellKey tells kinds of shells apart.
type shellKey struct {
	path   string
	vcpus  int
	memory int64
	cpuid  string
	msrs   string
}

func (s shellSpec) key() shellKey {
	return shellKey{s.path, s.vcpus, s.memory, fmt.Sprint(s.cpuid), fmt.Sprint(s.msrs.indices)}
}

var shellPools = struct {
	mu  sync.Mutex
	all map[shellKey]*shellPool // guarded by mu
}{all: make(map[shellKey]*shellPool)}

// joinPool returns the pool for a kind of shell, of which it is to keep at
// least spare ready.
func joinPool(spec shellSpec, spare int) *shellPool {
	key := spec.key()
	shellPools.mu.Lock()
	defer shellPools.mu.Unlock()
	p := shellPools.all[key]
	if p == nil {
		p = &shellPool{key: key, spec: spec, changed: make(chan struct{})}
		shellPools.all[key] = p
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.users++
	p.want = max(p.want, spare)
	return p
}

// join adds a user.
func (p *shellPool) join() *shellPool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.users++
	return p
}

// leave is called once by each user. The last one frees what is ready.
func (p *shellPool) leave() {
	shellPools.mu.Lock()
	defer shellPools.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.users--; p.users > 0 {
		return
	}
	delete(shellPools.all, p.key)
	for _, s := range p.ready {
		inBackground(func() { s.close() })
	}
	p.ready = nil
	if p.layer != nil {
		p.layer.Close()
		p.layer = nil
	}
}

// take returns a shell that is ready, or builds one.
func (p *shellPool) take() (*shell, error) {
	p.mu.Lock()
	if n := len(p.ready); n > 0 {
		s := p.ready[n-1]
		p.ready[n-1] = nil
		p.ready = p.ready[:n-1]
		p.mu.Unlock()
		return s, nil
	}
	p.mu.Unlock()
	return buildShell(p.spec)
}

// takeLayer returns a new layer for memory of the kind.
func (p *shellPool) takeLayer(size int64) (*snapshot.LayerWriter, error) {
	p.mu.Lock()
	layer := p.layer
	p.layer = nil
	p.mu.Unlock()
	if layer != nil {
		return layer, nil
	}
	return snapshot.NewLayerWriter(size)
}

// addLayer makes the layer that is ready. If that fails nothing is lost.
func (p *shellPool) addLayer() {
	layer, err := snapshot.NewLayerWriter(p.spec.memory)
	if err != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.users == 0 || p.layer != nil {
		layer.Close()
		return
	}
	p.layer = layer
}

// buildShell is newShell, which may have to wait for what is being freed.
func buildShell(spec shellSpec) (*shell, error) {
	s, err := newShell(spec)
	if errors.Is(err, ErrTooMany) {
		_ = WaitFreed(context.Background())
		s, err = newShell(spec)
	}
	return s, err
}

// refill has the pool build in the background what it lacks. It is called when
// a start is over, so as not to compete with it.
func (p *shellPool) refill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.users > 0 && p.want > 0 && p.layer == nil {
		inBackground(p.addLayer)
	}
	for p.users > 0 && len(p.ready)+p.building < p.want && p.building < runtime.NumCPU() {
		p.building++
		inBackground(p.buildOne)
	}
}

// buildOne adds a shell. If that fails nothing is lost: a start that finds
// none ready builds its own, and reports why it cannot.
func (p *shellPool) buildOne() {
	s, err := newShell(p.spec)
	p.mu.Lock()
	p.building--
	p.failed = err
	close(p.changed)
	p.changed = make(chan struct{})
	unwanted := err == nil && p.users == 0
	if err == nil && !unwanted {
		p.ready = append(p.ready, s)
	}
	p.mu.Unlock()
	if unwanted {
		s.close()
	}
	if err == nil {
		p.refill()
	}
}

// fill waits until n shells are ready.
func (p *shellPool) fill(ctx context.Context, n int) error {
	p.addLayer()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failed = nil
	for len(p.ready) < n {
		for len(p.ready)+p.building < n && p.building < 4*runtime.NumCPU() {
			p.building++
			inBackground(p.buildOne)
		}
		changed := p.changed
		p.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		p.mu.Lock()
		if p.users == 0 {
			return ErrClosed // and what is built is freed at once
		}
		if err := cmp.Or(p.failed, ctx.Err()); err != nil {
			return err
		}
	}
	return nil
}

// specOf is the kind of shell that a machine of cfg goes on in.
func specOf(cfg Config, cpuid []kvm.CPUIDEntry2, msrs *msrList) shellSpec {
	return shellSpec{cfg.KVM, cfg.VCPUs, cfg.Memory, cpuid, msrs}
}
