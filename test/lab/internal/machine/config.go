package machine

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// AgentPort is the TCP port inside the machine on which its agent answers.
const AgentPort = 1024

// Serial numbers by which the kernel inside recognises its disks (virtio-blk VIRTIO_BLK_T_GET_ID,
// at most 20 bytes).
const (
	RootSerial = "root"
	// diskSerial is followed by the disk's index in Config.Disks.
	diskSerial = "disk"
)

// DiskSerial is the serial number of the disk at an index of Config.Disks.
func DiskSerial(index int) string { return diskSerial + strconv.Itoa(index) }

// Config says what machine to start.
type Config struct {
	// Dir is the folder for the machine's files. It must exist, and belongs to this one machine.
	Dir string
	// QEMU is the path of qemu-system-x86_64.
	QEMU string
	// Kernel and Initrd are what it boots.
	Kernel, Initrd string
	// Release names the kernel for people.
	Release string
	// Root is a raw disk image for the root file system. What the machine writes to it is
	// forgotten when the machine ends.
	Root string
	// Disks are further raw disk images.
	Disks []Disk
	// MemoryMiB is the size of its RAM in MiB.
	MemoryMiB int
	// Detached lets the machine outlive this process. Otherwise it is killed when this process
	// ends, however it ends.
	Detached bool
}

// A Disk is a raw disk image that the machine sees as a virtio block device.
type Disk struct {
	// Path is the image file on the host.
	Path string
	// Volatile forgets what the machine writes to it.
	Volatile bool
}

// durable tells whether the machine has a disk that keeps what is written to it.
func (c *Config) durable() bool {
	return slices.ContainsFunc(c.Disks, func(d Disk) bool { return !d.Volatile })
}

func (c *Config) validate() error {
	switch {
	case c.Dir == "":
		return errors.New("machine: no folder for its files")
	case c.QEMU == "" || c.Kernel == "" || c.Initrd == "" || c.Root == "":
		return errors.New("machine: QEMU, kernel, initramfs and root image are all needed")
	case c.MemoryMiB < 512:
		return fmt.Errorf("machine: %d MiB of memory: the least is 512", c.MemoryMiB)
	}
	return nil
}

// cmdline is the command line of the kernel inside. Three of its words keep it from stopping for
// ever under single-threaded emulation, where one-shot timer interrupts get lost: it polls when
// idle, keeps its periodic tick, and does without high-resolution timers. Without noxsaves a stock
// kernel complains about the emulated size of the xstate area.
const cmdline = "console=ttyS0 quiet panic=-1 mitigations=off idle=poll nohz=off highres=off no_timer_check noxsaves"

// arguments of QEMU. One CPU and one emulation thread: with more, the emulation crashes kernels
// while they patch their own code. File names are relative to Dir, QEMU's working directory.
func (c *Config) arguments(agentPort int) []string {
	args := []string{
		"-accel", "tcg,thread=single", "-cpu", "EPYC-Rome,+svm,+npt", "-smp", "1",
		"-M", "q35", "-m", strconv.Itoa(c.MemoryMiB),
		"-display", "none", "-no-reboot", "-nodefaults", "-no-user-config",
		"-kernel", c.Kernel, "-initrd", c.Initrd, "-append", cmdline,
		"-chardev", "file,id=console,path=" + consoleFile, "-serial", "chardev:console",
		"-chardev", "file,id=heartbeat,path=" + heartbeatFile, "-serial", "chardev:heartbeat",
		"-qmp", "unix:" + monitorFile + ",server=on,wait=off",
		"-netdev", fmt.Sprintf("user,id=%s,hostfwd=tcp:127.0.0.1:%d-:%d", netdev, agentPort, AgentPort),
		"-device", "virtio-net-pci,romfile=,netdev=" + netdev,
		"-device", "virtio-rng-pci",
	}
	args = append(args, driveArguments(c.Root, RootSerial, true)...)
	for i, d := range c.Disks {
		args = append(args, driveArguments(d.Path, DiskSerial(i), d.Volatile)...)
	}
	return args
}

func driveArguments(path, serial string, volatile bool) []string {
	snapshot := "off"
	if volatile {
		snapshot = "on"
	}
	// QEMU takes a doubled comma for a comma in a file name.
	path = strings.ReplaceAll(path, ",", ",,")
	return []string{
		"-drive", fmt.Sprintf("file=%s,format=raw,if=none,id=%s,snapshot=%s,cache=unsafe", path, serial, snapshot),
		"-device", fmt.Sprintf("virtio-blk-pci,drive=%s,serial=%s", serial, serial),
	}
}
