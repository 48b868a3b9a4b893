package api

import "time"

// Snapshot is the record of a snapshot: memory and disk of a sandbox at one
// instant, from which any number of sandboxes can be created until it is
// deleted.
type Snapshot struct {
	ID        string `json:"id"`
	Name      string `json:"name"` // need not be unique; may be empty
	SandboxID string `json:"sandbox_id"`
	Template  string `json:"template"` // that the sandbox goes back to

	CreatedAt   time.Time `json:"created_at"`
	VCPUs       int       `json:"vcpus"`
	MemoryBytes int64     `json:"memory_bytes"`
	DiskBytes   int64     `json:"disk_bytes"`
	// StoredBytes is what the snapshot has of its own and shares with others,
	// as stored.
	StoredBytes int64 `json:"stored_bytes"`
	// PauseSeconds is how long the sandbox stood still; 0 if it was paused.
	PauseSeconds float64 `json:"pause_seconds"`

	TimeoutSeconds    *int64            `json:"timeout_seconds"`
	OnTimeout         OnTimeout         `json:"on_timeout"`
	AutoDeleteSeconds *int64            `json:"auto_delete_seconds"`
	Metadata          map[string]string `json:"metadata"`
}

// SnapshotRequest asks for a snapshot.
type SnapshotRequest struct {
	Name     string            `json:"name,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"` // the snapshot's own
}

// SnapshotQuery says which snapshots to list, newest first.
type SnapshotQuery struct {
	SandboxID  string // empty: of all, also those that are gone
	NamePrefix string
	Page
}

// SnapshotPage is a part of a list.
type SnapshotPage struct {
	Snapshots  []Snapshot `json:"snapshots"`
	NextCursor string     `json:"next_cursor,omitempty"`
}
