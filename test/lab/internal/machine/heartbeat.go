package machine

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

const (
	// stuckCPU is how much processor time QEMU may use without a heartbeat. The kernel inside
	// polls when idle, so QEMU uses all it can get: counting that time, and not the host's, a host
	// that is busy or was asleep does not make a machine look stuck.
	stuckCPU = 20 * time.Second
	// stuckWall bounds the case that QEMU itself waits for something for ever.
	stuckWall = 5 * time.Minute
	// bootPoll and watchPoll are how often the heartbeat is looked at.
	bootPoll  = 20 * time.Millisecond
	watchPoll = 500 * time.Millisecond
	// tailBytes is how much of a log is shown when there is trouble.
	tailBytes = 4 << 10
)

// pulse is the last sign of life.
type pulse struct {
	beats int64
	cpu   time.Duration
	at    time.Time
}

func (m *Machine) pulse() pulse {
	p := pulse{at: time.Now()}
	if fi, err := os.Stat(filepath.Join(m.dir, heartbeatFile)); err == nil {
		p.beats = fi.Size()
	}
	if st, err := stat(m.PID); err == nil {
		p.cpu = st.cpu
	}
	return p
}

// lateSince tells whether the heartbeat has been missing for too long.
func (p pulse) lateSince(last pulse) bool {
	return p.cpu-last.cpu > stuckCPU || p.at.Sub(last.at) > stuckWall
}

// Watch returns when the machine is no good any more, with ErrStuck or ErrDied and the tail of its
// console, or with nil when ctx is done. The machine must not be paused meanwhile.
func (m *Machine) Watch(ctx context.Context) error {
	err := m.follow(ctx, watchPoll, func(int64) bool { return false })
	if ctx.Err() != nil {
		return nil
	}
	return m.explain(err)
}

// awaitBeat waits for the first heartbeat.
func (m *Machine) awaitBeat(ctx context.Context) error {
	return m.follow(ctx, bootPoll, func(beats int64) bool { return beats > 0 })
}

// follow watches the heartbeat until enough says that there were enough beats.
func (m *Machine) follow(ctx context.Context, every time.Duration, enough func(beats int64) bool) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for last := m.pulse(); ; {
		now := m.pulse()
		if now.beats != last.beats {
			last = now
		}
		switch {
		case enough(now.beats):
			return nil
		case m.proc.ended(0):
			return ErrDied
		case now.lateSince(last):
			return ErrStuck
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// explain adds to an error what the machine's logs say.
func (m *Machine) explain(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w\nconsole (%s):\n%s\nQEMU:\n%s", err, m.ConsolePath(), m.ConsoleTail(), m.qemuLog())
}

// ConsolePath is the file that holds the kernel's console.
func (m *Machine) ConsolePath() string { return filepath.Join(m.dir, consoleFile) }

// ConsoleTail is the end of the kernel's console.
func (m *Machine) ConsoleTail() string { return tail(m.ConsolePath()) }

// qemuLog is the end of what QEMU said, apart from what it cannot emulate and nobody needs.
func (m *Machine) qemuLog() string {
	var kept []byte
	for line := range bytes.Lines([]byte(tail(filepath.Join(m.dir, qemuLogFile)))) {
		if !bytes.Contains(line, []byte("TCG doesn't support requested feature")) {
			kept = append(kept, line...)
		}
	}
	return string(kept)
}

func tail(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return "(" + err.Error() + ")"
	}
	return string(bytes.TrimSpace(b[max(0, len(b)-tailBytes):]))
}
