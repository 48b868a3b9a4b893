package vmm

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/kvm/kvmtest"
)

// onOwnThread runs f on a thread that ends with it, whatever f did to it.
func onOwnThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- f()
	}()
	return <-done
}

// makeBusy has KVM_CREATE_VM answer EBUSY on this thread, as it does while
// another hypervisor has the CPU's extensions.
func makeBusy() error {
	const createVM = 0xae01
	const nr, arg1 = 0, 24 // offsets in struct seccomp_data
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: nr},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_IOCTL, Jf: 3},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: arg1},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: createVM, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EBUSY)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&prog)), 0, 0)
}

func TestKVMBusyOrForbidden(t *testing.T) {
	kvmtest.OpenOrSkip(t)
	dir := t.TempDir()
	kernel, secret := filepath.Join(dir, "kernel"), filepath.Join(dir, "kvm")
	for _, path := range []string{kernel, secret} {
		if err := os.WriteFile(path, elfKernel(guestHalt), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	err := onOwnThread(func() error {
		if err := makeBusy(); err != nil {
			return err
		}
		_, err := Start(t.Context(), Config{Kernel: kernel, Bare: true})
		return err
	})
	if !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), "KVM_CREATE_VM") {
		t.Errorf("busy: %v", err)
	}
	err = onOwnThread(func() error {
		const nobody = 65534
		if err := unix.Setfsuid(nobody); err != nil {
			return err
		}
		_, err := Start(t.Context(), Config{Kernel: kernel, KVM: secret, Bare: true})
		return err
	})
	if !errors.Is(err, unix.EACCES) || !strings.Contains(err.Error(), secret) {
		t.Errorf("forbidden: %v", err)
	}
}
