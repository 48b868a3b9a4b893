package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkvm/forkvm/api"
)

// watchEvery is how often stats are taken anew.
const watchEvery = time.Second

// boxStats is what a sandbox takes, and with whom it shares.
type boxStats struct {
	api.Stats
	MemoryBytes int64     `json:"memory_bytes"` // that the guest sees
	SharesWith  []partner `json:"shares_with"`  // most first

	name, from string
	compared   bool // with others; all that run are, unless they are very many
}

// partner is a sandbox with which another has something in common.
type partner struct {
	SandboxID   string `json:"sandbox_id"`
	MemoryBytes int64  `json:"memory_bytes"`
	DiskBytes   int64  `json:"disk_bytes"`

	name string
}

func newStats() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "stats [SANDBOX]...",
		Short: "Show what sandboxes take, and who shares how much with whom",
		Long: `Show what sandboxes take, all unless some are named: the memory that the guest sees, and
of memory and disk what a sandbox has for itself, and what it has of layers that templates,
snapshots and other sandboxes may have too, until it writes there. Then with which others it
shares most memory. The newest 100 that run are compared with each other.

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
	shared, err := s.Sharing(ctx, api.SharingQuery{})
	if err != nil {
		return nil, err
	}
	with := partners(shared, byID)
	var all []boxStats
	for _, id := range ids {
		st, err := s.Stats(ctx, id)
		if !named && errors.Is(err, api.NotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		one := boxStats{Stats: *st, SharesWith: []partner{}}
		if w, ok := with[id]; ok {
			one.compared, one.SharesWith = true, append(one.SharesWith, w...)
		}
		if b := byID[id]; b != nil {
			one.MemoryBytes, one.name, one.from = b.MemoryBytes, b.Name, origin(b)
		}
		all = append(all, one)
	}
	return all, nil
}

// partners are, for each sandbox that was compared, those that it has something
// in common with, most first.
func partners(s *api.Sharing, boxes map[string]*api.Sandbox) map[string][]partner {
	with, named := map[string][]partner{}, map[string]int{}
	for _, b := range boxes {
		named[b.Name]++
	}
	for _, b := range s.Sandboxes {
		with[b.SandboxID] = nil
	}
	for _, p := range s.Pairs {
		for i, id := range p.SandboxIDs {
			other := p.SandboxIDs[1-i]
			name := shortID(other)
			if b := boxes[other]; b != nil && b.Name != "" && named[b.Name] == 1 {
				name = plain(b.Name)
			}
			with[id] = append(with[id], partner{other, p.MemoryBytes, p.DiskBytes, name})
		}
	}
	return with
}

// shownPartners is how many there is room for in a line.
const shownPartners = 2

// sharesWith is with whom a sandbox shares most memory.
func (s boxStats) sharesWith() string {
	var words []string
	for _, p := range s.SharesWith {
		if p.MemoryBytes > 0 {
			words = append(words, fmt.Sprintf("%s %s", p.name, size(p.MemoryBytes)))
		}
	}
	switch n := len(words); {
	case n > shownPartners:
		return fmt.Sprintf("%s, %d more", strings.Join(words[:shownPartners], ", "), n-shownPartners)
	case n > 0:
		return strings.Join(words, ", ")
	case s.compared:
		return "nobody"
	case s.State == api.Running:
		return "?"
	}
	return "-"
}

// clearScreen moves to the top of a terminal and empties it.
const clearScreen = "\x1b[H\x1b[2J"

func showStats(w io.Writer, all []boxStats, asJSON, again bool) error {
	if asJSON {
		list := append([]boxStats{}, all...) // of none it is [] in JSON
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
	fmt.Fprintln(t, "ID\tNAME\tFROM\tSTATE\tMEMORY\tPRIVATE\tSHARED\tDISK: PRIVATE\tSHARED\tSTORED\tCOMMANDS\tSHARES WITH")
	var sum boxStats
	for _, s := range all {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\n", shortID(s.SandboxID), plain(s.name), s.from, s.State,
			size(s.MemoryBytes), size(s.MemoryPrivateBytes), size(s.MemorySharedBytes), size(s.DiskPrivateBytes), size(s.DiskSharedBytes),
			size(s.StoredBytes), s.Processes, s.sharesWith())
		sum.MemoryBytes += s.MemoryBytes
		sum.MemoryPrivateBytes += s.MemoryPrivateBytes
		sum.DiskPrivateBytes += s.DiskPrivateBytes
		sum.StoredBytes += s.StoredBytes
		sum.Processes += s.Processes
	}
	if len(all) > 1 { // what is shared has no sum: it would be counted more than once
		fmt.Fprintf(t, "together\t\t\t\t%s\t%s\t\t%s\t\t%s\t%d\n", size(sum.MemoryBytes), size(sum.MemoryPrivateBytes),
			size(sum.DiskPrivateBytes), size(sum.StoredBytes), sum.Processes)
	}
	return t.Flush()
}
