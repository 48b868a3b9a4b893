// Package pythondemo runs the tests of a small Python project in forks of a
// template.
package pythondemo

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"path"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/forkvm/forkvm/api/template"
	"github.com/forkvm/forkvm/guestagent/client"
	"github.com/forkvm/forkvm/vmm"
)

// Template is the one that the demo forks.
const Template = "python"

// guestDir is where the project is in the guest.
const guestDir = "/srv/project"

// timeout bounds each command in a fork.
const timeout = 5 * time.Minute

//go:embed project
var project embed.FS

// Report is what the demo found. Its JSON form is the output of 'forkvm demo
// python --json'.
type Report struct {
	Template string  `json:"template"`
	BuildS   float64 `json:"build_s"` // how long the template's build took, when it was built
	Forks    []Fork  `json:"forks"`
	// DiskBytesFreshFork is what a fork's disks take that nobody shares, before
	// anything has run in it.
	DiskBytesFreshFork int64 `json:"disk_bytes_fresh_fork"`
}

// Fork is one machine.
type Fork struct {
	ExitCode     int     `json:"exit_code"`      // of pytest
	FirstReplyMS float64 `json:"first_reply_ms"` // from the template's name known to its agent's first answer to an exec
	PythonMS     float64 `json:"python_ms"`      // the first 'python3 -c pass' in it, from that answer to its end
	Stdout       string  `json:"stdout"`         // of pytest
}

// Err tells whether the tests failed in any fork.
func (r *Report) Err() error {
	var errs []error
	for i, f := range r.Forks {
		if f.ExitCode != 0 {
			errs = append(errs, fmt.Errorf("fork %d: pytest ended with exit code %d", i+1, f.ExitCode))
		}
	}
	return errors.Join(errs...)
}

// Run starts n forks of the template, one after the other, and then runs the
// project's tests in all of them at once. The tests of a fork know its number.
func Run(ctx context.Context, image *vmm.Image, info template.Info, n int, progress func(string)) (*Report, error) {
	r := &Report{Template: info.Name, BuildS: round(info.BuildSeconds), Forks: make([]Fork, n)}
	var vms []*vmm.VM
	defer func() { closeAll(vms) }()
	progress(fmt.Sprintf("forking %s %d times", info.Name, n))
	for i := range n {
		vm, err := r.Forks[i].start(ctx, image, info, func(vm *vmm.VM) error {
			if i > 0 {
				return nil
			}
			var err error
			r.DiskBytesFreshFork, err = ownDisk(vm)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("demo: fork %d: %w", i+1, err)
		}
		vms = append(vms, vm)
	}
	progress("running the tests of a project in all of them at once")
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i, vm := range vms {
		wg.Go(func() {
			if err := r.Forks[i].test(ctx, vm, info, i+1); err != nil {
				errs[i] = fmt.Errorf("demo: fork %d: %w", i+1, err)
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return r, nil
}

// start starts a fork, has fresh look at it, and runs Python in it for the
// first time. The time that fresh takes is not counted.
func (f *Fork) start(ctx context.Context, image *vmm.Image, info template.Info, fresh func(*vmm.VM) error) (*vmm.VM, error) {
	begin := time.Now()
	vm, err := image.Start(ctx, vmm.StartOptions{})
	if err != nil {
		return nil, err
	}
	reply := time.Since(begin)
	if err := fresh(vm); err != nil {
		return nil, errors.Join(err, vm.Close())
	}
	cmd := info.Command(ctx, vm, "python3", "-c", "pass")
	cmd.Timeout = timeout
	begin = time.Now()
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, vm.Close())
	}
	started := time.Now()
	f.FirstReplyMS = milliseconds(reply + started.Sub(begin))
	if err := cmd.Wait(); err != nil {
		return nil, errors.Join(fmt.Errorf("python3 -c pass: %w", err), vm.Close())
	}
	f.PythonMS = milliseconds(time.Since(started))
	return vm, nil
}

func ownDisk(vm *vmm.VM) (total int64, err error) {
	disks, err := vm.Disks()
	for _, d := range disks {
		total += d.Own
	}
	return total, err
}

// test copies the project into a fork and runs its tests.
func (f *Fork) test(ctx context.Context, vm *vmm.VM, info template.Info, number int) error {
	guest := vm.Agent().FS().WithContext(ctx)
	if err := guest.MkdirAll(guestDir, 0o755); err != nil {
		return err
	}
	files, err := project.ReadDir("project")
	if err != nil {
		return err
	}
	for _, e := range files {
		text, err := fs.ReadFile(project, path.Join("project", e.Name()))
		if err == nil {
			err = guest.WriteFile(path.Join(guestDir, e.Name()), text, 0o644)
		}
		if err != nil {
			return err
		}
	}
	var stdout bytes.Buffer
	cmd := info.Command(ctx, vm, "python3", "-m", "pytest", "-q", "-p", "no:cacheprovider", ".")
	cmd.ExtraEnv = append(cmd.ExtraEnv[:len(cmd.ExtraEnv):len(cmd.ExtraEnv)], fmt.Sprintf("FORK=%d", number))
	cmd.Dir, cmd.Timeout = guestDir, timeout
	cmd.Stdout, cmd.Stderr = &stdout, &stdout
	err = cmd.Run()
	f.Stdout = strings.ToValidUTF8(stdout.String(), "?")
	if exit, ok := errors.AsType[*client.ExitError](err); ok {
		f.ExitCode = exit.Code
		return nil
	}
	return err
}

func closeAll(vms []*vmm.VM) {
	var wg sync.WaitGroup
	for _, vm := range vms {
		wg.Go(func() { vm.Close() })
	}
	wg.Wait()
}

func milliseconds(d time.Duration) float64 { return round(float64(d) / float64(time.Millisecond)) }

// round leaves three decimals: more would be noise.
func round(x float64) float64 { return math.Round(x*1000) / 1000 }

// Print writes the report for people.
func (r *Report) Print(w io.Writer) error {
	fmt.Fprintf(w, "template %s, built in %.1f s; a fresh fork takes %s of disk\n\n", r.Template, r.BuildS, humanize.IBytes(uint64(r.DiskBytesFreshFork)))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "FORK\tFIRST REPLY\tPYTHON3 -C PASS\tPYTEST")
	for i, f := range r.Forks {
		fmt.Fprintf(t, "%d\t%.1f ms\t%.1f ms\t%s\n", i+1, f.FirstReplyMS, f.PythonMS, lastLine(f.Stdout))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for i, f := range r.Forks {
		if f.ExitCode != 0 {
			fmt.Fprintf(w, "\nfork %d: exit code %d\n%s", i+1, f.ExitCode, f.Stdout)
		}
	}
	return nil
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndexByte(s, '\n')+1:]
}
