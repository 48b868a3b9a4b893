package vmm

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/forkvm/forkvm/guestagent/client"
	"github.com/forkvm/forkvm/guestagent/proto"
	"github.com/forkvm/forkvm/kvm"
	"github.com/forkvm/forkvm/snapshot"
)

func openStore(t testing.TB, dir string) *snapshot.Store {
	t.Helper()
	s, err := snapshot.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func pause(t testing.TB, vm *VM) {
	t.Helper()
	if err := vm.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestSnapshotOutlivesTheMachine stores a machine, ends it, and restores it
// from another store object on the same directory, as another process would.
func TestSnapshotOutlivesTheMachine(t *testing.T) {
	dir := t.TempDir()
	vm := startMicro(t, guestCounter, func(c *Config) { c.VCPUs = 2 })
	awaitCounter(t, vm, 100)
	pause(t, vm)
	const much = 4 << 20 // of memory that is not zeros
	if err := vm.mem.write(16<<20, bytes.Repeat([]byte{7}, much)); err != nil {
		t.Fatal(err)
	}
	at := counter(t, vm)
	ram := bytes.Clone(vm.mem.ram)
	info, err := vm.Snapshot(t.Context(), openStore(t, dir), SnapshotOptions{Label: "first"})
	if err != nil {
		t.Fatal(err)
	}
	closeVM(t, vm)

	image, err := Load(t.Context(), openStore(t, dir), info.ID, LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	table, _, err := image.retain()
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(ram))
	if err := table.ReadAt(got, 0); err != nil || !bytes.Equal(got, ram) {
		t.Errorf("memory differs after a restore, %v", err)
	}
	table.Release()
	again, err := image.Start(t.Context(), StartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer closeVM(t, again)
	awaitCounter(t, again, at)

	// A snapshot of what was restored descends from it, and shares its layers.
	second, err := again.Snapshot(t.Context(), openStore(t, dir), SnapshotOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if second.Parent != info.ID {
		t.Errorf("parent %q, want %q", second.Parent, info.ID)
	}
	if info.Stored < much || second.Unique >= much/2 {
		t.Errorf("the second snapshot added %d bytes, the first holds %d", second.Unique, info.Stored)
	}
}

func TestRestoreRefusesWhatThisHostLacks(t *testing.T) {
	vm := startMicro(t, guestCounter)
	image, err := vm.Capture(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	store := openStore(t, t.TempDir())
	save := func(change func(*machineState)) string {
		t.Helper()
		k := *image.state.kvm
		k.VCPUs = append([]vcpuState(nil), k.VCPUs...)
		k.CPUID = append([]kvm.CPUIDEntry2(nil), k.CPUID...)
		st := *image.state
		st.kvm = &k
		change(&st)
		other := &Image{cfg: image.cfg, state: &st, table: image.table}
		info, err := other.Save(t.Context(), store, SnapshotOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return info.ID
	}
	for name, c := range map[string]struct {
		change func(*machineState)
		want   error
	}{
		"feature": {func(st *machineState) {
			for i := range st.kvm.CPUID {
				if st.kvm.CPUID[i].Function == leafStructured {
					st.kvm.CPUID[i].EBX = ^uint32(0)
				}
			}
		}, snapshot.ErrIncompatible},
		"XSAVE": {func(st *machineState) { st.kvm.VCPUs[0].XSAVE = make([]byte, 64<<10) }, snapshot.ErrIncompatible},
		"vendor": {func(st *machineState) {
			for i := range st.kvm.CPUID {
				if st.kvm.CPUID[i].Function == 0 {
					st.kvm.CPUID[i].EBX++
				}
			}
		}, snapshot.ErrIncompatible},
		"no CPUID":   {func(st *machineState) { st.kvm.CPUID = nil }, nil},
		"two vCPUs":  {func(st *machineState) { st.kvm.VCPUs = append(st.kvm.VCPUs, st.kvm.VCPUs[0]) }, snapshot.ErrCorrupt},
		"other MSRs": {func(st *machineState) { st.kvm.VCPUs[0].MSRs = []kvm.MSREntry{{Index: msrTSC}} }, snapshot.ErrCorrupt},
	} {
		t.Run(name, func(t *testing.T) {
			vm, err := Restore(t.Context(), store, save(c.change), StartOptions{})
			if err == nil {
				closeVM(t, vm)
			}
			if err == nil || c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("Restore: %v, want %v", err, c.want)
			}
		})
	}
	// Nor does it start one whose agent it cannot talk to.
	talks := &Image{cfg: image.cfg, state: image.state, table: image.table, info: client.Info{Version: proto.Version + 1}}
	talks.cfg.Bare = false
	info, err := talks.Save(t.Context(), store, SnapshotOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Load(t.Context(), store, info.ID, LoadOptions{}); !errors.Is(err, snapshot.ErrIncompatible) {
		t.Errorf("an agent of another version: %v", err)
	}
	// Nothing of that stays, and what is right still starts.
	vm2, err := Restore(t.Context(), store, save(func(*machineState) {}), StartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	closeVM(t, vm2)
}

func TestStateFormatRoundTrip(t *testing.T) {
	vm := startMicro(t, guestCounter, func(c *Config) { c.VCPUs = 2 })
	awaitCounter(t, vm, 10)
	image, err := vm.Capture(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	sections, err := encodeState(image.state)
	if err != nil {
		t.Fatal(err)
	}
	got, err := decodeState(sections, 2, 0)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(image.state, got, cmp.AllowUnexported(machineState{}, msrList{})); diff != "" {
		t.Errorf("state differs (-saved +decoded):\n%s", diff)
	}
	for _, n := range []int{1, 3} {
		if _, err := decodeState(sections, n, 0); !errors.Is(err, snapshot.ErrCorrupt) {
			t.Errorf("as a machine of %d vCPUs: %v", n, err)
		}
	}
}

// FuzzStateSections decodes what anybody may have put into a snapshot, and
// restores the devices from it.
func FuzzStateSections(f *testing.F) {
	empty := &machineState{kvm: &kvmState{CPUID: make([]kvm.CPUIDEntry2, 1), VCPUs: make([]vcpuState, 1)}}
	sections, err := encodeState(empty)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(sections[sectionCPUID], sections[sectionChips], sections[sectionDevices], sections[sectionVCPU(0)])
	f.Add([]byte("[]"), []byte("{}"), []byte(`{"Virtio":[{"Queues":[{"Size":3}]}]}`), []byte("null"))
	f.Add(sections[sectionCPUID], sections[sectionChips], []byte(`{"Disks":[{"Virtio":{"Queues":[{"Size":3}]}}]}`), sections[sectionVCPU(0)])
	cfg := Config{VCPUs: 1, Disks: []Disk{{Name: "data", Size: 1 << 20}}}
	f.Fuzz(func(t *testing.T, cpuid, chips, devices, vcpu []byte) {
		state := map[string][]byte{sectionCPUID: cpuid, sectionChips: chips, sectionDevices: devices, sectionVCPU(0): vcpu}
		birth, err := openDisks(cfg.Disks)
		if err != nil {
			t.Fatal(err)
		}
		disks := newDisks(birth, "")
		defer disks.close()
		st, err := decodeState(state, 1, 1)
		if err != nil {
			disks.now = nil
			st, err = decodeState(state, 1, 0)
		}
		if err != nil {
			return
		}
		if _, err := json.Marshal(st.needs()); err != nil {
			t.Fatal(err)
		}
		m := newMemory(t, MinMemory)
		defer m.close()
		b, err := restoreBoard(boardEnv{cfg: &cfg, disks: disks.now, memory: m, console: newConsole(nil), reset: func() {}, powerOff: func() {}}, &st.board)
		if err == nil {
			b.close()
		}
	})
}

// TestLongChainOfCaptures captures so often, with little written in between,
// that each would have a layer of its own: a process has not so many files, nor
// does a manifest name so many.
func TestLongChainOfCaptures(t *testing.T) {
	vm := startMicro(t, guestSweep)
	pause(t, vm)
	for i := range 2*maxTableLayers + 10 {
		vm.mem.ram[(8000+3*i)*pageSize] = byte(i) | 1
		image := captureOf(t, vm)
		if n := layersOf(image.table); n > maxTableLayers {
			t.Fatalf("capture %d has %d layers", i, n)
		}
		if i%100 == 0 {
			p := make([]byte, pageSize)
			for k := range i {
				if err := image.table.ReadAt(p, int64(8000+3*k)*pageSize); err != nil || p[0] != byte(k)|1 {
					t.Fatalf("capture %d: page %d has %d, %v", i, k, p[0], err)
				}
			}
		}
		image.Close()
	}
}
