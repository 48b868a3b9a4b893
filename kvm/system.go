package kvm

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// System is /dev/kvm: what this kernel can do, and the maker of VMs.
type System struct {
	fd descriptor
}

// Open opens KVM at path, /dev/kvm if path is empty. The error is an
// *fs.PathError, so errors.Is tells fs.ErrNotExist (no KVM) from
// fs.ErrPermission.
func Open(path string) (*System, error) {
	if path == "" {
		path = "/dev/kvm"
	}
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("kvm: %w", &fs.PathError{Op: "open", Path: path, Err: err})
	}
	return &System{fd: descriptor{fd: fd}}, nil
}

// Close closes the descriptor. VMs made of it live on. Close is idempotent.
func (s *System) Close() error { return s.fd.close() }

// FD is the file descriptor, -1 once closed.
func (s *System) FD() int { return s.fd.number() }

// APIVersion issues KVM_GET_API_VERSION. It is 12 since Linux 2.6.22, and a
// program should refuse any other.
func (s *System) APIVersion() (int, error) {
	return s.fd.call(reqGetAPIVersion, 0)
}

// CheckExtension issues KVM_CHECK_EXTENSION: 0 means that the kernel lacks the
// capability; a positive number has a meaning of its own for some.
func (s *System) CheckExtension(c Cap) (int, error) {
	return s.fd.call(reqCheckExtension, uintptr(c))
}

// VCPUMmapSize issues KVM_GET_VCPU_MMAP_SIZE: the bytes that each vCPU shares
// with its VMM.
func (s *System) VCPUMmapSize() (int, error) {
	return s.fd.call(reqGetVCPUMmapSize, 0)
}

// SupportedCPUID issues KVM_GET_SUPPORTED_CPUID: the CPUID leaves that this
// kernel on this CPU can offer to a guest.
func (s *System) SupportedCPUID() ([]CPUIDEntry2, error) {
	return readCPUID(&s.fd, reqGetSupportedCPUID)
}

// MSRIndexList issues KVM_GET_MSR_INDEX_LIST: the MSRs that [VCPU.MSRs] and
// [VCPU.SetMSRs] know and that belong to a guest's state.
func (s *System) MSRIndexList() ([]uint32, error) {
	return s.msrList(reqGetMSRIndexList)
}

// MSRFeatureIndexList issues KVM_GET_MSR_FEATURE_INDEX_LIST: the MSRs that
// describe features, for [System.FeatureMSRs]. See [CapGetMSRFeatures].
func (s *System) MSRFeatureIndexList() ([]uint32, error) {
	return s.msrList(reqGetMSRFeatureIndexList)
}

// FeatureMSRs issues KVM_GET_MSRS on the system: it fills in the Data of the
// entries by their Index. It returns as [VCPU.MSRs] does.
func (s *System) FeatureMSRs(entries []MSREntry) (int, error) {
	return transferMSRs(&s.fd, reqGetMSRs, entries)
}

// HasDeviceAttr issues KVM_HAS_DEVICE_ATTR on the system; ENXIO says no. See
// [CapSysAttributes].
func (s *System) HasDeviceAttr(group uint32, attr uint64) error {
	return s.fd.hasDeviceAttr(group, attr)
}

// DeviceAttr issues KVM_GET_DEVICE_ATTR on the system, such as group 0,
// [X86XCompGuestSupp]: the XSAVE components that guests may use.
func (s *System) DeviceAttr(group uint32, attr uint64) (uint64, error) {
	return s.fd.deviceAttr(group, attr)
}

// CreateVM issues KVM_CREATE_VM. The kernel may answer EINTR with no signal for
// the caller to see, so this one call is repeated, a bounded number of times.
func (s *System) CreateVM() (*VM, error) {
	size, err := s.VCPUMmapSize()
	if err != nil {
		return nil, err
	}
	fd, err := uninterrupted(func() (int, error) { return s.fd.call(reqCreateVM, 0) })
	if err != nil {
		return nil, err
	}
	return &VM{fd: descriptor{fd: fd, observed: s.fd.observedBy().ofVM(fd)}, mmapSize: size, slots: map[uint32]uint64{}}, nil
}

// maxTries bounds how often uninterrupted calls.
const maxTries = 16

// uninterrupted calls f until it is not interrupted, or too often is.
func uninterrupted(f func() (int, error)) (n int, err error) {
	for range maxTries {
		if n, err = f(); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	return n, err
}

// msrList reads a list of MSRs: once to learn its length, once to have it.
func (s *System) msrList(r request) ([]uint32, error) {
	list := make([]uint32, 1)
	if _, err := exchange(&s.fd, r, &list[0]); err != nil && !errors.Is(err, unix.E2BIG) {
		return nil, err
	}
	list = make([]uint32, 1+list[0])
	list[0] = uint32(len(list) - 1)
	if _, err := exchange(&s.fd, r, &list[0]); err != nil {
		return nil, err
	}
	return list[1:][:list[0]], nil
}
