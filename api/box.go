package api

import (
	"context"
	"errors"
)

// Box is a sandbox with the verbs as methods. Its record is as it was when it
// was made or last changed by one of them.
type Box struct {
	Sandbox
	Service Service
}

// Open creates a sandbox.
func Open(ctx context.Context, s Service, r CreateRequest) (*Box, error) {
	b, err := s.Create(ctx, r)
	if err != nil {
		return nil, err
	}
	return &Box{*b, s}, nil
}

// Find returns the sandbox with an id.
func Find(ctx context.Context, s Service, id string) (*Box, error) {
	b, err := s.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	return &Box{*b, s}, nil
}

// Exec runs a command to its end, with the defaults of an [ExecRequest].
func (b *Box) Exec(ctx context.Context, argv ...string) (*ExecResult, error) {
	return b.Service.Exec(ctx, b.Access(), ExecRequest{Command: Command{Argv: argv}})
}

// Fork makes n children. If some could not be made, the error says why, and
// those that could are returned all the same.
func (b *Box) Fork(ctx context.Context, n int) ([]*Box, error) {
	f, err := b.Service.Fork(ctx, b.ID, ForkRequest{Count: n})
	if err != nil {
		return nil, err
	}
	var children []*Box
	var errs []error
	for _, c := range f.Children {
		if c.Error != nil {
			errs = append(errs, c.Error)
			continue
		}
		children = append(children, &Box{*c.Sandbox, b.Service})
	}
	return children, errors.Join(errs...)
}

// Snapshot stores the sandbox as it is now.
func (b *Box) Snapshot(ctx context.Context, name string) (*Snapshot, error) {
	return b.Service.CreateSnapshot(ctx, b.ID, SnapshotRequest{Name: name})
}

// Snapshots are those of the sandbox, newest first.
func (b *Box) Snapshots(ctx context.Context) (all []Snapshot, err error) {
	q := SnapshotQuery{SandboxID: b.ID}
	for {
		page, err := b.Service.Snapshots(ctx, q)
		if err != nil {
			return nil, err
		}
		all = append(all, page.Snapshots...)
		if q.Cursor = page.NextCursor; q.Cursor == "" {
			return all, nil
		}
	}
}

// Pause stores the sandbox and frees its memory.
func (b *Box) Pause(ctx context.Context) error { return b.changed(b.Service.Pause(ctx, b.ID)) }

// Resume lets the sandbox go on, with a new token.
func (b *Box) Resume(ctx context.Context) error { return b.changed(b.Service.Resume(ctx, b.ID)) }

func (b *Box) changed(s *Sandbox, err error) error {
	if err == nil {
		b.Sandbox = *s
	}
	return err
}

// Destroy ends the sandbox.
func (b *Box) Destroy(ctx context.Context) error { return b.Service.Destroy(ctx, b.ID) }
