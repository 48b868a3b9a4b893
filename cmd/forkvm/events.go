package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkvm/forkvm/api"
)

func newEvents() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "events [SANDBOX]",
		Short: "Show what happens to sandboxes and snapshots, until interrupted",
		Long: `Show what happens to sandboxes and snapshots, or to one sandbox, until interrupted. With
--json each line is an object. An event events.lost says that some before the next are
missing.

` + boxesHelp,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: completeBoxes(1),
	}
	after := cmd.Flags().Uint64("after", 0, "begin with what is still known of after the event with this `number`")
	asJSON := jsonFlag(cmd)
	return onServer(cmd, func(cmd *cobra.Command, s api.Service, args []string) error {
		q := api.EventQuery{After: *after}
		if len(args) > 0 {
			var err error
			if q.SandboxID, err = boxID(cmd.Context(), s, args[0]); err != nil {
				return err
			}
		}
		out := cmd.OutOrStdout()
		return s.Events(cmd.Context(), q, nil, func(e api.Event) error {
			if *asJSON {
				return json.NewEncoder(out).Encode(e)
			}
			return printEvent(out, e)
		})
	})
}

func printEvent(w io.Writer, e api.Event) error {
	words := []string{fmt.Sprint(e.Seq), e.Time.Local().Format(time.DateTime), string(e.Type)}
	for _, id := range []string{e.SandboxID, e.SnapshotID} {
		if id != "" {
			words = append(words, id)
		}
	}
	switch {
	case e.Snapshot != nil && e.Snapshot.Name != "":
		words = append(words, plain(e.Snapshot.Name))
	case e.Sandbox != nil && e.Sandbox.Name != "":
		words = append(words, plain(e.Sandbox.Name))
	}
	if e.Sandbox != nil && e.Type == api.SandboxFailed {
		words = append(words, plain(e.Sandbox.Reason))
	}
	if len(e.Children) > 0 {
		words = append(words, "-> "+strings.Join(e.Children, " "))
	}
	_, err := fmt.Fprintln(w, strings.Join(words, "  "))
	return err
}
