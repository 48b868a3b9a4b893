package vmm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand"
	"slices"
	"testing"
	"time"

	"github.com/forkvm/forkvm/kvm"
)

const msrKernelGSBase = 0xc0000102

// enrich gives every vCPU of a paused machine a state of which no part is that
// of a fresh vCPU, and which does not disturb what the guest does.
func enrich(t *testing.T, vm *VM) {
	t.Helper()
	for id := range vm.shell.vcpus {
		onVCPU(t, vm, id, func(c *kvm.VCPU) error {
			st := new(vcpuState)
			if err := saveVCPU(vm.shell.vcpus[id], st, vm.shell.xsaveSize, &msrList{}); err != nil {
				return err
			}
			st.Regs.R8, st.Regs.R15 = 0x1122334455667788+uint64(id), 0xfeedface
			st.Sregs.CR4 |= cr4OSFXSR | cr4OSXMMEXCPT | cr4OSXSAVE
			for i := range 32 {
				st.XSAVE[xsaveXMM+i], st.XSAVE[xsaveYMM+i] = byte(i+id), byte(i^0x5a)
			}
			binary.LittleEndian.PutUint64(st.XSAVE[xsaveHeader:], binary.LittleEndian.Uint64(st.XSAVE[xsaveHeader:])|xsaveAVX)
			st.XCRs = kvm.XCRs{NrXCRs: 1}
			st.XCRs.XCRs[0].Value = xsaveAVX
			st.DebugRegs.DB = [4]uint64{0x1000, 0x2000, 0x3000, 0x4000 + uint64(id)}
			const lvtError, masked = 0x370, 1 << 16
			st.LAPIC.SetRegister(lvtError, masked|0xfe)
			st.Events.NMI.Masked = 1
			return errors.Join(c.SetSregs(&st.Sregs), c.SetRegs(&st.Regs), c.SetXSAVE2(st.XSAVE), c.SetXCRs(&st.XCRs),
				c.SetDebugRegs(&st.DebugRegs), c.SetLAPIC(&st.LAPIC), c.SetVCPUEvents(&st.Events),
				writeMSRs(c, []kvm.MSREntry{{Index: msrKernelGSBase, Data: 0xffff888000000000 + uint64(id)}}))
		})
	}
}

// restoredState restores st into a machine that does not run, made from image,
// and reads it back. Used says that the machine had been used before, as one
// that is reset has.
func restoredState(t *testing.T, image *Image, st *kvmState, used bool) (*kvmState, error) {
	t.Helper()
	table, onDisk, err := image.retain()
	if err != nil {
		t.Fatal(err)
	}
	defer table.Release()
	shell, err := image.pool.take()
	if err != nil {
		t.Fatal(err)
	}
	vm, err := newVM(image.cfg, time.Now(), shell, table, onDisk)
	if err != nil {
		t.Fatal(err)
	}
	defer closeVM(t, vm)
	var again *kvmState
	err = vm.onLead(func(lead *vcpu) (err error) {
		if used {
			if err := shell.restoreKVM(lead, image.state.kvm); err != nil {
				return err
			}
		}
		if err := shell.restoreKVM(lead, st); err != nil {
			return err
		}
		again, err = shell.saveKVM(lead, image.state.msrs)
		return err
	})
	return again, err
}

// TestScenarioRestoreIsComplete restores states that mix parts of one with
// nothing in common with a fresh vCPU, and parts of a fresh vCPU, which a
// restore may leave out. Each comes back as it was, in a fresh machine and in
// one that had the other state before.
func TestScenarioRestoreIsComplete(t *testing.T) {
	vm := startTicker(t, patience*1000, func(c *Config) { c.VCPUs = 2 })
	awaitArmed(t, vm)
	pause(t, vm)
	enrich(t, vm)
	image := captureOf(t, vm)
	rich := image.state.kvm
	fresh := freshStates(t, image)
	for id := range rich.VCPUs {
		f, r := fresh[id], rich.VCPUs[id]
		for name, same := range map[string]bool{
			"REGS": f.Regs == r.Regs, "SREGS": f.Sregs == r.Sregs, "XSAVE": bytes.Equal(f.XSAVE, r.XSAVE), "XCRS": f.XCRs == r.XCRs,
			"DEBUGREGS": f.DebugRegs == r.DebugRegs, "LAPIC": f.LAPIC == r.LAPIC, "MSRS": slices.Equal(f.MSRs, r.MSRs), "EVENTS": f.Events == r.Events,
		} {
			if same {
				t.Errorf("vCPU %d: %s is that of a fresh one: the test shows nothing", id, name)
			}
		}
	}
	parts := []func(to, from *vcpuState){
		func(to, from *vcpuState) { to.Regs = from.Regs },
		func(to, from *vcpuState) { to.XSAVE = from.XSAVE },
		func(to, from *vcpuState) { to.XCRs = from.XCRs },
		func(to, from *vcpuState) { to.DebugRegs = from.DebugRegs },
		func(to, from *vcpuState) { to.MSRs = from.MSRs },
		func(to, from *vcpuState) { to.Events = from.Events },
		// The layout of the LAPIC is that which SREGS says, and KVM wakes a
		// vCPU that is halted at the reset vector.
		func(to, from *vcpuState) {
			to.Sregs, to.LAPIC, to.Deadline, to.MPState = from.Sregs, from.LAPIC, from.Deadline, from.MPState
		},
	}
	mixes := rand.New(rand.NewSource(8)).Perm(1 << len(parts))
	rounds(t, len(mixes), 16, func(round int) {
		mix := mixes[round]
		st := *rich
		st.VCPUs = slices.Clone(rich.VCPUs)
		for i, take := range parts {
			if mix>>i&1 != 0 {
				for id := range st.VCPUs {
					take(&st.VCPUs[id], &fresh[id])
				}
			}
		}
		for _, used := range []bool{false, true} {
			again, err := restoredState(t, image, &st, used)
			if err != nil {
				t.Fatalf("mix %07b, used %v: %v", mix, used, err)
			}
			diff := compareStates(&st, again)
			for id := range st.VCPUs {
				if w, g := st.VCPUs[id].Deadline, again.VCPUs[id].Deadline; w != g {
					diff += fmt.Sprintf("vCPU %d: deadline %d, %d", id, w, g)
				}
			}
			if diff != "" {
				t.Errorf("mix %07b, used %v: (-saved +restored)\n%s", mix, used, diff)
			}
		}
	})
}

// freshStates are those of vCPUs that were never used.
func freshStates(t *testing.T, image *Image) []vcpuState {
	t.Helper()
	shell, err := image.pool.take()
	if err != nil {
		t.Fatal(err)
	}
	defer shell.close()
	var st *kvmState
	lead := shell.vcpus[0]
	lead.do(func() { st, err = shell.saveKVM(lead, image.state.msrs) })
	if err != nil {
		t.Fatal(err)
	}
	return st.VCPUs
}
