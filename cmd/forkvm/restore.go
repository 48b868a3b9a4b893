package main

import (
	"context"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkvm/forkvm/vmm"
)

// restoreFlags say how a stored machine goes on.
type restoreFlags struct {
	host         *hostFlags
	guest        *guestFlags
	hostname     string
	startTimeout time.Duration
}

func newRestore(sig *signals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "restore SNAPSHOT [flags] [-- COMMAND ARGS...]",
		Short: "Let a stored machine go on, run a command in it, and power it off",
		Long: `Let a machine go on from where it was stored, with an identity of its own, run a
command in it as 'forkvm run' does, and power it off. The snapshot stays as it is; with
--save the machine becomes another one, which shares with the first what is the same.
Every byte is verified before it is used.

` + namesHelp + "\n" + exitCodesHelp,
		Example: `  forkvm restore base -- uname -a
  forkvm restore base --save=better -- sh -c 'echo more >>/data'
  forkvm restore base -it`,
		Args: func(cmd *cobra.Command, args []string) error {
			if n := cmd.ArgsLenAtDash(); n >= 0 {
				args = args[:n]
			}
			return cobra.ExactArgs(1)(cmd, args)
		},
		ValidArgsFunction: completeNames(1, false),
	}
	r := &restoreFlags{host: addHostFlags(cmd), guest: addGuestFlags(cmd)}
	f := cmd.Flags()
	f.StringVar(&r.hostname, "hostname", "", "host `name` of the machine (default that of the stored one)")
	f.DurationVar(&r.startTimeout, "start-timeout", 2*time.Minute, "how long the guest may take to answer")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return r.guest.run(cmd.Context(), sig, args[1:], "forkvm restore "+args[0], func(ctx context.Context) (*vmm.VM, error) {
			return r.restore(ctx, args[0])
		})
	}
	return cmd
}

func (r *restoreFlags) restore(ctx context.Context, name string) (*vmm.VM, error) {
	store, err := openStore(*r.guest.save.dir)
	if err != nil {
		return nil, err
	}
	defer store.Close() // what was loaded stays
	found, err := find(ctx, store, name)
	if err != nil {
		return nil, err
	}
	report, end := showProgress("verifying")
	image, err := vmm.Load(ctx, store, found[0].ID, vmm.LoadOptions{KVM: r.host.kvm, Progress: report})
	end()
	if err != nil {
		return nil, err
	}
	defer image.Close()
	return r.start(ctx, image)
}

func (r *restoreFlags) start(ctx context.Context, image *vmm.Image) (*vmm.VM, error) {
	ctx, cancel := context.WithTimeout(ctx, r.startTimeout)
	defer cancel()
	o := vmm.StartOptions{Hostname: r.hostname}
	o.Console, o.Trace = r.host.watch(os.Stderr)
	return image.Start(ctx, o)
}
