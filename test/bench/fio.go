package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/forkvm/forkvm/initrd"
	"github.com/forkvm/forkvm/test/bench/result"
	"github.com/forkvm/forkvm/vmm"
)

const (
	forkvmDisk = "forkvm-disk"
	qemuDisk   = "qemu-disk"

	// fioDiskSize is the size of the disk that is written.
	fioDiskSize = 128 << 20
)

// fio measures the disks of guests that boot the same kernel and initramfs, have the
// same image as their first disk, and as their second a sparse file in the
// same folder.
type fio struct {
	q   *qemu
	dir string

	once  sync.Once
	err   error
	image string // the root file system; built if it is not given
	init  string // path of the initramfs
}

func (f *fio) prepare(ctx context.Context) error {
	f.once.Do(func() { f.err = f.build(ctx) })
	return f.err
}

func (f *fio) build(ctx context.Context) error {
	if f.image == "" {
		var err error
		if f.image, err = fioImageFor(ctx); err != nil {
			return err
		}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	archive, err := initrd.Pack(ctx, initrd.Config{
		Agent: self, HostFiles: []initrd.HostFile{{Host: self, Guest: diskInit, Mode: 0o755}},
	})
	if err != nil {
		return err
	}
	f.init = filepath.Join(f.dir, "fio.cpio")
	return os.WriteFile(f.init, archive, 0o600)
}

// ours measures forkvm's.
func (f *fio) ours(ctx context.Context, r *result.Recorder) error {
	if err := f.prepare(ctx); err != nil {
		return err
	}
	archive, err := os.ReadFile(f.init)
	if err != nil {
		return err
	}
	in, out := io.Pipe()
	vm, err := vmm.Start(ctx, vmm.Config{
		Kernel: f.q.g.kernel, Initramfs: archive, Memory: f.q.g.memory, Bare: true, Console: out,
		Cmdline: "rdinit=" + diskInit + " " + f.q.g.cmdline, Scratch: f.dir,
		Disks: []vmm.Disk{{Name: "root", Image: f.image, ReadOnly: true}, {Name: "data", Size: fioDiskSize}},
	})
	if err != nil {
		return err
	}
	defer vm.Close()
	go func() {
		err := vm.Wait(ctx)
		if errors.Is(err, vmm.ErrReset) {
			err = io.EOF
		}
		out.CloseWithError(err)
	}()
	return record(in, r, forkvmDisk)
}

// theirs measures QEMU's.
func (f *fio) theirs(ctx context.Context, r *result.Recorder) error {
	if err := f.prepare(ctx); err != nil {
		return err
	}
	data := filepath.Join(f.dir, "data.raw")
	if err := os.WriteFile(data, nil, 0o600); err != nil {
		return err
	}
	defer os.Remove(data)
	if err := os.Truncate(data, fioDiskSize); err != nil {
		return err
	}
	cmd := f.q.command(
		"-drive", "if=none,id=root,format=raw,readonly=on,file="+f.image, "-device", "virtio-blk-device,drive=root",
		"-drive", "if=none,id=data,format=raw,discard=unmap,file="+data, "-device", "virtio-blk-device,drive=data",
	)
	at := slices.Index(cmd.Args, "-initrd")
	cmd.Args[at+1] = f.init
	at = slices.Index(cmd.Args, "-append")
	cmd.Args[at+1] = baseCmdline + " rdinit=" + diskInit + " " + f.q.g.cmdline
	return runAndRecord(ctx, cmd, r)
}

func runAndRecord(ctx context.Context, cmd *exec.Cmd, r *result.Recorder) error {
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	var said strings.Builder
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer stop()
	err = record(out, r, qemuDisk)
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // it was killed, or its guest has ended it
	if err != nil {
		return fmt.Errorf("%w\n  %s", err, said.String())
	}
	return nil
}

// record reads what the guest says of each job.
func record(out io.Reader, r *result.Recorder, scenario string) error {
	seen := 0
	var tail []string
	for lines := bufio.NewScanner(out); lines.Scan(); {
		tail = append(tail, lines.Text())
		tail = tail[max(0, len(tail)-keepLines):]
		var name string
		var ns int64
		_, line, ok := strings.Cut(lines.Text(), fioLine+" ")
		if _, err := fmt.Sscan(line, &name, &ns); !ok || err != nil {
			continue
		}
		r.Time(result.Key{Scenario: scenario, Metric: name, N: 1}, time.Duration(ns), 0)
		if seen++; seen == len(fioJobs) {
			return nil
		}
	}
	return fmt.Errorf("%d results of %d; last output:\n  %s", seen, len(fioJobs), strings.Join(tail, "\n  "))
}
