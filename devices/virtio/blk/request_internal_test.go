package blk

import "testing"

// A request is no longer than what a device can wait for, however often a chain
// names the same memory.
func TestLongTransfersAreRefused(t *testing.T) {
	r := &request{dev: &Device{backend: NewMemory(make([]byte, SectorSize))}}
	do := func(Backend, [][]byte, int64) error {
		t.Error("the backend was asked")
		return nil
	}
	if err := r.transfer(maxTransfer+SectorSize, 0, nil, 0, nil, do); err != errInvalid {
		t.Errorf("%v", err)
	}
}
