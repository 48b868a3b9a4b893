package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// diskInit is this program in the initramfs of guests that measure their
	// disks: the root file system with fio is the first, the other is written.
	diskInit   = "/bench-disk"
	fioProgram = "/usr/bin/fio"
	fioRoot    = "/newroot"

	fioLine = "disk-result"
)

// fioJobs are run one after the other. The first fills what the others read.
var fioJobs = []fioJob{
	{"write_128k", "write", "128k", 8},
	{"read_128k", "read", "128k", 8},
	{"write_4k", "randwrite", "4k", 16},
	{"read_4k", "randread", "4k", 16},
	{"write_4k_alone", "randwrite", "4k", 1},
	{"read_4k_alone", "randread", "4k", 1},
}

// fioJob is a kind of request and how many of it are under way.
type fioJob struct {
	name, verb, size string
	depth            int
}

// fioFile is what fio is told to do. Each job runs for a second and a half, after half a second
// that does not count; all go past the guest's page cache.
func fioFile() string {
	var b strings.Builder
	b.WriteString("[global]\nfilename=/dev/vdb\nsize=64m\ndirect=1\nioengine=libaio\nthread\ntime_based\nruntime=1500ms\nramp_time=500ms\n" +
		"randrepeat=1\nallow_mounted_write=1\nrandom_generator=lfsr\n")
	for _, j := range fioJobs {
		fmt.Fprintf(&b, "[%s]\nstonewall\nrw=%s\nbs=%s\niodepth=%d\n", j.name, j.verb, j.size, j.depth)
	}
	return b.String()
}

// runDiskInit is the first process of such a guest. It says on the console how
// long a request of each kind took, and has the machine end.
func runDiskInit() {
	if err := measureDisk(); err != nil {
		fmt.Println("disk init:", err)
	}
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
	select {} // it takes a moment
}

func measureDisk() error {
	for _, m := range []struct{ what, where, kind string }{
		{"dev", "/dev", "devtmpfs"}, {"/dev/vda", fioRoot, "erofs"}, {"dev", fioRoot + "/dev", "devtmpfs"},
		{"tmp", fioRoot + "/tmp", "tmpfs"}, {"proc", fioRoot + "/proc", "proc"},
	} {
		if err := os.MkdirAll(m.where, 0o755); err != nil {
			return err
		}
		flags := uintptr(0)
		if m.kind == "erofs" {
			flags = unix.MS_RDONLY
		}
		if err := unix.Mount(m.what, m.where, m.kind, flags, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.where, err)
		}
	}
	if err := os.WriteFile(fioRoot+"/tmp/jobs", []byte(fioFile()), 0o600); err != nil {
		return err
	}
	cmd := exec.Command(fioProgram, "--output-format=json", "/tmp/jobs")
	cmd.SysProcAttr = &unix.SysProcAttr{Chroot: fioRoot}
	cmd.Dir, cmd.Stderr = "/", os.Stdout
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("fio: %w", err)
	}
	return printJobs(out)
}

// fioReport is the part of fio's output that is of interest.
type fioReport struct {
	Jobs []struct {
		Name        string `json:"jobname"`
		Read, Write struct {
			IOPS    float64 `json:"iops"`
			Latency struct {
				Mean float64 `json:"mean"`
			} `json:"clat_ns"`
		}
	}
}

// printJobs says for each job how long a request took: of those under way
// together, their time by their number.
func printJobs(out []byte) error {
	var report fioReport
	if err := json.Unmarshal(out, &report); err != nil {
		return fmt.Errorf("fio's output: %w: %.200q", err, out)
	}
	for i, j := range report.Jobs {
		side := j.Read
		if i < len(fioJobs) && strings.Contains(fioJobs[i].verb, "write") {
			side = j.Write
		}
		if side.IOPS == 0 {
			return fmt.Errorf("fio: nothing was done in %s", j.Name)
		}
		fmt.Println(fioLine, j.Name, time.Duration(float64(time.Second)/side.IOPS).Nanoseconds())
	}
	return nil
}
