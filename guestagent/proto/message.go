package proto

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

const (
	// MaxArgs is the most arguments, and the most environment entries, that an
	// exec request may have.
	MaxArgs = 16384
	// MinEntropy is the fewest bytes of entropy that renew an identity.
	MinEntropy = 32
	// MaxEntropy is the most bytes of entropy that one request may bring.
	MaxEntropy = 4096
	// MaxHostname is the longest host name Linux takes, in bytes.
	MaxHostname = 64
	// maxPath is Linux's PATH_MAX.
	maxPath = 4096
)

// Empty is a request or reply that says nothing.
type Empty struct{}

// Validate implements [Validator].
func (*Empty) Validate() error { return nil }

// Info describes an agent and its machine. It answers hello and is what the
// agent sends on the ready port.
type Info struct {
	Version    int        `json:"version"`
	Generation Generation `json:"generation"`
	Kernel     string     `json:"kernel"` // release, as uname -r
	Hostname   string     `json:"hostname"`
	CPUs       int        `json:"cpus"`
	Boot       Boot       `json:"boot"`
	Warnings   []string   `json:"warnings,omitempty"` // what failed at boot, such as a module
}

// Boot says when the agent reached each step, since the kernel started. All
// are zero in an agent that did not boot its machine.
type Boot struct {
	Start     time.Duration `json:"start_ns"`     // the agent's first instruction of its own
	Mounted   time.Duration `json:"mounted_ns"`   // file systems are mounted
	Modules   time.Duration `json:"modules_ns"`   // kernel modules are loaded
	Root      time.Duration `json:"root_ns"`      // the root is that of disks; zero if it is not
	Listening time.Duration `json:"listening_ns"` // the agent takes connections
}

// WinSize is the size of a terminal in characters.
type WinSize struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// ExecRequest starts a command.
type ExecRequest struct {
	Path     Text          // program; looked up in PATH if it has no slash
	Args     []Text        // argv, including argv[0]
	Env      []Text        // nil: the default environment
	ExtraEnv []Text        // on top of that
	Dir      Text          // "": the default directory
	User     string        // "", name, uid, or either with :group
	Stdin    bool          // data follows, or may be attached if detached
	TTY      *WinSize      // run on a new terminal of this size
	Timeout  time.Duration // 0: none
	Detach   bool          // outlives this connection
	// IdleTimeout ends the command when it printed nothing for that long. 0:
	// none. An agent from before there was one refuses a request that has it.
	IdleTimeout time.Duration
}

// Validate implements [Validator].
func (r *ExecRequest) Validate() error {
	switch {
	case r.Path == "":
		return errors.New("proto: exec: no program")
	case len(r.Args) == 0:
		return errors.New("proto: exec: no arguments, not even argv[0]")
	case len(r.Args) > MaxArgs || len(r.Env)+len(r.ExtraEnv) > MaxArgs:
		return fmt.Errorf("proto: exec: more than %d arguments or variables", MaxArgs)
	case r.Timeout < 0 || r.IdleTimeout < 0:
		return errors.New("proto: exec: negative timeout")
	case hasNUL(r.Path) || hasNUL(r.Dir) || hasNUL(r.Args...) || hasNUL(r.Env...) || hasNUL(r.ExtraEnv...):
		return errors.New("proto: exec: NUL in a string")
	}
	return nil
}

func hasNUL(ts ...Text) bool {
	for _, t := range ts {
		if strings.IndexByte(string(t), 0) >= 0 {
			return true
		}
	}
	return false
}

// Started answers an exec request.
type Started struct {
	ID  uint64 // names the process for this agent's lifetime
	PID int    // in the guest
}

// ProcessRequest names a process to attach to, wait for, signal or resize.
type ProcessRequest struct {
	ID     uint64  `json:"id"`
	Stdin  bool    `json:"stdin,omitempty"`  // attach: data follows
	Live   bool    `json:"live,omitempty"`   // attach: skip output that was kept
	Signal int     `json:"signal,omitempty"` // signal
	Size   WinSize `json:"size,omitzero"`    // resize
}

// Validate implements [Validator].
func (r *ProcessRequest) Validate() error {
	if r.Signal < 0 || r.Signal > 64 {
		return fmt.Errorf("proto: signal %d out of range", r.Signal)
	}
	return nil
}

// Exit says how a command ended.
type Exit struct {
	Code       int   `json:"code"`                  // exit code, -1 if a signal ended it
	Signal     int   `json:"signal,omitempty"`      // 0 if it exited
	TimedOut   bool  `json:"timed_out,omitempty"`   // the agent killed it for a time-out
	LostStdout int64 `json:"lost_stdout,omitempty"` // attach: bytes of output that were not kept
	LostStderr int64 `json:"lost_stderr,omitempty"`
}

// Process describes a process that an exec request started. It is an item of
// the list reply.
type Process struct {
	ID       uint64    `json:"id"`
	PID      int       `json:"pid"`
	Args     []Text    `json:"args"` // cut at about 1 KiB
	Started  time.Time `json:"started"`
	Detached bool      `json:"detached"`
	TTY      bool      `json:"tty"`
	Exit     *Exit     `json:"exit,omitempty"` // nil while it runs
}

// PathRequest names a file and what to do with it.
type PathRequest struct {
	Path  Text      `json:"path"`
	To    Text      `json:"to,omitempty"`   // rename: new name; symlink: the link's target
	Flag  int       `json:"flag,omitempty"` // open: Linux O_ flags
	Mode  uint32    `json:"mode,omitempty"` // open, mkdir, mkdirall, chmod: as fs.FileMode
	UID   int       `json:"uid,omitempty"`  // chown
	GID   int       `json:"gid,omitempty"`  // chown
	Atime time.Time `json:"atime,omitzero"` // chtimes
	Mtime time.Time `json:"mtime,omitzero"` // chtimes
}

// Validate implements [Validator].
func (r *PathRequest) Validate() error {
	switch {
	case r.Path == "":
		return errors.New("proto: no path")
	case hasNUL(r.Path, r.To):
		return errors.New("proto: NUL in a path")
	case len(r.Path) > maxPath || len(r.To) > maxPath:
		return fmt.Errorf("proto: path longer than %d bytes", maxPath)
	}
	return nil
}

// FileInfo describes a file. It answers stat, lstat and open, and lists of
// them are the items of readdir.
type FileInfo struct {
	Name  Text      `json:"name"` // base name
	Size  int64     `json:"size"`
	Mode  uint32    `json:"mode"` // as fs.FileMode
	Mtime time.Time `json:"mtime"`
	UID   uint32    `json:"uid"`
	GID   uint32    `json:"gid"`
	Inode uint64    `json:"inode"`
	Links uint64    `json:"links"`
}

// Link answers readlink.
type Link struct {
	Target Text `json:"target"`
}

// FileCall is what an open file is asked beyond reading and writing.
type FileCall struct {
	Op   string `json:"op"` // "stat", "sync", "truncate", "close"
	Size int64  `json:"size,omitempty"`
}

// Event is an item of watch.
type Event struct {
	Name Text   `json:"name"` // within the watched directory; "" for the watched path itself
	Op   string `json:"op"`   // create, write, attrib, remove, rename-from, rename-to, overflow, gone
	Dir  bool   `json:"dir,omitempty"`
}

// ClockRequest sets the wall clock.
type ClockRequest struct {
	Time time.Time `json:"time"`
}

// Validate implements [Validator].
func (r *ClockRequest) Validate() error {
	if r.Time.Unix() <= 0 {
		return errors.New("proto: time before 1970")
	}
	return nil
}

// EntropyRequest gives the guest's kernel random bytes to credit.
type EntropyRequest struct {
	Bytes []byte `json:"bytes"`
}

// Validate implements [Validator].
func (r *EntropyRequest) Validate() error {
	if len(r.Bytes) == 0 || len(r.Bytes) > MaxEntropy {
		return fmt.Errorf("proto: %d bytes of entropy, want 1 to %d", len(r.Bytes), MaxEntropy)
	}
	return nil
}

// HostnameRequest sets the host name.
type HostnameRequest struct {
	Hostname string `json:"hostname"`
}

// Validate implements [Validator].
func (r *HostnameRequest) Validate() error {
	if r.Hostname == "" || len(r.Hostname) > MaxHostname || strings.IndexByte(r.Hostname, 0) >= 0 {
		return fmt.Errorf("proto: host name %q is not 1 to %d bytes", r.Hostname, MaxHostname)
	}
	return nil
}

// RenewRequest gives a machine a new identity.
type RenewRequest struct {
	Generation Generation
	Entropy    []byte // at least MinEntropy bytes
	WallClock  time.Time
	Hostname   string // "": unchanged
}

// Validate implements [Validator].
func (r *RenewRequest) Validate() error {
	if r.Generation == (Generation{}) {
		return errors.New("proto: renew: zero generation")
	}
	if len(r.Entropy) < MinEntropy || len(r.Entropy) > MaxEntropy {
		return fmt.Errorf("proto: renew: %d bytes of entropy, want %d to %d", len(r.Entropy), MinEntropy, MaxEntropy)
	}
	if r.Hostname != "" {
		if err := (&HostnameRequest{Hostname: r.Hostname}).Validate(); err != nil {
			return err
		}
	}
	return (&ClockRequest{Time: r.WallClock}).Validate()
}

// RenewReply confirms a renewal with what the machine has now.
type RenewReply struct {
	Generation Generation
	WallClock  time.Time // read back after it was set
	Hostname   string
	// Random is 16 bytes that the kernel's generator gave after it was
	// reseeded: two machines with the same share their randomness.
	Random []byte
}
