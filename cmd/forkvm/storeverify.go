package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/forkvm/forkvm/snapshot"
)

func newStoreVerify() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify [SNAPSHOT...]",
		Short: "Read all of some or all snapshots, and say whether they are what was stored",
		Long: `Read all of some or all snapshots from the disk, and say whether they are what was
stored. The exit code is 1 if one is not. With --json this is a list of objects, each
of id, label, ok, and error if it is not.

` + namesHelp,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: completeNames(allArgs, false),
	}
	asJSON := jsonFlag(cmd)
	return onStore(cmd, func(cmd *cobra.Command, store *snapshot.Store, args []string) error {
		verdicts, err := verify(cmd.Context(), store, args)
		if err != nil {
			return err
		}
		if *asJSON {
			err = printJSON(cmd.OutOrStdout(), verdicts)
		} else {
			err = printVerdicts(cmd.OutOrStdout(), verdicts)
		}
		if err != nil {
			return err
		}
		return damage(verdicts)
	})
}

// verdict is what verify found out about a snapshot.
type verdict struct {
	ID    string `json:"id"`
	Label string `json:"label,omitempty"`
	OK    bool   `json:"ok"`
	Error string `json:"error,omitempty"`
}

// verify verifies the named snapshots, or all. Its error is that it could not.
func verify(ctx context.Context, store *snapshot.Store, names []string) ([]verdict, error) {
	if len(names) > 0 {
		found, err := find(ctx, store, names...)
		if err != nil {
			return nil, err
		}
		return verifyEach(ctx, store, found)
	}
	all, err := store.List(ctx)
	if err != nil {
		return nil, err
	}
	report, end := showProgress("verifying")
	damage := store.VerifyAll(ctx, report) // what is shared is read once
	end()
	if damage == nil {
		verdicts := []verdict{}
		for _, info := range all {
			verdicts = append(verdicts, verdict{ID: info.ID, Label: info.Label, OK: true})
		}
		return verdicts, nil
	}
	verdicts, err := verifyEach(ctx, store, all)
	if err == nil && countDamaged(verdicts) == 0 {
		err = damage // it was there, and now is not
	}
	return verdicts, err
}

func verifyEach(ctx context.Context, store *snapshot.Store, infos []snapshot.Info) ([]verdict, error) {
	verdicts := []verdict{}
	for _, info := range infos {
		report, end := showProgress("verifying " + short(info.ID))
		err := store.Verify(ctx, info.ID, report)
		end()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if errors.Is(err, snapshot.ErrNotFound) { // deleted since
			continue
		}
		v := verdict{ID: info.ID, Label: info.Label, OK: err == nil}
		if err != nil {
			v.Error = err.Error()
		}
		verdicts = append(verdicts, v)
	}
	return verdicts, nil
}

func printVerdicts(w io.Writer, verdicts []verdict) error {
	for _, v := range verdicts {
		word := "ok"
		if !v.OK {
			word = "BAD"
		}
		if _, err := fmt.Fprintf(w, "%-3s  %s  %s\n", word, v.ID, v.Label); err != nil {
			return err
		}
		if v.Error != "" {
			fmt.Fprintf(w, "     %s\n", v.Error)
		}
	}
	return nil
}

func countDamaged(verdicts []verdict) (n int) {
	for _, v := range verdicts {
		if !v.OK {
			n++
		}
	}
	return n
}

// damage is an error if a snapshot is not what was stored.
func damage(verdicts []verdict) error {
	if n := countDamaged(verdicts); n > 0 {
		return &codeError{exitFinding, fmt.Errorf("%d of %d snapshots cannot be used", n, len(verdicts))}
	}
	return nil
}
