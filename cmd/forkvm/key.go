package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/forkvm/forkvm/api/client"
	"github.com/forkvm/forkvm/api/server"
)

func newKey() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "key",
		Short: "Make account keys for a server on TCP",
	}
	cmd.AddCommand(newKeyNew())
	return cmd
}

func newKeyNew() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "new --keys FILE [TEAM [NAME]]",
		Short: "Make an account key, add its hash to a key file, and print it",
		Long: `Make an account key, add its hash to a key file, and print it. The key itself is kept
nowhere: whoever is to use it sets $` + client.KeyVariable + `. Each team has sandboxes and snapshots
of its own; the default is '` + socketTeam + `', whose sandboxes are also those over the Unix socket. A
team may have several keys, with different names. To withdraw a key, delete its line. A
server reads the file when it starts.`,
		Args: cobra.MaximumNArgs(2),
	}
	file := cmd.Flags().String("keys", "", "the key `file`, which is made if it is not there")
	admin := cmd.Flags().Bool("admin", false, "make it that of an administrator, who builds and deletes templates for all teams")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		words := [2]string{socketTeam, "key"}
		copy(words[:], args)
		if *file == "" {
			return usageError("no key file given (try: --keys FILE)")
		}
		key := server.NewKey()
		line, err := server.KeyLine(words[0], words[1], key, *admin)
		if err != nil {
			return usageError("team %q, name %q: %w", words[0], words[1], err)
		}
		if err := addKeyLine(*file, line); err != nil {
			return err
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), key)
		return err
	}
	return cmd
}

// addKeyLine adds a line to a key file, if that leaves it one that a server
// takes.
func addKeyLine(name, line string) error {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	old, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	if len(old) > 0 && old[len(old)-1] != '\n' {
		line = "\n" + line
	}
	line += "\n"
	if _, err := server.ParseKeys(append(old, line...)); err != nil {
		return usageError("%s: %w", name, err)
	}
	if _, err := f.WriteString(line); err != nil {
		return err
	}
	return f.Close()
}
