package template

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
)

// Pack writes a context directory as a tar archive, for a build elsewhere: all
// that its ignore file does not name, but for what cannot be copied, such as
// sockets.
func Pack(ctx context.Context, dir string, w io.Writer) error {
	c, err := openContext(dir)
	if err != nil {
		return err
	}
	defer c.close()
	tw := tar.NewWriter(w)
	walk := contextWalk{ctx: ctx, c: c, skip: true, fn: func(e entry) error { return c.add(tw, e, io.Discard) }}
	if err := walk.dir(".", ""); err != nil {
		return fmt.Errorf("template: context: %w", err)
	}
	return tw.Close()
}
