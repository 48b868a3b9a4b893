package kvm_test

import (
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/kvm"
	"github.com/forkvm/forkvm/kvm/kvmtest"
)

func TestOpenErrors(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "kvm")
	_, err := kvm.Open(missing)
	if !errors.Is(err, fs.ErrNotExist) || !errors.Is(err, unix.ENOENT) {
		t.Errorf("missing: %v", err)
	}
	var pe *fs.PathError
	if !errors.As(err, &pe) || pe.Path != missing {
		t.Errorf("missing: %v does not tell the path", err)
	}
	// A file of sysfs that has no write method refuses even root.
	_, err = kvm.Open("/sys/devices/system/cpu/possible")
	if !errors.Is(err, fs.ErrPermission) {
		t.Errorf("not for us: %v", err)
	}
}

func TestNotKVM(t *testing.T) {
	s, err := kvm.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.APIVersion(); !errors.Is(err, unix.ENOTTY) {
		t.Errorf("APIVersion of /dev/null: %v", err)
	}
	if _, err := s.CreateVM(); !errors.Is(err, unix.ENOTTY) {
		t.Errorf("CreateVM of /dev/null: %v", err)
	}
}

func TestSystem(t *testing.T) {
	s := kvmtest.OpenOrSkip(t)
	if v, err := s.APIVersion(); v != 12 || err != nil {
		t.Errorf("APIVersion() = %d, %v", v, err)
	}
	if n, err := s.CheckExtension(kvm.CapUserMemory); n != 1 || err != nil {
		t.Errorf("CheckExtension(CapUserMemory) = %d, %v", n, err)
	}
	if n, err := s.CheckExtension(kvm.Cap(60000)); n != 0 || err != nil {
		t.Errorf("CheckExtension of an unknown one = %d, %v", n, err)
	}
	if n, err := s.VCPUMmapSize(); n < 2*4096 || err != nil {
		t.Errorf("VCPUMmapSize() = %d, %v", n, err)
	}
}

func TestSupportedCPUID(t *testing.T) {
	s := kvmtest.OpenOrSkip(t)
	leaves, err := s.SupportedCPUID()
	if err != nil {
		t.Fatal(err)
	}
	for _, function := range []uint32{0, 1, 0x40000000, 0x40000001, 0x80000000} {
		if !slices.ContainsFunc(leaves, func(e kvm.CPUIDEntry2) bool { return e.Function == function }) {
			t.Errorf("no leaf %#x", function)
		}
	}
	for _, e := range leaves {
		// "KVMKVMKVM\0\0\0" in EBX, ECX, EDX
		if e.Function == 0x40000000 && (e.EBX != 0x4b4d564b || e.ECX != 0x564b4d56 || e.EDX != 0x4d) {
			t.Errorf("leaf 0x40000000 is not KVM's signature: %+v", e)
		}
	}
}

func TestMSRIndexLists(t *testing.T) {
	s := kvmtest.OpenOrSkip(t)
	list, err := s.MSRIndexList()
	if err != nil {
		t.Fatal(err)
	}
	const tsc = 0x10
	if !slices.Contains(list, tsc) {
		t.Errorf("no TSC in %#x", list)
	}
	slices.Sort(list)
	if n := len(slices.Compact(slices.Clone(list))); n != len(list) || list[0] == 0 {
		t.Errorf("%d different MSRs of %d, the first %#x", n, len(list), list[0])
	}
}

func TestFeatureMSRs(t *testing.T) {
	s := kvmtest.OpenOrSkip(t)
	kvmtest.NeedCap(t, s, kvm.CapGetMSRFeatures)
	list, err := s.MSRFeatureIndexList()
	if err != nil || len(list) == 0 {
		t.Fatalf("MSRFeatureIndexList() = %#x, %v", list, err)
	}
	entries := make([]kvm.MSREntry, len(list))
	for i, index := range list {
		entries[i].Index = index
	}
	if n, err := s.FeatureMSRs(entries); n != len(list) || err != nil {
		t.Errorf("FeatureMSRs() = %d of %d, %v", n, len(list), err)
	}
	if !slices.ContainsFunc(entries, func(e kvm.MSREntry) bool { return e.Data != 0 }) {
		t.Error("all feature MSRs are 0")
	}
	entries = []kvm.MSREntry{{Index: list[0]}, {Index: 0xdead}}
	if n, err := s.FeatureMSRs(entries); n != 1 || !errors.Is(err, kvm.ErrMSRRefused) {
		t.Errorf("FeatureMSRs with an unknown one = %d, %v", n, err)
	}
}

func TestSystemDeviceAttr(t *testing.T) {
	s := kvmtest.OpenOrSkip(t)
	kvmtest.NeedCap(t, s, kvm.CapSysAttributes)
	if err := s.HasDeviceAttr(0, kvm.X86XCompGuestSupp); err != nil {
		t.Fatal(err)
	}
	v, err := s.DeviceAttr(0, kvm.X86XCompGuestSupp)
	if err != nil || v&3 != 3 {
		t.Errorf("XSAVE components = %#x, %v; want x87 and SSE at least", v, err)
	}
	if err := s.HasDeviceAttr(0, 999); !errors.Is(err, unix.ENXIO) {
		t.Errorf("HasDeviceAttr of an unknown one: %v", err)
	}
}

// TestDescriptors holds every descriptor to O_CLOEXEC, and Close to what it
// promises.
func TestDescriptors(t *testing.T) {
	s, err := kvm.Open("")
	if err != nil {
		kvmtest.Skip(t, err.Error())
	}
	vm, err := s.CreateVM()
	if err != nil {
		t.Fatal(err)
	}
	c, err := vm.CreateVCPU(0)
	if err != nil {
		t.Fatal(err)
	}
	type descriptor interface {
		FD() int
		Close() error
	}
	for name, d := range map[string]descriptor{"system": s, "VM": vm, "vCPU": c} {
		flags, err := unix.FcntlInt(uintptr(d.FD()), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("%s: descriptor flags %#x, %v", name, flags, err)
		}
		for range 2 {
			if err := d.Close(); err != nil {
				t.Errorf("%s: close: %v", name, err)
			}
		}
		if d.FD() != -1 {
			t.Errorf("%s: FD() = %d after Close", name, d.FD())
		}
	}
	if _, err := s.APIVersion(); !errors.Is(err, unix.EBADF) {
		t.Errorf("APIVersion after Close: %v", err)
	}
	if err := vm.IRQLine(1, 1); !errors.Is(err, unix.EBADF) {
		t.Errorf("IRQLine after Close: %v", err)
	}
	if err := c.Run(); !errors.Is(err, unix.EBADF) {
		t.Errorf("Run after Close: %v", err)
	}
	c.SetImmediateExit(true)
	if r := c.ExitReason(); r != kvm.ExitUnknown {
		t.Errorf("ExitReason after Close: %v", r)
	}
}

func TestErrorText(t *testing.T) {
	s := kvmtest.OpenOrSkip(t)
	vm, err := s.CreateVM()
	if err != nil {
		t.Fatal(err)
	}
	defer vm.Close()
	err = vm.SetUserMemoryRegion(kvm.UserspaceMemoryRegion{MemorySize: 123})
	if !errors.Is(err, unix.EINVAL) || err.Error() != "kvm: KVM_SET_USER_MEMORY_REGION: invalid argument" {
		t.Errorf("error %q", err)
	}
}
