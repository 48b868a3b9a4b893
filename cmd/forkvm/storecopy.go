package main

import (
	"context"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/forkvm/forkvm/snapshot"
	"github.com/forkvm/forkvm/snapshot/archive"
)

func newStoreExport() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "export SNAPSHOT FILE",
		Short: "Write a snapshot to one compressed file; - is standard output",
		Long: `Write a snapshot to one compressed file which 'store import' reads, here or on
another machine; - is standard output. The file holds all that the guest had in memory,
so only its owner may read it. It is there when it is complete, or not at all.

` + namesHelp,
		Example: `  forkvm store export base base.forkvm
  forkvm store export base - | ssh elsewhere forkvm store import -`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: completeNames(1, true),
	}
	return onStore(cmd, func(cmd *cobra.Command, store *snapshot.Store, args []string) error {
		found, err := find(cmd.Context(), store, args[0])
		if err != nil {
			return err
		}
		return writeFile(args[1], 0o600, func(w io.Writer) error {
			report, end := showProgress("exporting")
			defer end()
			return archive.Export(cmd.Context(), store, found[0].ID, w, report)
		})
	})
}

func newStoreImport() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "import FILE",
		Short: "Store a snapshot that was exported, and print its id; - is standard input",
		Long: `Store a snapshot that was exported, and print its id; - is standard input. Nothing of
the file is believed: the snapshot is there when every byte was verified, or not at all.
It keeps its id and label.

` + summaryHelp,
		Args: cobra.ExactArgs(1),
	}
	asJSON := jsonFlag(cmd)
	return onStore(cmd, func(cmd *cobra.Command, store *snapshot.Store, args []string) error {
		f, err := openFile(args[0])
		if err != nil {
			return err
		}
		defer f.Close()
		info, err := importFrom(cmd.Context(), store, f)
		if err != nil {
			return err
		}
		return printStored(cmd.OutOrStdout(), info, *asJSON)
	})
}

func importFrom(ctx context.Context, store *snapshot.Store, f *os.File) (snapshot.Info, error) {
	report, end := showProgress("importing")
	defer end()
	r, stop := interruptible(ctx, f)
	defer stop()
	return archive.Import(ctx, store, r, report)
}

// interruptible reads f until ctx ends, even if nothing more comes out of it.
func interruptible(ctx context.Context, f *os.File) (r io.Reader, stop func()) {
	pr, pw := io.Pipe()
	go func() {
		_, err := io.Copy(pw, f)
		pw.CloseWithError(err)
	}()
	ended := context.AfterFunc(ctx, func() { pw.CloseWithError(context.Cause(ctx)) })
	return pr, func() {
		ended()
		pr.Close()
	}
}
