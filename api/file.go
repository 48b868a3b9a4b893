package api

import "time"

// FileType is what a file is.
type FileType string

// The types of files.
const (
	RegularFile FileType = "file"
	Directory   FileType = "directory"
	Symlink     FileType = "symlink"
	OtherFile   FileType = "other"
)

// FileInfo describes a file of a sandbox.
type FileInfo struct {
	Name       string    `json:"name"` // the last element of the path
	Path       string    `json:"path"`
	Type       FileType  `json:"type"`
	Size       int64     `json:"size"`
	Mode       uint32    `json:"mode"` // permissions, with the set-id and sticky bits as in chmod(2)
	UID        int       `json:"uid"`
	GID        int       `json:"gid"`
	ModifiedAt time.Time `json:"modified_at"`
	Target     string    `json:"target,omitempty"` // of a symbolic link
}

// RealPath is where a path leads.
type RealPath struct {
	Path string `json:"path"` // absolute; none of its elements is a symbolic link
}

// FileList is what a directory has, in the order of names.
type FileList struct {
	Files []FileInfo `json:"files"`
}

// WriteOptions say how a file is written.
type WriteOptions struct {
	Mode *uint32 // permissions of a new file; nil: 0644
}

// RemoveOptions say what is removed.
type RemoveOptions struct {
	Recursive bool // with all that is below
}

// FileEvent is what happened to a watched file, or in a watched directory.
type FileEvent struct {
	// Name is the file within the directory, empty for what is watched itself.
	Name string `json:"name"`
	// Op is create, write, close, attrib, remove, rename-from, rename-to,
	// overflow (events were lost) or gone (what was watched is not there any
	// more).
	Op        string `json:"op"`
	Directory bool   `json:"directory"`
}
