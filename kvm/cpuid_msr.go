package kvm

import (
	"errors"
	"fmt"
)

// ErrMSRRefused is wrapped by the error about a model-specific register that
// the kernel does not know or a value that it does not accept.
var ErrMSRRefused = errors.New("MSR refused")

// maxCPUIDEntries is as many as the kernel ever has for one vCPU.
const maxCPUIDEntries = 256

// readCPUID reads the leaves of a system or of a vCPU.
func readCPUID(d *descriptor, r request) ([]CPUIDEntry2, error) {
	buf, entries := newArray[CPUIDEntry2](maxCPUIDEntries)
	if _, err := exchange(d, r, &buf[0]); err != nil {
		return nil, err
	}
	n := min(int(uint32(buf[0])), len(entries))
	return append([]CPUIDEntry2(nil), entries[:n]...), nil
}

// transferMSRs gets or sets MSRs. The kernel answers with how many it did and
// calls that success; here a short count is an error, as with an io.Writer.
func transferMSRs(d *descriptor, r request, entries []MSREntry) (int, error) {
	buf, msrs := newArray[MSREntry](len(entries))
	copy(msrs, entries)
	n, err := exchange(d, r, &buf[0])
	if err != nil {
		return 0, err
	}
	if r == reqGetMSRs { // what is set stays the caller's, who may share it
		copy(entries, msrs[:min(n, len(msrs))])
	}
	if n < len(entries) {
		return n, fmt.Errorf("kvm: %s: %w: %#x = %#x, number %d of %d",
			r.name, ErrMSRRefused, entries[n].Index, entries[n].Data, n, len(entries))
	}
	return n, nil
}
