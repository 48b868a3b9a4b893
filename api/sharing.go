package api

// MaxSharing is how many sandboxes are compared with each other at once.
const MaxSharing = 100

// SharingQuery says which sandboxes are compared. The zero value is all that
// run, or the newest [MaxSharing] of them.
type SharingQuery struct {
	// SandboxIDs are at most [MaxSharing] of them. Those that do not run are left
	// out: they have nothing in memory.
	SandboxIDs []string
}

// Sharing says who shares how much with whom, of the sandboxes of one account
// that run. While they do, the figures of each are of some moment of the call.
type Sharing struct {
	Sandboxes []SandboxSharing `json:"sandboxes"` // newest first
	// Pairs are any two that have something in common, most of it first.
	Pairs []SharingPair `json:"pairs"`
	// LeftOut is how many more run that were not asked for by id and are older
	// than those compared.
	LeftOut int `json:"left_out"`
}

// SandboxSharing is what one has of the host's memory and disk: for itself, and
// of layers, which others, snapshots and templates may have too. What it has of
// those is shared until it writes there. Zeros that were never touched are
// neither.
type SandboxSharing struct {
	SandboxID          string `json:"sandbox_id"`
	MemoryBytes        int64  `json:"memory_bytes"` // that the guest sees
	MemoryPrivateBytes int64  `json:"memory_private_bytes"`
	MemorySharedBytes  int64  `json:"memory_shared_bytes"`
	DiskPrivateBytes   int64  `json:"disk_private_bytes"`
	DiskSharedBytes    int64  `json:"disk_shared_bytes"`
}

// SharingPair is what two sandboxes have in common: the same pages of the same
// layers, which the host has once.
type SharingPair struct {
	SandboxIDs  [2]string `json:"sandbox_ids"` // the newer one first
	MemoryBytes int64     `json:"memory_bytes"`
	DiskBytes   int64     `json:"disk_bytes"`
}
