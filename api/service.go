package api

import (
	"context"
	"io"
)

// Access is what commands and files of a sandbox are asked for with.
type Access struct {
	ID    string
	Token string
}

// Access is the access that the record gives.
func (s *Sandbox) Access() Access { return Access{s.ID, s.AccessToken} }

// Service is what one account can do. It is safe for concurrent use. An error
// is an [*Error], or that of the context.
//
// Calls that make something return when it can be used. When ctx ends, so does
// the call: what it was making is undone, unless it is complete.
type Service interface {
	// Create makes a sandbox that runs.
	Create(ctx context.Context, r CreateRequest) (*Sandbox, error)
	Get(ctx context.Context, id string) (*Sandbox, error)
	List(ctx context.Context, q SandboxQuery) (*SandboxPage, error)
	Update(ctx context.Context, id string, p Patch) (*Sandbox, error)
	// Destroy ends a sandbox, whatever it is doing. It is no error if there is
	// none.
	Destroy(ctx context.Context, id string) error
	// Pause stores a sandbox and frees its memory. It is no error if it is
	// paused.
	Pause(ctx context.Context, id string) (*Sandbox, error)
	// Resume lets a paused sandbox go on, with a new token. It is no error, and
	// changes nothing, if it runs.
	Resume(ctx context.Context, id string) (*Sandbox, error)
	// Fork makes children of a sandbox as it is now, all of the same instant. It
	// fails only if no child could be made.
	Fork(ctx context.Context, id string, r ForkRequest) (*ForkResult, error)
	// Wait returns when the sandbox is in one of the states, and otherwise at
	// the end of the time-out as it is then. It fails if it is destroyed.
	Wait(ctx context.Context, id string, r WaitRequest) (*Sandbox, error)
	// Stats answers at once, whatever is being done to the sandbox.
	Stats(ctx context.Context, id string) (*Stats, error)
	// Sharing compares sandboxes that run with each other.
	Sharing(ctx context.Context, q SharingQuery) (*Sharing, error)

	// CreateSnapshot stores a sandbox as it is now; it goes on running, or being
	// paused. The snapshot can be used when the call returns.
	CreateSnapshot(ctx context.Context, sandboxID string, r SnapshotRequest) (*Snapshot, error)
	Snapshot(ctx context.Context, id string) (*Snapshot, error)
	Snapshots(ctx context.Context, q SnapshotQuery) (*SnapshotPage, error)
	RenameSnapshot(ctx context.Context, id, name string) (*Snapshot, error)
	// DeleteSnapshot disturbs no sandbox made of it. It is no error if there is
	// none.
	DeleteSnapshot(ctx context.Context, id string) error

	Templates(ctx context.Context) (*TemplateList, error)
	Template(ctx context.Context, name string) (*Template, error)
	// BuildTemplate builds a template, or finds that it is built already, for an
	// administrator. Archive is the context, a tar archive, and may be nil: COPY
	// and paths of FROM find what is in it, and nothing else of the service's
	// files. It is read to its end before anything is built. Log, unless it is
	// nil, gets the steps and what they print. If ctx ends, or the build fails, a
	// template of the name is as it was; steps that were done need not be run
	// again.
	BuildTemplate(ctx context.Context, r BuildRequest, archive io.Reader, log io.Writer) (*Template, error)
	// TemplateLog is what the last build of a template printed, whether or not it
	// went well. The caller closes it.
	TemplateLog(ctx context.Context, name string) (io.ReadCloser, error)
	// DeleteTemplate removes a template, for an administrator. It is a Conflict
	// while there are sandboxes or snapshots of any account that go back to a
	// template of the name, or while it is being built. It is no error if there
	// is none.
	DeleteTemplate(ctx context.Context, name string) error

	// Events calls f with what happens until ctx ends or f fails, and returns
	// that error. Ready, if not nil, is called when nothing is missed any more.
	Events(ctx context.Context, q EventQuery, ready func(), f func(Event) error) error

	Commands
	Files
}

// Commands are run in a sandbox. A paused one is resumed for that.
type Commands interface {
	// Exec runs a command to its end, and kills it if ctx ends before. An exit
	// code other than 0 is no error.
	Exec(ctx context.Context, a Access, r ExecRequest) (*ExecResult, error)
	// Run starts a command with its streams connected, and returns when it has
	// ended. If ctx ends before, the command goes on in the background.
	Run(ctx context.Context, a Access, r StartRequest, s Streams) (*Exit, error)
	// Start starts a command in the background. What it prints is kept for
	// those who attach, as far as there is room.
	Start(ctx context.Context, a Access, r StartRequest) (*Process, error)
	Processes(ctx context.Context, a Access) (*ProcessList, error)
	// Attach connects to a command in the background, and returns when it has
	// ended. If ctx ends before, the command goes on.
	Attach(ctx context.Context, a Access, process uint64, s Streams) (*Exit, error)
	// WaitProcess returns when a command has ended.
	WaitProcess(ctx context.Context, a Access, process uint64) (*Exit, error)
	// Control signals a command, with all it has started in its session, or
	// resizes its terminal.
	Control(ctx context.Context, a Access, process uint64, c Control) error
}

// Files are those of a sandbox. A paused one is resumed for that. Paths are
// absolute.
type Files interface {
	// ReadFile opens a regular file. The caller closes it.
	ReadFile(ctx context.Context, a Access, path string) (io.ReadCloser, *FileInfo, error)
	// WriteFile makes or replaces a file, and makes the directories that it
	// is in. If content fails, the file is as it was.
	WriteFile(ctx context.Context, a Access, path string, content io.Reader, o WriteOptions) (*FileInfo, error)
	// Stat describes a file. A symbolic link is not followed.
	Stat(ctx context.Context, a Access, path string) (*FileInfo, error)
	// RealPath follows all symbolic links of a path, as realpath(3) does, but
	// what it leads to need not exist. It is a BadRequest if what is to be a
	// directory is none.
	RealPath(ctx context.Context, a Access, path string) (*RealPath, error)
	ListFiles(ctx context.Context, a Access, path string) (*FileList, error)
	// Mkdir makes a directory, and those above it. It is no error if it is
	// there.
	Mkdir(ctx context.Context, a Access, path string) (*FileInfo, error)
	Rename(ctx context.Context, a Access, from, to string) (*FileInfo, error)
	Remove(ctx context.Context, a Access, path string, o RemoveOptions) error
	// ReadTree is a file or tree as a tar archive. The caller closes it.
	ReadTree(ctx context.Context, a Access, path string) (io.ReadCloser, error)
	// WriteTree unpacks a tar archive in a directory, which is made.
	WriteTree(ctx context.Context, a Access, path string, archive io.Reader) error
	// Watch calls f with what happens to a file, or in a directory, until ctx
	// ends, f fails or it is gone, and returns that error; nil if it is gone.
	// Ready, if not nil, is called when nothing is missed any more.
	Watch(ctx context.Context, a Access, path string, ready func(), f func(FileEvent) error) error
}
