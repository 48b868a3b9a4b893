package api

import "time"

// EventType is what happened.
type EventType string

// What may happen.
const (
	SandboxCreated   EventType = "sandbox.created" // its making has begun
	SandboxReady     EventType = "sandbox.ready"   // it runs for the first time
	SandboxForked    EventType = "sandbox.forked"  // children of it run
	SandboxUpdated   EventType = "sandbox.updated"
	SandboxPaused    EventType = "sandbox.paused"
	SandboxResumed   EventType = "sandbox.resumed"
	SandboxFailed    EventType = "sandbox.failed"
	SandboxDestroyed EventType = "sandbox.destroyed"
	SnapshotCreated  EventType = "snapshot.created"
	SnapshotRenamed  EventType = "snapshot.renamed"
	SnapshotDeleted  EventType = "snapshot.deleted"
	// EventsLost says that the watcher was too slow, or came too late, and
	// some events are missing before the next.
	EventsLost EventType = "events.lost"
)

// Event is what happened to a sandbox or a snapshot.
type Event struct {
	Seq        uint64    `json:"seq"` // grows; it begins anew when the server does
	Time       time.Time `json:"time"`
	Type       EventType `json:"type"`
	SandboxID  string    `json:"sandbox_id,omitempty"`
	SnapshotID string    `json:"snapshot_id,omitempty"`
	// Sandbox and Snapshot are the records as they were then.
	Sandbox  *Sandbox  `json:"sandbox,omitempty"`
	Snapshot *Snapshot `json:"snapshot,omitempty"`
	// Children are the ids of what was forked.
	Children []string `json:"children,omitempty"`
}

// EventQuery says which events are wanted.
type EventQuery struct {
	SandboxID string // empty: of all
	// After is the Seq of the last event seen. Those after it that are still
	// known come first. 0: only what happens from now on.
	After uint64
}
