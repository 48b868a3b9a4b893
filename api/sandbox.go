package api

import "time"

// State is where a sandbox is in its life.
type State string

// The states. A sandbox that is destroyed is not listed any more.
const (
	Creating   State = "creating" // seen by watchers only: the call of Create returns when it runs
	Running    State = "running"
	Pausing    State = "pausing"
	Paused     State = "paused" // it takes disk space and no memory
	Resuming   State = "resuming"
	Failed     State = "failed" // its machine is gone; Reason says why
	Destroying State = "destroying"
)

// OnTimeout is what happens to a sandbox whose time is up.
type OnTimeout string

// What may happen.
const (
	TimeoutDestroys OnTimeout = "destroy"
	TimeoutPauses   OnTimeout = "pause"
)

// Limits of requests.
const (
	MaxForks       = 100        // children of one call
	MaxTimeout     = 30 * 86400 // seconds
	MaxAutoDelete  = 30 * 86400 // seconds
	MaxName        = 200        // characters of a name
	MaxMetadata    = 64         // entries
	MaxMetaBytes   = 64 << 10   // of all keys and values of metadata
	MaxEnvVars     = 256        // entries
	MaxEnvBytes    = 256 << 10  // of all variables of a sandbox
	MaxMapEntry    = 64 << 10   // bytes of a variable's name and value
	MaxPage        = 100        // entries of a page of a list
	MaxOutput      = 16 << 20   // bytes of each stream of a blocking exec, at most
	DefaultOutput  = 1 << 20    // the same, unless it is asked for more or less
	DefaultTimeout = 60         // seconds of an exec
	MaxWait        = 3600       // seconds of a Wait
	MaxKey         = 255        // bytes of an idempotency key
)

// Sandbox is the record of a sandbox.
type Sandbox struct {
	ID    string `json:"id"`
	Name  string `json:"name"` // need not be unique; may be empty
	State State  `json:"state"`
	// Reason says why a sandbox has failed.
	Reason string `json:"reason,omitempty"`

	// Template is what the sandbox goes back to. ParentSandboxID is what it was
	// forked from, SourceSnapshotID what it was created from.
	Template         string  `json:"template"`
	ParentSandboxID  *string `json:"parent_sandbox_id"`
	SourceSnapshotID *string `json:"source_snapshot_id"`

	VCPUs       int   `json:"vcpus"`
	MemoryBytes int64 `json:"memory_bytes"`
	DiskBytes   int64 `json:"disk_bytes"` // that it may write; 0 if it has no disk

	CreatedAt time.Time `json:"created_at"`
	// StartedAt is when the current session began: at creation or the last
	// resume. It is null unless the sandbox runs.
	StartedAt *time.Time `json:"started_at"`
	PausedAt  *time.Time `json:"paused_at"` // null unless it is paused

	// TimeoutSeconds is how long a session lasts, null for ever, and ExpiresAt
	// when the current one ends. OnTimeout is what happens then.
	TimeoutSeconds *int64     `json:"timeout_seconds"`
	ExpiresAt      *time.Time `json:"expires_at"`
	OnTimeout      OnTimeout  `json:"on_timeout"`
	// AutoDeleteSeconds is how long it may be paused without a break, and
	// AutoDeleteAt when that is over, null unless it is paused.
	AutoDeleteSeconds *int64     `json:"auto_delete_seconds"`
	AutoDeleteAt      *time.Time `json:"auto_delete_at"`

	Metadata map[string]string `json:"metadata"`
	// EnvVars is the environment of commands. Lists and events leave it out.
	EnvVars map[string]string `json:"env_vars,omitempty"`

	// AccessToken is what commands and files of this sandbox are asked for
	// with. It is new in every fork and after every resume. Lists and events
	// leave it out.
	AccessToken string `json:"access_token,omitempty"`
}

// Settings are what a new sandbox may be given.
type Settings struct {
	Name     string            `json:"name,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
	// EnvVars is set on top of the environment of what it is made from.
	EnvVars map[string]string `json:"env_vars,omitempty"`

	// Absent, these are those of what it is made from; of a template never,
	// destroy, and never.
	TimeoutSeconds    Opt[int64] `json:"timeout_seconds,omitzero"` // 1 to [MaxTimeout], or null for ever
	OnTimeout         OnTimeout  `json:"on_timeout,omitempty"`
	AutoDeleteSeconds Opt[int64] `json:"auto_delete_seconds,omitzero"` // 0, at once, to [MaxAutoDelete], or null for never
}

// CreateRequest asks for a sandbox, from a template or from a snapshot. With
// neither, it is the template base.
type CreateRequest struct {
	Template     string `json:"template,omitempty"`
	FromSnapshot string `json:"from_snapshot,omitempty"` // an id
	Settings
}

// ForkRequest asks for forks of a sandbox as it is now.
type ForkRequest struct {
	Count int `json:"count,omitempty"` // 1 to [MaxForks]; 0 is 1
	// Settings of each child. Metadata is set on top of the parent's.
	Settings
}

// ForkResult is what became of a fork. The parent stood still for Pause, and
// goes on.
type ForkResult struct {
	Children []Forked `json:"children"`
	// PauseSeconds is how long the parent stood still.
	PauseSeconds float64 `json:"pause_seconds"`
}

// Forked is a child, or why there is none.
type Forked struct {
	Sandbox *Sandbox `json:"sandbox,omitempty"`
	Error   *Error   `json:"error,omitempty"`
}

// Patch changes a sandbox. What is absent stays. Maps are replaced as a whole.
// A new time-out counts from now.
type Patch struct {
	Name              *string           `json:"name,omitempty"`
	Metadata          map[string]string `json:"metadata,omitempty"` // not nil to replace
	TimeoutSeconds    Opt[int64]        `json:"timeout_seconds,omitzero"`
	OnTimeout         OnTimeout         `json:"on_timeout,omitempty"`
	AutoDeleteSeconds Opt[int64]        `json:"auto_delete_seconds,omitzero"`
}

// SandboxQuery says which sandboxes to list, newest first. The zero value is
// all.
type SandboxQuery struct {
	States     []State           // any of these; none: all
	Metadata   map[string]string // all of these
	NamePrefix string
	Page
}

// Page says which part of a list is wanted.
type Page struct {
	Cursor string // of the page before; empty for the first
	Limit  int    // entries, 1 to [MaxPage]; 0 is that
}

// SandboxPage is a part of a list.
type SandboxPage struct {
	Sandboxes  []Sandbox `json:"sandboxes"`
	NextCursor string    `json:"next_cursor,omitempty"` // empty: there are no more
}

// WaitRequest says what to wait for.
type WaitRequest struct {
	States  []State       // any of these
	Timeout time.Duration // up to [MaxWait]; 0: not at all
}

// Stats is what a sandbox takes.
type Stats struct {
	SandboxID string `json:"sandbox_id"`
	State     State  `json:"state"`
	// MemoryPrivateBytes is memory that nobody shares, MemorySharedBytes what
	// it has of layers and may share with others, until it writes there.
	MemoryPrivateBytes int64 `json:"memory_private_bytes"`
	MemorySharedBytes  int64 `json:"memory_shared_bytes"`
	// DiskPrivateBytes was written by it since it was made or last captured,
	// DiskSharedBytes is below and may be others' too.
	DiskPrivateBytes int64 `json:"disk_private_bytes"`
	DiskSharedBytes  int64 `json:"disk_shared_bytes"`
	// StoredBytes is what a paused sandbox has on the host's disk.
	StoredBytes int64 `json:"stored_bytes"`
	Processes   int   `json:"processes"` // that run and were started by exec; 0 unless it runs
}
