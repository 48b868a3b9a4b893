package main

import (
	"context"
	"fmt"
	"math"
	"os"
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

// find finds the snapshots of these names, each once, or fails.
func find(ctx context.Context, store *snapshot.Store, names ...string) ([]snapshot.Info, error) {
	all, err := store.List(ctx)
	if err != nil {
		return nil, err
	}
	var found []snapshot.Info
	seen := map[string]bool{}
	for _, name := range names {
		info, err := resolve(all, name)
		if err != nil {
			return nil, err
		}
		if !seen[info.ID] {
			seen[info.ID] = true
			found = append(found, info)
		}
	}
	return found, nil
}

// resolve finds the snapshot that a name means.
func resolve(all []snapshot.Info, name string) (snapshot.Info, error) {
	if name == "" {
		return snapshot.Info{}, usageError("empty name of a snapshot")
	}
	var labelled, begun []snapshot.Info
	for _, info := range all {
		switch {
		case info.ID == name:
			return info, nil
		case info.Label == name:
			labelled = append(labelled, info)
		case strings.HasPrefix(info.ID, name):
			begun = append(begun, info)
		}
	}
	found := labelled
	if len(found) == 0 {
		found = begun
	}
	switch len(found) {
	case 0:
		return snapshot.Info{}, fmt.Errorf("%w: %q", snapshot.ErrNotFound, name)
	case 1:
		return found[0], nil
	}
	return snapshot.Info{}, &ambiguousError{name, found}
}

// ambiguousError is a name that more than one snapshot has.
type ambiguousError struct {
	name       string
	candidates []snapshot.Info
}

// Error lists the candidates on lines of their own, but not without end.
func (e *ambiguousError) Error() string {
	const most = 10
	var b strings.Builder
	fmt.Fprintf(&b, "%q names %d snapshots", e.name, len(e.candidates))
	for i, c := range e.candidates {
		if i == most {
			fmt.Fprintf(&b, "\n  and %d more", len(e.candidates)-most)
			break
		}
		fmt.Fprintf(&b, "\n  %s  %s", c.ID, about(c))
	}
	return b.String()
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
func listNames(cmd *cobra.Command) (names []cobra.Completion) {
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
	for _, info := range all {
		if named, err := resolve(all, info.Label); err == nil && named.ID == info.ID {
			names = append(names, cobra.CompletionWithDesc(info.Label, "snapshot "+short(info.ID)))
		}
		names = append(names, cobra.CompletionWithDesc(info.ID, about(info)))
	}
	return names
}
