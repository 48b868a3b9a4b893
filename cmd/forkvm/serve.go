package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/sandbox"
	"github.com/forkvm/forkvm/api/server"
	"github.com/forkvm/forkvm/api/template"
	"github.com/forkvm/forkvm/initrd"
)

// socketTeam is whose sandboxes are served over a Unix socket: who may open it
// needs no key.
const socketTeam = "default"

// serveFlags say what to serve, where and to whom.
type serveFlags struct {
	state, templates        string
	kernel, cmdline, agent  string
	kvm                     string
	listen                  listenFlags
	limits                  sandbox.Limits
	memory, context         byteSize
	onStop                  string
	stopTimeout, stopWithin time.Duration
	idleExit                time.Duration
	logFormat               string
}

func newServe(sig *signals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve sandboxes over HTTP, until it is told to stop",
		Long: `Serve sandboxes over HTTP: what create, exec, fork and the other commands for sandboxes
ask. They start one themselves where none runs.

It listens on a Unix socket that only its user may open, which needs no key. With --listen
it listens on TCP too, and asks for a key of the file --keys ('forkvm key new' makes one).
Beyond this machine it wants TLS. A service manager may pass it sockets instead, as systemd
does: docs/systemd has units.

SIGINT, SIGTERM and 'forkvm serve stop' stop it: requests have a while to end, then
sandboxes that run are paused, and go on after 'forkvm resume', or destroyed. A second
signal cuts this short.

With --idle-exit it ends by itself when it has not been asked for anything for a while and
no sandbox has run. What is paused or stored is there again when it is started again. What
is due meanwhile, such as --auto-delete of a sandbox, is done then.`,
		Example: `  forkvm serve
  forkvm serve --listen 127.0.0.1:8080 --keys keys
  forkvm serve --listen :8443 --keys keys --tls-cert cert.pem --tls-key key.pem`,
		Args: cobra.NoArgs,
	}
	s := &serveFlags{}
	f := cmd.Flags()
	f.StringVar(&s.state, "state", os.Getenv("FORKVM_STATE"), "`directory` of sandboxes ($FORKVM_STATE; default forkvm in $XDG_STATE_HOME or ~/.local/state)")
	f.StringVar(&s.templates, "templates", os.Getenv("FORKVM_TEMPLATES"), "`directory` of templates and snapshots ($FORKVM_TEMPLATES; default templates in that of sandboxes)")
	f.StringVar(&s.kernel, "kernel", "", "`kernel` of built-in templates, as for 'forkvm run'")
	f.StringVar(&s.cmdline, "cmdline", os.Getenv("FORKVM_CMDLINE"), "`options` to append to the kernel command line ($FORKVM_CMDLINE)")
	f.StringVar(&s.agent, "agent", "", "the `program` that works in guests of built-in templates (default this one)")
	f.StringVar(&s.kvm, "kvm", "/dev/kvm", "KVM `device`")
	s.listen.add(f)
	f.IntVar(&s.limits.SandboxesPerTeam, "max-sandboxes", 0, "how many sandboxes a team may have (default 1000)")
	f.IntVar(&s.limits.SnapshotsPerTeam, "max-snapshots", 0, "how many snapshots a team may have (default 100)")
	f.IntVar(&s.limits.SnapshotsPerSandbox, "max-snapshots-of-one", 0, "how many snapshots there may be of one sandbox (default 20)")
	f.IntVar(&s.limits.SnapshotsInFlight, "max-snapshots-at-once", 0, "how many snapshots of a team may be taken at once (default 4)")
	f.IntVar(&s.limits.Builds, "max-builds", 0, "how many templates may be built at once (default 2)")
	f.Var(&s.context, "max-context", "how much the files of a build's context may have together (default 1G)")
	f.Var(&s.memory, "max-memory", "how much memory guests that run may have together (default four times that of this machine)")
	f.StringVar(&s.onStop, "on-stop", string(sandbox.ClosePauses), "what becomes of sandboxes that run at the end: pause or destroy")
	f.DurationVar(&s.stopTimeout, "grace", 3*time.Second, "how long requests have to end when it stops")
	f.DurationVar(&s.stopWithin, "stop-timeout", 5*time.Minute, "how long pausing may take when it stops")
	f.DurationVar(&s.idleExit, "idle-exit", 0, "end when for this long nothing was asked and no sandbox ran, such as 15m (default never)")
	f.StringVar(&s.logFormat, "log-format", "text", "how to log to standard error: text or json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := s.check(); err != nil {
			return err
		}
		return s.run(cmd.Context(), sig)
	}
	cmd.AddCommand(newServeStop())
	return cmd
}

func (s *serveFlags) check() error {
	switch how := sandbox.OnClose(s.onStop); {
	case how != sandbox.ClosePauses && how != sandbox.CloseDestroys:
		return usageError("--on-stop %q is neither pause nor destroy", s.onStop)
	case s.logFormat != "text" && s.logFormat != "json":
		return usageError("--log-format %q is neither text nor json", s.logFormat)
	case s.stopTimeout < 0 || s.stopWithin < 0 || s.idleExit < 0:
		return usageError("negative --grace, --stop-timeout or --idle-exit")
	}
	return s.listen.check()
}

func (s *serveFlags) logger() *slog.Logger {
	if s.logFormat == "json" {
		return slog.New(slog.NewJSONHandler(os.Stderr, nil))
	}
	return slog.New(slog.NewTextHandler(os.Stderr, nil))
}

// run serves until ctx ends, which is the first signal, or it is to end for
// another reason.
func (s *serveFlags) run(ctx context.Context, sig *signals) error {
	log := s.logger()
	keys, err := s.listen.readKeys()
	if err != nil {
		return err
	}
	state, err := stateDir(s.state)
	if err != nil {
		return err
	}
	engine, closeStore, err := s.open(ctx, state, log)
	if err != nil {
		return err
	}
	end := &serverEnd{state: state, after: s.idleExit, idle: engine.Idle, log: log, usage: newUsage()}
	defer runtime.KeepAlive(end) // its locks end with the process
	defer closeStore()
	ctx, end.stop = context.WithCancel(ctx)
	defer end.stop()
	served := s.serve(ctx, end, newHandler(engine, keys, log))
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.stopWithin)
	defer cancel()
	sig.forward(func(os.Signal) { cancel() })
	log.Info("stopping", "sandboxes", s.onStop)
	err = errors.Join(served, engine.Close(stop, sandbox.OnClose(s.onStop)))
	end.tell(err)
	return err
}

// open opens the templates and the engine.
func (s *serveFlags) open(ctx context.Context, state string, log *slog.Logger) (*sandbox.Engine, func(), error) {
	machine := template.Machine{Cmdline: s.cmdline, Agent: s.agent, KVM: s.kvm}
	if s.kernel != "" {
		var err error
		if machine.Kernel, err = initrd.FindKernel(ctx, s.kernel); err != nil {
			return nil, nil, err
		}
	}
	if s.templates == "" {
		s.templates = filepath.Join(state, "templates")
	}
	store, err := openTemplates(s.templates, machine)
	if err != nil {
		return nil, nil, err
	}
	s.limits.Memory, s.limits.Context = int64(s.memory), int64(s.context)
	engine, err := sandbox.Open(ctx, filepath.Join(state, "sandboxes"),
		sandbox.Options{Templates: store, Limits: s.limits, KVM: s.kvm, Logger: log})
	if err != nil {
		store.Close()
		return nil, nil, err
	}
	return engine, func() { store.Close() }, nil
}

func newHandler(engine *sandbox.Engine, keys *server.Keys, log *slog.Logger) http.Handler {
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(engine)
	c := server.Config{
		Account: func(team string) (api.Service, error) { return engine.Team(team), nil },
		Open: func(a api.Access) (server.Sandbox, error) {
			team, err := engine.Holder(a)
			if err != nil {
				return nil, err
			}
			return team, nil
		},
		SocketTeam: socketTeam, Logger: log, Registry: metrics, Version: readVersion().Version,
	}
	if keys != nil {
		c.Authenticate, c.Admin = keys.Team, keys.Admin
	}
	return server.New(c)
}

// serve serves until ctx ends, or nobody needs it, and lets requests end.
func (s *serveFlags) serve(ctx context.Context, end *serverEnd, h http.Handler) error {
	log := end.log
	listeners, err := s.listen.open(ctx, end.state)
	if err != nil {
		return err
	}
	for _, l := range listeners {
		defer l.Close() // also of one that was not served yet when it was to stop
	}
	requests, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	srv := &http.Server{
		Handler: end.handler(h), ReadHeaderTimeout: 30 * time.Second, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		BaseContext: func(net.Listener) context.Context { return requests },
	}
	ended := make(chan error, len(listeners))
	for _, l := range listeners {
		log.Info("listening", "network", l.Addr().Network(), "address", l.Addr().String(), "pid", os.Getpid())
		go func() { ended <- srv.Serve(l) }()
	}
	if err := notifyReady(); err != nil {
		log.Warn("cannot tell the service manager", "error", err)
	}
	select {
	case err = <-ended: // before it was told to
		err = fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	case <-end.unused(ctx):
		log.Info("not used", "for", s.idleExit)
	}
	end.begins()
	return errors.Join(err, shutDown(srv, s.stopTimeout, cut))
}

// shutDown lets requests end for a while, then ends their context, and at last
// their connections.
func shutDown(srv *http.Server, grace time.Duration, cut func()) error {
	for range 2 {
		ctx, cancel := context.WithTimeout(context.Background(), grace)
		err := srv.Shutdown(ctx)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			cut() // connections that are not HTTP any more
			return err
		}
		cut()
	}
	return srv.Close()
}
