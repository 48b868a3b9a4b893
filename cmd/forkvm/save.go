package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/forkvm/forkvm/snapshot"
	"github.com/forkvm/forkvm/vmm"
)

// saveFlags ask for a snapshot of a machine as its command left it.
type saveFlags struct {
	dir  *string
	save saveValue
	json bool
}

func addSaveFlags(cmd *cobra.Command) *saveFlags {
	s := &saveFlags{dir: addStoreFlag(cmd)}
	f := cmd.Flags()
	f.Var(&s.save, "save", "store a snapshot after the command, and print its id on standard error; --save=LABEL labels it")
	f.Lookup("save").NoOptDefVal = unlabelled
	f.BoolVar(&s.json, "json", false, "print what --save stored as a line of JSON on standard error")
	return s
}

// open opens the store if a snapshot is wanted, and else returns nil.
func (s *saveFlags) open() (*snapshot.Store, error) {
	if !s.save.wanted {
		if s.json {
			return nil, usageError("--json is of use with --save only")
		}
		return nil, nil
	}
	if err := checkLabel(s.save.label); err != nil {
		return nil, err
	}
	return openStore(*s.dir)
}

// snapshot stores the machine and says so where a command's output is not.
func (s *saveFlags) snapshot(ctx context.Context, vm *vmm.VM, store *snapshot.Store) error {
	info, err := saveMachine(ctx, vm, store, s.save.label)
	if err != nil {
		return err
	}
	if s.json {
		return json.NewEncoder(os.Stderr).Encode(summarize(info))
	}
	_, err = fmt.Fprintln(os.Stderr, info.ID)
	return err
}

func saveMachine(ctx context.Context, vm *vmm.VM, store *snapshot.Store, label string) (snapshot.Info, error) {
	report, end := showProgress("saving")
	defer end()
	return vm.Snapshot(ctx, store, vmm.SnapshotOptions{Label: label, Progress: report})
}

// saveValue is --save or --save=LABEL on the command line.
type saveValue struct {
	wanted bool
	label  string
}

// unlabelled is what --save alone stands for: the flag looks like one that is
// on or off.
const unlabelled = "true"

func (s *saveValue) Type() string   { return "bool" }
func (s *saveValue) String() string { return s.label }

func (s *saveValue) Set(label string) error {
	*s = saveValue{wanted: label != "false"}
	if s.wanted && label != unlabelled {
		s.label = label
	}
	return nil
}

// checkLabel refuses what a snapshot cannot be labelled with, before there is
// one.
func checkLabel(label string) error {
	const longest = 200
	if len(label) > longest || !utf8.ValidString(label) || strings.ContainsFunc(label, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return usageError("a label is at most %d bytes of printable characters", longest)
	}
	return nil
}
