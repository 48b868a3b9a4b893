package kvm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// crafted is a vCPU without a kernel behind it, whose shared memory of two
// pages a test fills in.
func crafted() (*VCPU, []byte) {
	page := make([]byte, 8192)
	return newVCPU(-1, page, 0), page
}

func put(page []byte, offset int, v any) {
	if _, err := binary.Encode(page[offset:], binary.LittleEndian, v); err != nil {
		panic(err)
	}
}

// ioExit describes port IO at the offsets of kvm_run.
func ioExit(page []byte, direction, size uint8, port uint16, count uint32, offset uint64) {
	put(page, 32, direction)
	put(page, 33, size)
	put(page, 34, port)
	put(page, 36, count)
	put(page, 40, offset)
}

func TestIODecode(t *testing.T) {
	c, page := crafted()
	copy(page[4096:], "abcdef")
	ioExit(page, 1, 2, 0x3f8, 3, 4096)
	e := c.IO()
	if !e.Out || e.Port != 0x3f8 || e.Size != 2 || e.Count != 3 || string(e.Data) != "abcdef" {
		t.Errorf("IO() = %+v", e)
	}
	e.Data[0] = 'x'
	if page[4096] != 'x' {
		t.Error("Data does not alias the shared page")
	}
	if cap(e.Data) != len(e.Data) {
		t.Error("appending to Data would write on in the shared page")
	}
	ioExit(page, 0, 1, 0x60, 1, 4096)
	if e := c.IO(); e.Out || e.Port != 0x60 || len(e.Data) != 1 {
		t.Errorf("IO() = %+v", e)
	}
}

func TestIOOutOfBounds(t *testing.T) {
	tests := []struct {
		name   string
		size   uint8
		count  uint32
		offset uint64
	}{
		{"behind the mapping", 1, 1, 8192},
		{"across the end", 4, 2, 8188},
		{"offset overflows", 1, 2, 1<<64 - 1},
		{"count is huge", 4, 1<<32 - 1, 4096},
	}
	for _, tt := range tests {
		c, page := crafted()
		ioExit(page, 1, tt.size, 0x80, tt.count, tt.offset)
		if e := c.IO(); len(e.Data) != 0 {
			t.Errorf("%s: got %d bytes", tt.name, len(e.Data))
		}
	}
}

func TestMMIODecode(t *testing.T) {
	c, page := crafted()
	put(page, 32, uint64(0xd000_0010))
	copy(page[40:], "12345678")
	put(page, 52, uint8(1))
	for n := range uint32(9) {
		put(page, 48, n)
		e := c.MMIO()
		if e.Addr != 0xd000_0010 || !e.Write || string(e.Data) != "12345678"[:n] {
			t.Errorf("length %d: MMIO() = %+v", n, e)
		}
	}
	for _, n := range []uint32{9, 1 << 31, 1<<32 - 1} {
		put(page, 48, n)
		if e := c.MMIO(); len(e.Data) != 0 {
			t.Errorf("length %d: got %d bytes", n, len(e.Data))
		}
	}
	put(page, 48, uint32(4))
	put(page, 52, uint8(0))
	e := c.MMIO()
	if e.Write {
		t.Error("a read is taken for a write")
	}
	copy(e.Data, "wxyz")
	if string(page[40:44]) != "wxyz" {
		t.Error("Data does not alias the shared page")
	}
}

func TestInternalErrorDecode(t *testing.T) {
	c, page := crafted()
	put(page, 32, uint32(InternalErrorEmulation))
	put(page, 36, uint32(4))
	put(page, 40, uint64(1)) // flags: instruction bytes are valid
	put(page, 48, uint8(3))
	copy(page[49:], []byte{0x0f, 0xc7, 0x0e, 0xff})
	e := c.InternalError()
	if e.Suberror != InternalErrorEmulation || len(e.Data) != 4 || !bytes.Equal(e.Insn, []byte{0x0f, 0xc7, 0x0e}) {
		t.Errorf("InternalError() = %+v", e)
	}

	put(page, 48, uint8(200)) // more than an instruction can have
	if e := c.InternalError(); len(e.Insn) != 15 {
		t.Errorf("%d instruction bytes", len(e.Insn))
	}
	put(page, 40, uint64(0)) // flags: they are not
	if e := c.InternalError(); e.Insn != nil {
		t.Errorf("instruction bytes %x without the flag", e.Insn)
	}
	put(page, 32, uint32(InternalErrorDeliveryEv))
	put(page, 40, uint64(1))
	put(page, 36, uint32(1<<32-1)) // more data than there is room for
	if e := c.InternalError(); e.Insn != nil || len(e.Data) != 16 || e.Data[0] != 1 {
		t.Errorf("InternalError() = %+v", e)
	}
}

func TestSystemEventDecode(t *testing.T) {
	c, page := crafted()
	put(page, 32, uint32(SystemEventReset))
	put(page, 36, uint32(2))
	put(page, 40, []uint64{7, 8, 9})
	if e := c.SystemEvent(); e.Type != SystemEventReset || !slices.Equal(e.Data, []uint64{7, 8}) {
		t.Errorf("SystemEvent() = %+v", e)
	}
	put(page, 36, uint32(1000))
	if e := c.SystemEvent(); len(e.Data) != 16 {
		t.Errorf("%d words", len(e.Data))
	}
}

func TestOtherExitsDecode(t *testing.T) {
	c, page := crafted()
	put(page, 32, []uint64{0x8000_0021, 3})
	if e := c.FailEntry(); e != (FailEntryExit{HardwareReason: 0x8000_0021, CPU: 3}) {
		t.Errorf("FailEntry() = %+v", e)
	}
	if r := c.HardwareExitReason(); r != 0x8000_0021 {
		t.Errorf("HardwareExitReason() = %#x", r)
	}
	if v := c.IOAPICEOI(); v != 0x21 {
		t.Errorf("IOAPICEOI() = %#x", v)
	}
	put(page, 32, []uint64{8, 0xd0000000, 4096})
	if e := c.MemoryFault(); e != (MemoryFaultExit{Flags: 8, GPA: 0xd0000000, Size: 4096}) {
		t.Errorf("MemoryFault() = %+v", e)
	}
	put(page, 32, []uint64{1, 0x1003, 0x4000, 0x400})
	if e := c.Debug(); e != (DebugExit{Exception: 1, PC: 0x1003, DR6: 0x4000, DR7: 0x400}) {
		t.Errorf("Debug() = %+v", e)
	}
}

func TestRequestWord(t *testing.T) {
	c, page := crafted()
	c.SetImmediateExit(true)
	c.RequestInterruptWindow(true)
	if page[0] != 1 || page[1] != 1 {
		t.Errorf("request_interrupt_window, immediate_exit = %v", page[:2])
	}
	c.SetImmediateExit(false)
	if page[0] != 1 || page[1] != 0 {
		t.Errorf("request_interrupt_window, immediate_exit = %v", page[:2])
	}
	c.RequestInterruptWindow(false)
	if page[0] != 0 {
		t.Error("request_interrupt_window is still set")
	}
}

func TestUninterrupted(t *testing.T) {
	for _, tt := range []struct {
		interruptions int
		then          error
		wantCalls     int
		wantErr       error
	}{
		{0, nil, 1, nil},
		{3, nil, 4, nil},
		{2, unix.ENOMEM, 3, unix.ENOMEM},
		{1000, nil, maxTries, unix.EINTR},
	} {
		calls := 0
		n, err := uninterrupted(func() (int, error) {
			calls++
			if calls <= tt.interruptions {
				return -1, reqCreateVM.failed(unix.EINTR)
			}
			return 7, tt.then
		})
		if calls != tt.wantCalls || !errors.Is(err, tt.wantErr) || (err == nil && n != 7) {
			t.Errorf("%d interruptions: %d, %v after %d calls", tt.interruptions, n, err, calls)
		}
	}
}

func TestStrings(t *testing.T) {
	for _, tt := range []struct{ got, want string }{
		{CapIRQChip.String(), "KVM_CAP_IRQCHIP"},
		{CapX86GuestMode.String(), "KVM_CAP_X86_GUEST_MODE"},
		{Cap(60000).String(), "KVM_CAP_60000"},
		{ExitMMIO.String(), "KVM_EXIT_MMIO"},
		{ExitReason(99).String(), "KVM_EXIT_99"},
		{InternalErrorSimulEx.String(), "KVM_INTERNAL_ERROR_SIMUL_EX"},
		{SystemEventCrash.String(), "KVM_SYSTEM_EVENT_CRASH"},
	} {
		if tt.got != tt.want {
			t.Errorf("got %s, want %s", tt.got, tt.want)
		}
	}
}
