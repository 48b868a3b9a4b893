package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/forkvm/forkvm/initrd"
	"github.com/forkvm/forkvm/snapshot"
)

func newStore(sig *signals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "store",
		Short: "Store machines in files, and keep order among what is stored",
		Long: `Store machines in files of this machine that need no server, and keep order among what
is stored. 'forkvm restore' runs them. What snapshots have in common is stored once. Any
number of programs may use a store at once; deleting a snapshot harms no machine made
from it.

'forkvm snapshot' is for others: those of sandboxes, which a server keeps.

` + namesHelp,
	}
	cmd.AddCommand(newStoreCreate(sig), newStoreList(), newStoreInspect(), newStoreRename(),
		newStoreRemove(), newStoreVerify(), newStoreExport(), newStoreImport(), newStoreGC())
	return cmd
}

// createFlags say which machine to store.
type createFlags struct {
	machine *machineFlags
	command *commandFlags
	files   *[]string
	label   string
}

func newStoreCreate(sig *signals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "create [flags] [-- COMMAND ARGS...]",
		Short: "Boot a machine, run a command in it, store it, and print the snapshot's id",
		Long: `Boot a machine, run a command in it if one is given, store the machine as the
command left it, and print the snapshot's id. What the command prints is progress and
goes to standard error. If it fails, nothing is stored and its exit code is passed on.

` + exitCodesHelp,
		Example: `  forkvm store create --label base
  id=$(forkvm store create --file ./prog:/bin/prog -- prog --warm-up)
  forkvm store create -it --label mine -- sh`,
		Args: cobra.ArbitraryArgs,
	}
	c := &createFlags{machine: addMachineFlags(cmd), command: addCommandFlags(cmd), files: addFileFlag(cmd)}
	cmd.Flags().StringVar(&c.label, "label", "", "`name` for the snapshot; it need not be unique")
	cmd.Flags().SetInterspersed(false) // flags after COMMAND are the command's
	asJSON := jsonFlag(cmd)
	return onStore(cmd, func(cmd *cobra.Command, store *snapshot.Store, args []string) error {
		info, err := c.create(cmd, store, sig, args)
		if err != nil {
			return err
		}
		return printStored(cmd.OutOrStdout(), info, *asJSON)
	})
}

func (c *createFlags) create(cmd *cobra.Command, store *snapshot.Store, sig *signals, args []string) (snapshot.Info, error) {
	if err := checkLabel(c.label); err != nil {
		return snapshot.Info{}, err
	}
	if err := c.command.check(); err != nil {
		return snapshot.Info{}, err
	}
	files, err := parseFiles(*c.files)
	if err != nil {
		return snapshot.Info{}, err
	}
	ctx := cmd.Context()
	vm, err := c.machine.boot(ctx, os.Stderr, initrd.Config{HostFiles: files})
	if err != nil {
		return snapshot.Info{}, err
	}
	defer vm.Close()
	if len(args) > 0 {
		if err := c.command.run(ctx, vm, sig, os.Stderr, args); err != nil {
			return snapshot.Info{}, commandError(args[0], err)
		}
	}
	return saveMachine(ctx, vm, store, c.label)
}

func newStoreList() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List snapshots, the oldest first",
		Long: `List snapshots, the oldest first: the size of memory, what is stored of it, and what
of that no other snapshot shares, which deleting this one would free. One that cannot
be read is listed with the reason.

` + summaryHelp,
		Args: cobra.NoArgs,
	}
	asJSON := jsonFlag(cmd)
	return onStore(cmd, func(cmd *cobra.Command, store *snapshot.Store, _ []string) error {
		infos, err := store.List(cmd.Context())
		if err != nil {
			return err
		}
		if *asJSON {
			list := []summary{} // a list of none is [] in JSON
			for _, info := range infos {
				list = append(list, summarize(info))
			}
			return printJSON(cmd.OutOrStdout(), list)
		}
		return printList(cmd.OutOrStdout(), infos)
	})
}

func newStoreInspect() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "inspect SNAPSHOT",
		Short: "Show what is known of a snapshot, and what it needs of a machine",
		Long: `Show what is known of a snapshot, and what it needs of a machine to run there. With
--json this is one object which has the fields of 'store ls' and more: config, needs,
layers, disks, sections.

` + namesHelp,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeNames(1, false),
	}
	asJSON := jsonFlag(cmd)
	return onStore(cmd, func(cmd *cobra.Command, store *snapshot.Store, args []string) error {
		found, err := find(cmd.Context(), store, args...)
		if err != nil {
			return err
		}
		info, err := store.Stat(cmd.Context(), found[0].ID)
		if err != nil {
			return err
		}
		if *asJSON {
			return printJSON(cmd.OutOrStdout(), info)
		}
		return printDetails(cmd.OutOrStdout(), info)
	})
}

func newStoreRename() *cobra.Command {
	cmd := &cobra.Command{
		Use:               "rename SNAPSHOT LABEL",
		Short:             "Give a snapshot another label, or none if LABEL is empty",
		Long:              "Give a snapshot another label, or none if LABEL is empty. Its id stays.\n\n" + namesHelp,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: completeNames(1, false),
	}
	return onStore(cmd, func(cmd *cobra.Command, store *snapshot.Store, args []string) error {
		if err := checkLabel(args[1]); err != nil {
			return err
		}
		found, err := find(cmd.Context(), store, args[0])
		if err != nil {
			return err
		}
		return store.Relabel(cmd.Context(), found[0].ID, args[1])
	})
}

func newStoreRemove() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rm SNAPSHOT...",
		Short: "Delete snapshots, readable or not, and print their ids",
		Long: `Delete snapshots, readable or not, and print their ids. If any of the names is wrong,
none is deleted. Machines that run from a snapshot go on, and snapshots that descend
from it stay.

` + namesHelp,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: completeNames(allArgs, false),
	}
	return onStore(cmd, func(cmd *cobra.Command, store *snapshot.Store, args []string) error {
		found, err := find(cmd.Context(), store, args...)
		if err != nil {
			return err
		}
		for _, info := range found {
			if err := store.Delete(cmd.Context(), info.ID); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), info.ID)
		}
		return nil
	})
}

func newStoreGC() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "gc",
		Short: "Free the space of what no snapshot needs",
		Long: `Free the space of what no snapshot needs: what was deleted while somebody used the
store, and what was left by programs that were killed. It waits until nobody stores or
loads a snapshot. With --json it prints an object of layers, a count, and bytes.`,
		Args: cobra.NoArgs,
	}
	asJSON := jsonFlag(cmd)
	return onStore(cmd, func(cmd *cobra.Command, store *snapshot.Store, _ []string) error {
		got, err := store.GC(cmd.Context())
		if err != nil {
			return err
		}
		if *asJSON {
			return printJSON(cmd.OutOrStdout(), got)
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%d layers removed, %s freed\n", got.Layers, size(got.Bytes))
		return err
	})
}
