package guest

import (
	"bufio"
	"context"
	"errors"
	"io"
	"syscall"

	"github.com/forkvm/forkvm/api"
)

// ReadTree is a file or tree as a tar archive. Links are part of it and not
// followed, not even if path is one; sockets, and what the kernel makes up below
// such as /proc, are left out. The reader fails if the tree breaks off, and ends
// with ctx.
func (g *Guest) ReadTree(ctx context.Context, p string) (io.ReadCloser, error) {
	p, err := CheckPath("path", p)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	pr, pw := io.Pipe()
	t := &treeReader{buf: bufio.NewReaderSize(pr, copyChunk), pipe: pr, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(t.done)
		pw.CloseWithError(fail(ctx, g.files(ctx).TarOut(ctx, p, pw)))
	}()
	// No archive is empty: what is wrong from the start is told here.
	if _, err := t.buf.Peek(1); err != nil {
		t.Close()
		if err == io.EOF {
			err = api.Errorf(api.Gone, "empty archive")
		}
		return nil, err
	}
	return t, nil
}

// treeReader reads an archive that comes.
type treeReader struct {
	buf    *bufio.Reader
	pipe   *io.PipeReader
	cancel context.CancelFunc
	done   chan struct{} // closed when nothing comes any more
}

// Read implements io.Reader.
func (t *treeReader) Read(b []byte) (int, error) { return t.buf.Read(b) }

// WriteTo implements io.WriterTo, so that io.Copy copies as pieces come.
func (t *treeReader) WriteTo(w io.Writer) (int64, error) { return t.buf.WriteTo(w) }

// Close ends the archive, which need not be complete.
func (t *treeReader) Close() error {
	t.cancel()
	_ = t.pipe.Close() // never fails
	<-t.done
	return nil
}

// WriteTree unpacks a tar archive in a directory, which is made. What exists is
// replaced. Owners are not kept, and what would lead out of the directory is
// bad_request. If the archive fails, what came before is unpacked.
func (g *Guest) WriteTree(ctx context.Context, p string, archive io.Reader) error {
	p, err := CheckPath("path", p)
	if err != nil {
		return err
	}
	c := &content{r: archive}
	err = g.files(ctx).TarIn(ctx, p, c)
	err = c.close("archive", err)
	if ctx.Err() == nil && errors.Is(err, syscall.EXDEV) {
		return badField("archive", "an entry or a link leads out of the directory: %w", err)
	}
	return fail(ctx, err)
}
