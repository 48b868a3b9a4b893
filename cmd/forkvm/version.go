package main

import (
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/forkvm/forkvm/guestagent/proto"
)

// buildVersion says which forkvm this is.
type buildVersion struct {
	Version  string `json:"version"` // of the module; "(devel)" if built from a work tree
	Commit   string `json:"commit,omitempty"`
	Time     string `json:"time,omitempty"` // of the commit, RFC 3339
	Modified bool   `json:"modified"`       // the work tree had changes
	Go       string `json:"go"`
	Protocol int    `json:"protocol"` // of the guest agent
}

func newVersion() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the versions of forkvm, Go and the agent's protocol",
		Args:  cobra.NoArgs,
	}
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		v, out := readVersion(), cmd.OutOrStdout()
		if *asJSON {
			return printJSON(out, v)
		}
		commit := v.Commit
		if v.Modified {
			commit += ", modified"
		}
		if commit != "" {
			commit = " (" + commit + ")"
		}
		_, err := fmt.Fprintf(out, "forkvm %s%s\n%s\nagent protocol %d\n", v.Version, commit, v.Go, v.Protocol)
		return err
	}
	return cmd
}

func readVersion() buildVersion {
	v := buildVersion{Version: "unknown", Protocol: proto.Version}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	v.Version, v.Go = info.Main.Version, info.GoVersion
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Commit = s.Value
		case "vcs.time":
			v.Time = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}
