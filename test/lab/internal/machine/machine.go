package machine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Files of a machine in its folder.
const (
	stateFile     = "machine.json"
	consoleFile   = "console.log"
	heartbeatFile = "heartbeat"
	monitorFile   = "qmp.sock"
	qemuLogFile   = "qemu.log"
)

// netdev is QEMU's name for the user network.
const netdev = "net0"

// startAttempts bounds how often another port is tried when someone takes the chosen one first.
const startAttempts = 3

// stopGrace is how long QEMU may take to quit before it is killed.
const stopGrace = 5 * time.Second

var (
	// ErrNotUp says that no machine runs in a folder.
	ErrNotUp = errors.New("machine: none is running")
	// ErrStuck says that the kernel inside stopped while QEMU went on.
	ErrStuck = errors.New("machine: its kernel stopped")
	// ErrDied says that QEMU ended, be it of itself or because the kernel inside panicked.
	ErrDied = errors.New("machine: QEMU ended")
)

// State describes a machine to other processes.
type State struct {
	PID       int       `json:"pid"`
	Start     uint64    `json:"start_ticks"`
	AgentPort int       `json:"agent_port"`
	MemoryMiB int       `json:"memory_mib"`
	Kernel    string    `json:"kernel"`
	Started   time.Time `json:"started"`
	// Durable says that it has a disk which keeps what is written to it.
	Durable bool `json:"durable"`
	// Boot is the time from starting QEMU to the first heartbeat, in nanoseconds.
	Boot time.Duration `json:"boot_ns"`
}

// A Machine is a running QEMU process. Its methods may be called concurrently, Close only once.
type Machine struct {
	State
	dir  string
	proc *process
}

// Start starts a machine and waits until it is up: its agent listens then. It fails with ErrStuck
// or ErrDied, and the console's tail, if the machine does not get so far.
func Start(ctx context.Context, c Config) (*Machine, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	for attempt := 1; ; attempt++ {
		m, err := start(ctx, &c)
		if err == nil {
			return m, nil
		}
		if attempt == startAttempts || !errors.Is(err, errPortTaken) {
			return nil, err
		}
	}
}

var errPortTaken = errors.New("machine: the chosen port was taken")

func start(ctx context.Context, c *Config) (*Machine, error) {
	for _, name := range []string{stateFile, heartbeatFile, monitorFile} {
		if err := os.RemoveAll(filepath.Join(c.Dir, name)); err != nil {
			return nil, fmt.Errorf("machine: %w", err)
		}
	}
	// The console of the machine before this one tells why this one had to be started.
	os.Rename(filepath.Join(c.Dir, consoleFile), filepath.Join(c.Dir, consoleFile+".1"))
	port, err := freePort()
	if err != nil {
		return nil, fmt.Errorf("machine: %w", err)
	}
	m := &Machine{dir: c.Dir, State: State{
		AgentPort: port, MemoryMiB: c.MemoryMiB, Kernel: c.Release, Durable: c.durable(), Started: time.Now(),
	}}
	if m.proc, m.Start, err = spawn(c, port); err != nil {
		return nil, fmt.Errorf("machine: start %s: %w", c.QEMU, err)
	}
	m.PID = m.proc.pid
	if err := m.boot(ctx); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// boot waits for the first heartbeat and then writes the state file.
func (m *Machine) boot(ctx context.Context) error {
	if err := m.awaitBeat(ctx); err != nil {
		if log := m.qemuLog(); strings.Contains(log, "Could not set up host forwarding rule") {
			return fmt.Errorf("%w: %s", errPortTaken, log)
		}
		return m.explain(err)
	}
	m.Boot = time.Since(m.Started)
	b, err := json.Marshal(m.State)
	if err != nil {
		return fmt.Errorf("machine: %w", err)
	}
	tmp := filepath.Join(m.dir, stateFile+".tmp")
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return fmt.Errorf("machine: %w", err)
	}
	if err := os.Rename(tmp, filepath.Join(m.dir, stateFile)); err != nil {
		return fmt.Errorf("machine: %w", err)
	}
	return nil
}

// Attach finds the machine that another process left running in a folder. It fails with ErrNotUp
// if there is none.
func Attach(dir string) (*Machine, error) {
	b, err := os.ReadFile(filepath.Join(dir, stateFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, ErrNotUp
	}
	if err != nil {
		return nil, fmt.Errorf("machine: %w", err)
	}
	m := &Machine{dir: dir}
	if err := json.Unmarshal(b, &m.State); err != nil {
		return nil, fmt.Errorf("machine: %s: %w", stateFile, err)
	}
	if m.proc, err = openProcess(m.PID); err != nil {
		return nil, ErrNotUp
	}
	// The descriptor is held from here on, so if the process is ours now it stays so.
	if st, err := stat(m.PID); err != nil || st.start != m.State.Start || m.proc.ended(0) {
		m.proc.close()
		return nil, ErrNotUp
	}
	return m, nil
}

// Detach forgets the machine and leaves it running.
func (m *Machine) Detach() { m.proc.close() }

// Close ends the machine: what it wrote to disks that are kept is lost unless it was synced.
func (m *Machine) Close() {
	// Asked to quit, QEMU removes its temporary files. If it does not answer it is killed.
	if _, err := m.monitor(context.Background(), command{Execute: "quit"}); err != nil || !m.proc.ended(stopGrace) {
		m.Kill()
	}
	os.Remove(filepath.Join(m.dir, stateFile))
	m.proc.close()
}

// Kill ends the machine at once and waits for QEMU to be gone. Close is still to be called.
func (m *Machine) Kill() {
	m.proc.kill()
	m.proc.ended(stopGrace)
}

// AgentAddr is the address on the host at which the agent inside is reached.
func (m *Machine) AgentAddr() string { return fmt.Sprintf("127.0.0.1:%d", m.AgentPort) }

// Pause stops the machine's clock and CPU, so that an idle machine costs nothing.
func (m *Machine) Pause(ctx context.Context) error {
	_, err := m.monitor(ctx, command{Execute: "stop"})
	return err
}

// Resume undoes Pause. The wall clock inside is late by the length of the pause.
func (m *Machine) Resume(ctx context.Context) error {
	_, err := m.monitor(ctx, command{Execute: "cont"})
	return err
}

// Forward makes a TCP port inside the machine reachable at a port of 127.0.0.1.
func (m *Machine) Forward(ctx context.Context, hostPort, guestPort uint16) error {
	// Someone may have been killed before it could end its own.
	if err := m.Unforward(ctx, hostPort); err != nil {
		return err
	}
	return m.human(ctx, fmt.Sprintf("hostfwd_add %s tcp:127.0.0.1:%d-:%d", netdev, hostPort, guestPort))
}

// Unforward undoes Forward, if there was one.
func (m *Machine) Unforward(ctx context.Context, hostPort uint16) error {
	_, err := m.monitor(ctx, command{
		Execute: "human-monitor-command",
		Arguments: map[string]any{
			"command-line": fmt.Sprintf("hostfwd_remove %s tcp:127.0.0.1:%d", netdev, hostPort),
		},
	})
	return err
}

// freePort asks the kernel for a port nobody uses. Someone may take it before QEMU does: Start
// tries again then.
func freePort() (int, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
