package guest

import (
	"context"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/guestagent/client"
)

// gone is the event after which there are no others.
const gone = "gone"

// Watch calls f with what happens to a file, or in a directory and not below it,
// until ctx ends, f fails or it is gone, and returns that error; nil if it is
// gone. A link is followed. Ready, if not nil, is called when nothing is missed
// any more. Who takes long over an event is sent overflow for what there was too
// much of.
func (g *Guest) Watch(ctx context.Context, p string, ready func(), f func(api.FileEvent) error) error {
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	events, err := onPath(ctx, g, p, func(f *client.FS, p string) (<-chan client.Event, error) {
		return f.Watch(watching, p)
	})
	if err != nil {
		return err
	}
	defer func() {
		cancel()
		for range events { // until the watch has ended
		}
	}()
	if ready != nil {
		ready()
	}
	for e := range events {
		if err := f(api.FileEvent{Name: e.Name, Op: e.Op, Directory: e.Dir}); err != nil {
			return err
		}
		if e.Op == gone {
			return nil
		}
	}
	return fail(ctx, client.ErrDisconnected)
}
