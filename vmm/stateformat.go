package vmm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/forkvm/forkvm/kvm"
	"github.com/forkvm/forkvm/snapshot"
)

// The sections of a snapshot's state are JSON of the types that a fork hands
// on as values. They change with the format version of the manifest only.
const (
	sectionCPUID   = "cpuid"
	sectionChips   = "chips"
	sectionDevices = "devices"
)

func sectionVCPU(id int) string { return fmt.Sprintf("vcpu/%d", id) }

// What a section may list at most. KVM knows 256 CPUID entries and some
// hundred MSRs.
const (
	maxCPUIDEntries = 256
	maxMSREntries   = 4096
)

// encodeState returns the sections.
func encodeState(st *machineState) (map[string][]byte, error) {
	values := map[string]any{
		sectionCPUID:   st.kvm.CPUID,
		sectionChips:   &st.kvm.Chips,
		sectionDevices: &st.board,
	}
	for i := range st.kvm.VCPUs {
		values[sectionVCPU(i)] = &st.kvm.VCPUs[i]
	}
	sections := make(map[string][]byte, len(values))
	for name, v := range values {
		b, err := json.Marshal(v)
		if err != nil {
			return nil, fmt.Errorf("vmm: encode section %s: %w", name, err)
		}
		sections[name] = b
	}
	return sections, nil
}

// decodeState is the reverse of encodeState for a machine of that many vCPUs
// and disks.
// The bytes may be anybody's: what decodes is a state that KVM and the devices
// accept or refuse, like one that a hostile guest brought itself into.
func decodeState(sections map[string][]byte, vcpus, disks int) (*machineState, error) {
	st := &machineState{kvm: &kvmState{VCPUs: make([]vcpuState, vcpus)}}
	values := map[string]any{
		sectionCPUID:   &st.kvm.CPUID,
		sectionChips:   &st.kvm.Chips,
		sectionDevices: &st.board,
	}
	for i := range st.kvm.VCPUs {
		values[sectionVCPU(i)] = &st.kvm.VCPUs[i]
	}
	for name := range sections {
		if values[name] == nil {
			return nil, badState(name, errors.New("not part of this machine"))
		}
	}
	for name, v := range values {
		b, ok := sections[name]
		if !ok {
			return nil, badState(name, errors.New("missing"))
		}
		if err := decodeSection(b, v); err != nil {
			return nil, badState(name, err)
		}
	}
	if n := len(st.board.Disks); n != disks {
		return nil, badState(sectionDevices, fmt.Errorf("%d disks in place of %d", n, disks))
	}
	return st, checkState(st)
}

func badState(section string, err error) error {
	return fmt.Errorf("vmm: state section %s: %w: %w", section, snapshot.ErrCorrupt, err)
}

// decodeSection takes exactly one value, of known fields only.
func decodeSection(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one value")
	}
	return nil
}

// checkState checks what the rest of the package relies on, and finds the
// list of MSRs.
func checkState(st *machineState) error {
	if n := len(st.kvm.CPUID); n == 0 || n > maxCPUIDEntries {
		return badState(sectionCPUID, fmt.Errorf("%d entries", n))
	}
	var indices []uint32
	for i, v := range st.kvm.VCPUs {
		if len(v.MSRs) > maxMSREntries {
			return badState(sectionVCPU(i), fmt.Errorf("%d MSRs", len(v.MSRs)))
		}
		var own []uint32
		for _, e := range v.MSRs {
			if excludedMSR(e.Index) != "" {
				return badState(sectionVCPU(i), fmt.Errorf("MSR %#x among the others", e.Index))
			}
			own = append(own, e.Index)
		}
		if i > 0 && !slices.Equal(own, indices) {
			return badState(sectionVCPU(i), errors.New("other MSRs than the first vCPU has"))
		}
		indices = own
	}
	st.msrs = &msrList{indices}
	for i, id := range []uint32{st.kvm.Chips.Master.ID, st.kvm.Chips.Slave.ID, st.kvm.Chips.IOAPIC.ID} {
		if want := []uint32{kvm.PICMaster, kvm.PICSlave, kvm.IOAPIC}[i]; id != want {
			return badState(sectionChips, fmt.Errorf("chip %d in place of %d", id, want))
		}
	}
	return nil
}
