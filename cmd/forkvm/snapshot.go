package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/forkvm/forkvm/api"
)

const snapsHelp = `A snapshot is named by its id, by the beginning of its id, or by its name, if no other
snapshot has the same.
`

func newSnapshot() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "snapshot",
		Aliases: []string{"snap"},
		Short:   "Store sandboxes of a server as they are, to create others from",
		Long: `Store sandboxes of a server as they are, to create others from ('forkvm create
--snapshot'). The server has them: they are the team's, and count towards its limits.

'forkvm store' is for others: those of machines that run and restore start, which are
files of this machine that need no server.`,
	}
	cmd.AddCommand(newSnapshotCreate(), newSnapshotList(), newSnapshotInspect(), newSnapshotRename(), newSnapshotRemove())
	return cmd
}

func newSnapshotCreate() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "create SANDBOX",
		Short: "Store a sandbox as it is now, and print the snapshot's id",
		Long: `Store a sandbox as it is now, and print the snapshot's id. The sandbox goes on running,
or being paused.

` + boxesHelp,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeBoxes(1),
	}
	name := cmd.Flags().String("name", "", "a `name` for people; several may have the same")
	metadata := cmd.Flags().StringArray("metadata", nil, "note `KEY=VALUE` with it")
	asJSON := jsonFlag(cmd)
	return onServer(cmd, func(cmd *cobra.Command, s api.Service, args []string) error {
		m, err := pairs("--metadata", *metadata)
		if err != nil {
			return err
		}
		id, err := boxID(cmd.Context(), s, args[0])
		if err != nil {
			return err
		}
		n, err := s.CreateSnapshot(cmd.Context(), id, api.SnapshotRequest{Name: *name, Metadata: m})
		if err != nil {
			return err
		}
		if *asJSON {
			return printJSON(cmd.OutOrStdout(), n)
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), n.ID)
		return err
	})
}

func newSnapshotList() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List snapshots of the server, newest first",
		Args:  cobra.NoArgs,
	}
	of := cmd.Flags().String("sandbox", "", "only those of this `sandbox`, by its id if it is destroyed")
	prefix := cmd.Flags().String("name", "", "only those whose name begins with this `prefix`")
	_ = cmd.RegisterFlagCompletionFunc("sandbox", completeBoxes(allArgs)) // the flag is there
	asJSON := jsonFlag(cmd)
	return onServer(cmd, func(cmd *cobra.Command, s api.Service, _ []string) error {
		q := api.SnapshotQuery{NamePrefix: *prefix}
		if *of != "" {
			var err error
			if q.SandboxID, err = boxID(cmd.Context(), s, *of); err != nil {
				return err
			}
		}
		snaps, err := allSnaps(cmd.Context(), s, q)
		if err != nil {
			return err
		}
		if *asJSON {
			return printJSON(cmd.OutOrStdout(), snaps)
		}
		return printSnaps(cmd.OutOrStdout(), snaps)
	})
}

func newSnapshotInspect() *cobra.Command {
	cmd := &cobra.Command{
		Use:               "inspect SNAPSHOT",
		Short:             "Show all there is to know of a snapshot of the server",
		Long:              "Show all there is to know of a snapshot of the server.\n\n" + snapsHelp,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeSnaps(1),
	}
	asJSON := jsonFlag(cmd)
	return onServer(cmd, func(cmd *cobra.Command, s api.Service, args []string) error {
		id, err := snapID(cmd.Context(), s, args[0])
		if err != nil {
			return err
		}
		n, err := s.Snapshot(cmd.Context(), id)
		if err != nil {
			return err
		}
		if *asJSON {
			return printJSON(cmd.OutOrStdout(), n)
		}
		return printSnap(cmd.OutOrStdout(), n)
	})
}

func newSnapshotRename() *cobra.Command {
	cmd := &cobra.Command{
		Use:               "rename SNAPSHOT NAME",
		Short:             "Give a snapshot of the server another name",
		Long:              "Give a snapshot of the server another name.\n\n" + snapsHelp,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: completeSnaps(1),
	}
	return onServer(cmd, func(cmd *cobra.Command, s api.Service, args []string) error {
		id, err := snapID(cmd.Context(), s, args[0])
		if err != nil {
			return err
		}
		_, err = s.RenameSnapshot(cmd.Context(), id, args[1])
		return err
	})
}

func newSnapshotRemove() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rm SNAPSHOT...",
		Short: "Delete snapshots of the server, and print their ids",
		Long: `Delete snapshots of the server, and print their ids. Sandboxes made of them go on.

` + snapsHelp,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: completeSnaps(allArgs),
	}
	return onServer(cmd, func(cmd *cobra.Command, s api.Service, args []string) error {
		ids, err := snapIDs(cmd.Context(), s, args...)
		if err != nil {
			return err
		}
		for _, id := range ids {
			if err := s.DeleteSnapshot(cmd.Context(), id); err != nil {
				return fmt.Errorf("%s: %w", id, err)
			}
			fmt.Fprintln(cmd.OutOrStdout(), id)
		}
		return nil
	})
}
