package main

import (
	"context"
	"math"
	"os"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/forkvm/forkvm/snapshot"
)

// addStoreFlag adds the flag that names the directory of snapshots.
func addStoreFlag(cmd *cobra.Command) *string {
	return cmd.Flags().String("store", os.Getenv("FORKVM_STORE"),
		"`directory` of snapshots ($FORKVM_STORE; default forkvm/snapshots in $XDG_STATE_HOME or ~/.local/state)")
}

// openStore opens the store in dir, or the user's if that is empty.
func openStore(dir string) (*snapshot.Store, error) {
	if dir == "" {
		var err error
		if dir, err = snapshot.DefaultDir(); err != nil {
			return nil, err
		}
	}
	return snapshot.Open(dir)
}

// onStore makes do what cmd does, on the store that --store names.
func onStore(cmd *cobra.Command, do func(cmd *cobra.Command, store *snapshot.Store, args []string) error) *cobra.Command {
	dir := addStoreFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		store, err := openStore(*dir)
		if err != nil {
			return err
		}
		defer store.Close()
		return do(cmd, store, args)
	}
	return cmd
}

// namesHelp says how commands take snapshots.
const namesHelp = `A snapshot is named by its id, by the beginning of its id, or by its label, if no
other snapshot has the same. A label that is also the beginning of an id is a label.
`

func storeRecords(all []snapshot.Info) (out []record) {
	for _, info := range all {
		out = append(out, record{storeKind, info.ID, info.Label, about(info)})
	}
	return out
}

// find finds the snapshots of these names, each once, or fails.
func find(ctx context.Context, store *snapshot.Store, names ...string) (found []snapshot.Info, err error) {
	all, err := store.List(ctx)
	if err != nil {
		return nil, err
	}
	records := storeRecords(all)
	for _, name := range names {
		id, err := pick(storeKind, records, name)
		if err != nil {
			return nil, err
		}
		is := func(info snapshot.Info) bool { return info.ID == id }
		if !slices.ContainsFunc(found, is) {
			found = append(found, all[slices.IndexFunc(all, is)])
		}
	}
	return found, nil
}

// about tells snapshots apart in a few words.
func about(info snapshot.Info) string {
	if info.Err != nil {
		return "unreadable"
	}
	return strings.TrimSpace(info.Label + " (" + humanize.Time(info.Created) + ")")
}

// allArgs is a number of arguments that has no limit.
const allArgs = math.MaxInt

// completeNames completes the first max arguments as names of snapshots; files
// tells that names of files follow.
func completeNames(max int, files bool) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		switch {
		case len(args) < max:
			return listNames(cmd), cobra.ShellCompDirectiveNoFileComp
		case files:
			return nil, cobra.ShellCompDirectiveDefault
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}

// listNames are the ids and unique labels of all snapshots.
func listNames(cmd *cobra.Command) []cobra.Completion {
	dir := cmd.Flag("store").Value.String()
	if dir == "" {
		dir, _ = snapshot.DefaultDir()
	}
	if _, err := os.Stat(dir); err != nil {
		return nil // opening the store would make it
	}
	store, err := snapshot.Open(dir)
	if err != nil {
		return nil
	}
	defer store.Close()
	all, _ := store.List(cmd.Context()) // there is nobody to tell of an error
	return completions(storeRecords(all))
}
