package main

import (
	"context"
	"os"
	"time"

	"github.com/forkvm/forkvm/test/bench/native"
	"github.com/forkvm/forkvm/test/bench/result"
)

// nativeCommand measures a guest of a few instructions.
func nativeCommand(ctx context.Context, o options, _ []string) error {
	h, err := readHost(result.Native)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	r := result.NewRecorder()
	err = native.Run(ctx, native.Options{
		Groups: o.groups, Quick: o.quick, Rounds: o.rounds, Most: o.most,
		Floor: []string{self, floorVerb}, Progress: os.Stderr,
	}, r)
	if err != nil {
		return err
	}
	return r.Print(os.Stdout, os.Stderr, h, result.Format{JSON: o.json, Header: o.header})
}

func readHost(where string) (result.Host, error) {
	return result.ReadHost(where, commit, time.Now().Format(time.DateOnly))
}

// commit is the revision that this program was built from; set when it is
// linked.
var commit = "unknown"
