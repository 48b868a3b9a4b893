package probe

import (
	"errors"
	"testing"
	"testing/fstest"
	"time"

	"github.com/forkvm/forkvm/kvm"
	"github.com/forkvm/forkvm/kvm/kvmtest"
)

func TestFlavor(t *testing.T) {
	s := kvmtest.OpenOrSkip(t)
	info, err := Flavor(s)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", info)
	// What is known of the modules is what timing must find.
	switch info.Name {
	case AMD, Intel:
		if info.Emulated {
			t.Error("hardware is taken for an emulation")
		}
	case PVM:
		if !info.Emulated {
			t.Error("an emulation is taken for hardware")
		}
	}
	if info.GuestNsPerInsn <= 0 || info.HostNsPerInsn <= 0 || info.ExitNs <= 0 {
		t.Error("a time is not positive")
	}
	if info.CPU == "" || info.CPU == Unknown || info.Kernel == "" || info.Kernel == Unknown {
		t.Error("CPU or kernel is not known")
	}
}

func TestFlavorWithoutGuest(t *testing.T) {
	s, err := kvm.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	info, err := Flavor(s)
	if err == nil {
		t.Error("/dev/null is a KVM")
	}
	if info.Kernel == "" || info.CPU == "" {
		t.Errorf("nothing is told of the machine: %+v", info)
	}
}

func TestHost(t *testing.T) {
	file := func(flag string) *fstest.MapFile {
		return &fstest.MapFile{Data: []byte("processor\t: 0\nmodel name\t: Some CPU: 2 GHz\nflags\t\t: fpu " + flag +
			" hypervisor\n\nprocessor\t: 1\nmodel name\t: Another\nflags\t\t: vmx svm\n")}
	}
	module := &fstest.MapFile{}
	tests := []struct {
		name string
		host fstest.MapFS
		want string
	}{
		{"amd", fstest.MapFS{"proc/cpuinfo": file("svm"), "sys/module/kvm_amd/x": module}, AMD},
		{"intel", fstest.MapFS{"proc/cpuinfo": file("vmx"), "sys/module/kvm_intel/x": module}, Intel},
		{"both built in", fstest.MapFS{"proc/cpuinfo": file("vmx"), "sys/module/kvm_amd/x": module, "sys/module/kvm_intel/x": module}, Intel},
		{"pvm", fstest.MapFS{"proc/cpuinfo": file("sse"), "sys/module/kvm_pvm/x": module}, PVM},
		{"pvm beside one without hardware", fstest.MapFS{"proc/cpuinfo": file("sse"), "sys/module/kvm_intel/x": module, "sys/module/kvm_pvm/x": module}, PVM},
		{"another", fstest.MapFS{"proc/cpuinfo": file("svm"), "sys/module/kvm_new/x": module}, Unknown},
		{"no files", fstest.MapFS{}, Unknown},
	}
	for _, tt := range tests {
		cpu := readCPU(tt.host)
		if got := moduleName(tt.host, cpu); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
	if cpu := readCPU(fstest.MapFS{"proc/cpuinfo": file("svm")}); cpu.model != "Some CPU: 2 GHz" || !cpu.has("hypervisor") || cpu.has("vmx") {
		t.Errorf("CPU %+v", cpu)
	}
	if cpu := readCPU(fstest.MapFS{}); cpu.model != Unknown || cpu.has("hypervisor") {
		t.Errorf("CPU %+v", cpu)
	}
}

// TestNsPerInsn times loops of known speed.
func TestNsPerInsn(t *testing.T) {
	for _, perRound := range []time.Duration{1, 1000} {
		got, err := nsPerInsn(func(n uint32) (time.Duration, error) {
			return time.Duration(n) * perRound, nil
		})
		if want := float64(perRound) / insnsPerRound; err != nil || got != want {
			t.Errorf("%v a round: %v ns an instruction, %v, want %v", perRound, got, err, want)
		}
	}
	// One that no clock sees ends, and does not divide by zero.
	if got, err := nsPerInsn(func(uint32) (time.Duration, error) { return 0, nil }); err != nil || got <= 0 {
		t.Errorf("no time: %v, %v", got, err)
	}
	broken := errors.New("broken")
	if _, err := nsPerInsn(func(uint32) (time.Duration, error) { return 0, broken }); !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
}
