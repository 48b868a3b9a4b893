package server

import (
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/internal/wire"
)

// copyBuffer is what a download takes of memory.
const copyBuffer = 64 << 10

// onPath calls f with the path that is asked for.
func onPath[T any](c *call, f func(path string) (T, error)) (any, error) {
	path, err := c.need("path")
	if err != nil {
		return nil, err
	}
	return f(path)
}

func (c *call) statFile() (any, error) {
	return onPath(c, func(path string) (*api.FileInfo, error) { return c.box.Stat(c.ctx(), c.access, path) })
}

func (c *call) realPath() (any, error) {
	return onPath(c, func(path string) (*api.RealPath, error) { return c.box.RealPath(c.ctx(), c.access, path) })
}

func (c *call) listFiles() (any, error) {
	return onPath(c, func(path string) (*api.FileList, error) {
		l, err := c.box.ListFiles(c.ctx(), c.access, path)
		if err == nil && l.Files == nil {
			l.Files = []api.FileInfo{}
		}
		return l, err
	})
}

func (c *call) makeDirectory() (any, error) {
	return onPath(c, func(path string) (*api.FileInfo, error) { return c.box.Mkdir(c.ctx(), c.access, path) })
}

func (c *call) renameFile() (any, error) {
	return onPath(c, func(path string) (*api.FileInfo, error) {
		to, err := c.need("to")
		if err != nil {
			return nil, err
		}
		return c.box.Rename(c.ctx(), c.access, path, to)
	})
}

func (c *call) removeFile() (any, error) {
	return onPath(c, func(path string) (any, error) {
		all, err := c.flag("recursive")
		if err != nil {
			return nil, err
		}
		return nil, c.box.Remove(c.ctx(), c.access, path, api.RemoveOptions{Recursive: all})
	})
}

func (c *call) readFile() error {
	path, err := c.need("path")
	if err != nil {
		return err
	}
	f, info, err := c.box.ReadFile(c.ctx(), c.access, path)
	if err != nil {
		return err
	}
	defer f.Close()
	c.w.Header().Set(wire.FileInfo, wire.EncodeFileInfo(info))
	return c.download("application/octet-stream", f)
}

func (c *call) readTree() error {
	path, err := c.need("path")
	if err != nil {
		return err
	}
	t, err := c.box.ReadTree(c.ctx(), c.access, path)
	if err != nil {
		return err
	}
	defer t.Close()
	return c.download("application/x-tar", t)
}

// download sends what r has. Its length is not told: a file may grow or shrink
// meanwhile, and those of /proc say 0.
func (c *call) download(kind string, r io.Reader) error {
	buf := make([]byte, copyBuffer)
	for {
		n, err := r.Read(buf)
		if n > 0 || err == io.EOF {
			if !c.w.started() {
				c.w.Header().Set("Content-Type", kind)
				c.w.Header().Set("Cache-Control", "no-store")
				c.w.WriteHeader(http.StatusOK)
			}
			if _, err := c.w.Write(buf[:n]); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (c *call) writeFile() error {
	path, err := c.need("path")
	if err != nil {
		return err
	}
	var o api.WriteOptions
	if c.query["mode"] != nil {
		m, err := c.number("mode", 0, 8, 32)
		if err != nil || m > 0o7777 {
			return api.Errorf(api.BadRequest, "query: mode: %.40q is no octal number up to 7777", c.query.Get("mode"))
		}
		mode := uint32(m)
		o.Mode = &mode
	}
	in := c.upload()
	info, err := c.box.WriteFile(c.ctx(), c.access, path, in, o)
	if err != nil {
		return in.blame(err)
	}
	newAnswer(0, info, nil).write(c.w)
	return nil
}

func (c *call) writeTree() error {
	path, err := c.need("path")
	if err != nil {
		return err
	}
	in := c.upload()
	if err := c.box.WriteTree(c.ctx(), c.access, path, in); err != nil {
		return in.blame(err)
	}
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

// upload remembers how reading from a client failed, and whether it began.
type upload struct {
	io.Reader
	err   error
	began atomic.Bool
}

// upload is the body, of which a service reads as much as it likes.
func (c *call) upload() *upload {
	c.in = &upload{Reader: c.r.Body}
	return c.in
}

// lingerTime is how long a client has to read an answer that it did not wait for.
const lingerTime = 2 * time.Second

// linger reads on, and drops it, after an answer that came before the end of the
// body: a connection that is closed with something unread is reset, and the client
// may lose the answer to that (RFC 9112, section 9.6). The http package takes care
// of it only where no Expect header was sent.
func (c *call) linger() {
	if c.in == nil || !c.in.began.Load() {
		return
	}
	rc := http.NewResponseController(c.w)
	if rc.Flush() != nil || rc.SetReadDeadline(time.Now().Add(lingerTime)) != nil {
		return
	}
	_, _ = io.Copy(io.Discard, c.r.Body) // ends at once if there is no more
}

func (u *upload) Read(p []byte) (int, error) {
	u.began.Store(true)
	n, err := u.Reader.Read(p)
	if err != nil && err != io.EOF {
		u.err = err
	}
	return n, err
}

// blame is the error of a write, which is the client's fault if its body was not
// there to the end.
func (u *upload) blame(err error) error {
	if u.err != nil {
		return api.Errorf(api.BadRequest, "body: %w", u.err)
	}
	return err
}
