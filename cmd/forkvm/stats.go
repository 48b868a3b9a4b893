package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkvm/forkvm/api"
)

// watchEvery is how often stats are taken anew.
const watchEvery = time.Second

// boxStats is what a sandbox takes, and what it comes from.
type boxStats struct {
	api.Stats
	name, from string
}

func newStats() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "stats [SANDBOX]...",
		Short: "Show what sandboxes take, and how much of it they share",
		Long: `Show what sandboxes take, all unless some are named: of memory and disk, what is a
sandbox's own and what it may share, with what it was made from and others made from that.

With --json it prints a list of objects, and with --watch one on each line, again and again.

` + boxesHelp,
		ValidArgsFunction: completeBoxes(allArgs),
	}
	watch := cmd.Flags().Bool("watch", false, "show it again every second until interrupted")
	asJSON := jsonFlag(cmd)
	return onServer(cmd, func(cmd *cobra.Command, s api.Service, args []string) error {
		ids, err := boxIDs(cmd.Context(), s, args...)
		if err != nil {
			return err
		}
		tick := time.NewTicker(watchEvery)
		defer tick.Stop()
		for {
			all, err := takeStats(cmd.Context(), s, ids)
			if err != nil {
				return err
			}
			if err := showStats(cmd.OutOrStdout(), all, *asJSON, *watch); err != nil || !*watch {
				return err
			}
			select {
			case <-tick.C:
			case <-cmd.Context().Done():
				return cmd.Context().Err()
			}
		}
	})
}

// takeStats leaves out those that went meanwhile, unless they are named.
func takeStats(ctx context.Context, s api.Service, ids []string) ([]boxStats, error) {
	boxes, err := allBoxes(ctx, s, api.SandboxQuery{})
	if err != nil {
		return nil, err
	}
	byID := map[string]*api.Sandbox{}
	for i := range boxes {
		byID[boxes[i].ID] = &boxes[i]
	}
	named := len(ids) > 0
	if !named {
		for _, b := range boxes {
			ids = append(ids, b.ID)
		}
	}
	var all []boxStats
	for _, id := range ids {
		st, err := s.Stats(ctx, id)
		if !named && errors.Is(err, api.NotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		one := boxStats{Stats: *st}
		if b := byID[id]; b != nil {
			one.name, one.from = b.Name, origin(b)
		}
		all = append(all, one)
	}
	return all, nil
}

// clearScreen moves to the top of a terminal and empties it.
const clearScreen = "\x1b[H\x1b[2J"

func showStats(w io.Writer, all []boxStats, asJSON, again bool) error {
	if asJSON {
		list := []api.Stats{}
		for _, s := range all {
			list = append(list, s.Stats)
		}
		if again {
			return json.NewEncoder(w).Encode(list)
		}
		return printJSON(w, list)
	}
	var b bytes.Buffer
	if again {
		b.WriteString(clearScreen)
	}
	if err := printBoxStats(&b, all); err != nil {
		return err
	}
	_, err := w.Write(b.Bytes())
	return err
}

func printBoxStats(w io.Writer, all []boxStats) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "ID\tNAME\tFROM\tSTATE\tMEMORY: OWN\tSHARED\tDISK: OWN\tSHARED\tSTORED\tCOMMANDS")
	var sum api.Stats
	for _, s := range all {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\n", shortID(s.SandboxID), plain(s.name), s.from, s.State,
			size(s.MemoryPrivateBytes), size(s.MemorySharedBytes), size(s.DiskPrivateBytes), size(s.DiskSharedBytes), size(s.StoredBytes), s.Processes)
		sum.MemoryPrivateBytes += s.MemoryPrivateBytes
		sum.DiskPrivateBytes += s.DiskPrivateBytes
		sum.StoredBytes += s.StoredBytes
		sum.Processes += s.Processes
	}
	if len(all) > 1 { // what is shared has no sum: it would be counted more than once
		fmt.Fprintf(t, "together\t\t\t\t%s\t\t%s\t\t%s\t%d\n", size(sum.MemoryPrivateBytes), size(sum.DiskPrivateBytes), size(sum.StoredBytes), sum.Processes)
	}
	return t.Flush()
}
