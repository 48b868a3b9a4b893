package agent

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/forkvm/forkvm/guestagent/proto"
)

// dirBatch is how many entries of a directory one frame carries: few enough
// that the longest names, escaped, stay below a frame's limit.
const dirBatch = 256

func unwrapErrno(err error) (syscall.Errno, bool) { return errors.AsType[syscall.Errno](err) }

// path resolves a client's path against the default directory.
func (s *server) path(t proto.Text) string {
	if filepath.IsAbs(string(t)) {
		return filepath.Clean(string(t))
	}
	return filepath.Join(s.opts.Dir, string(t))
}

func decodePath(h proto.Handshake) (*proto.PathRequest, error) {
	req := new(proto.PathRequest)
	return req, proto.DecodeRequest(h.Request, req)
}

// onPath answers the operations on a file's name.
func (s *server) onPath(c *conn, h proto.Handshake) error {
	var do func(string, *proto.PathRequest) (any, error)
	switch h.Op {
	case proto.OpStat, proto.OpLstat:
		do = func(p string, _ *proto.PathRequest) (any, error) { return stat(p, h.Op == proto.OpStat) }
	case proto.OpReadlink:
		do = func(p string, _ *proto.PathRequest) (any, error) {
			target, err := os.Readlink(p)
			return proto.Link{Target: proto.Text(target)}, err
		}
	default:
		change, ok := s.change(h.Op)
		if !ok {
			return &proto.Error{Code: proto.CodeUnsupported, Message: fmt.Sprintf("no operation %q", h.Op)}
		}
		do = func(p string, req *proto.PathRequest) (any, error) { return proto.Empty{}, change(p, req) }
	}
	req, err := decodePath(h)
	if err != nil {
		return err
	}
	reply, err := do(s.path(req.Path), req)
	if err != nil {
		return err
	}
	return ignoreGone(c.w.WriteValue(proto.TypeReply, reply))
}

// change returns what carries out an operation that replies nothing.
func (s *server) change(op proto.Op) (func(string, *proto.PathRequest) error, bool) {
	switch op {
	case proto.OpMkdir:
		return func(p string, r *proto.PathRequest) error { return os.Mkdir(p, fs.FileMode(r.Mode)) }, true
	case proto.OpMkdirAll:
		return func(p string, r *proto.PathRequest) error { return os.MkdirAll(p, fs.FileMode(r.Mode)) }, true
	case proto.OpRename:
		return func(p string, r *proto.PathRequest) error { return os.Rename(p, s.path(r.To)) }, true
	case proto.OpRemove:
		return func(p string, _ *proto.PathRequest) error { return os.Remove(p) }, true
	case proto.OpRmAll:
		return func(p string, _ *proto.PathRequest) error { return os.RemoveAll(p) }, true
	case proto.OpSymlink:
		return func(p string, r *proto.PathRequest) error { return os.Symlink(string(r.To), p) }, true
	case proto.OpChmod:
		return func(p string, r *proto.PathRequest) error { return os.Chmod(p, fs.FileMode(r.Mode)) }, true
	case proto.OpChown:
		return func(p string, r *proto.PathRequest) error { return os.Lchown(p, r.UID, r.GID) }, true
	case proto.OpChtimes:
		return func(p string, r *proto.PathRequest) error { return os.Chtimes(p, r.Atime, r.Mtime) }, true
	}
	return nil, false
}

func stat(p string, follow bool) (proto.FileInfo, error) {
	f := os.Lstat
	if follow {
		f = os.Stat
	}
	fi, err := f(p)
	if err != nil {
		return proto.FileInfo{}, err
	}
	return fileInfo(fi), nil
}

func fileInfo(fi fs.FileInfo) proto.FileInfo {
	out := proto.FileInfo{
		Name: proto.Text(fi.Name()), Size: fi.Size(), Mode: uint32(fi.Mode()), Mtime: fi.ModTime(),
	}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		out.UID, out.GID, out.Inode, out.Links = st.Uid, st.Gid, st.Ino, st.Nlink
	}
	return out
}

// readDir sends a directory's entries in batches, in no order.
func (s *server) readDir(c *conn, h proto.Handshake) error {
	req, err := decodePath(h)
	if err != nil {
		return err
	}
	// O_DIRECTORY: opening a FIFO would wait for its other side.
	dir, err := os.OpenFile(s.path(req.Path), os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer dir.Close()
	for {
		infos, err := dir.Readdir(dirBatch)
		batch := make([]proto.FileInfo, len(infos))
		for i, fi := range infos {
			batch[i] = fileInfo(fi)
		}
		if len(batch) > 0 {
			if c.w.WriteValue(proto.TypeItem, batch) != nil {
				return nil
			}
		}
		if err == io.EOF {
			return ignoreGone(c.w.Write(proto.TypeEOF))
		}
		if err != nil {
			return err
		}
	}
}

// open opens a file and answers calls on it until the client goes. It opens
// without blocking, as a FIFO nobody else has open would for ever.
func (s *server) open(c *conn, h proto.Handshake) error {
	req, err := decodePath(h)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(s.path(req.Path), req.Flag|syscall.O_NONBLOCK, fs.FileMode(req.Mode))
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	if c.w.WriteValue(proto.TypeReply, fileInfo(fi)) != nil {
		return nil
	}
	o := &openFile{conn: c, f: f, calls: make(chan call), free: make(chan []byte, 2), done: make(chan struct{})}
	o.free <- nil
	o.free <- nil
	defer close(o.done)
	go o.receive()
	for c := range o.calls {
		if c.err != nil {
			return protocolError(c.err)
		}
		more, err := o.answer(c.t, c.payload)
		if err != nil || !more {
			return err
		}
		o.free <- c.payload
	}
	return nil
}

// openFile is a file that a client has open.
type openFile struct {
	*conn
	f     *os.File
	buf   []byte      // what was read
	calls chan call   // from the client
	free  chan []byte // for the payloads of the next calls
	done  chan struct{}
}

// call is a frame that a client sent, or the error that ended its frames.
type call struct {
	t       proto.Type
	payload []byte
	err     error
}

// receive reads calls while others are being answered, so that a client's end
// is noticed and ends an answer that waits, say for a FIFO's other side.
func (o *openFile) receive() {
	for buf := range o.free {
		t, payload, err := o.r.Next()
		if err != nil {
			o.f.Close()
		}
		select {
		case o.calls <- call{t, append(buf[:0], payload...), err}:
		case <-o.done:
			return
		}
		if err != nil {
			return
		}
	}
}

// answer answers one call. Its error is one of the protocol; what goes wrong
// with the file is told to the client, who may go on. It reports whether the
// file is still open.
func (o *openFile) answer(t proto.Type, payload []byte) (bool, error) {
	switch t {
	case proto.TypeReadAt:
		return true, o.read(payload)
	case proto.TypeWriteAt:
		return true, o.write(payload)
	case proto.TypeCall:
		return o.other(payload)
	}
	return false, fmt.Errorf("%w: %v", proto.ErrUnexpectedFrame, t)
}

// offset splits the offset off a call; -1 is the file's own position.
func offset(payload []byte) (int64, []byte, error) {
	if len(payload) < 8 {
		return 0, nil, fmt.Errorf("%w: short call", proto.ErrUnexpectedFrame)
	}
	off := int64(binary.BigEndian.Uint64(payload))
	if off < -1 {
		return 0, nil, fmt.Errorf("%w: negative offset", proto.ErrUnexpectedFrame)
	}
	return off, payload[8:], nil
}

func (o *openFile) read(payload []byte) error {
	off, rest, err := offset(payload)
	if err != nil {
		return err
	}
	if len(rest) != 4 {
		return fmt.Errorf("%w: read call of %d bytes", proto.ErrUnexpectedFrame, len(payload))
	}
	n := int(min(binary.BigEndian.Uint32(rest), proto.MaxPayload))
	if cap(o.buf) < n {
		o.buf = make([]byte, n)
	}
	if off < 0 {
		n, err = o.f.Read(o.buf[:n])
	} else {
		n, err = o.f.ReadAt(o.buf[:n], off)
	}
	switch {
	case n > 0: // an error will come again with the next read
		err = o.w.Write(proto.TypeData, o.buf[:n])
	case err == io.EOF:
		err = o.w.Write(proto.TypeEOF)
	case err != nil:
		err = o.w.WriteValue(proto.TypeError, wireError(err))
	default:
		err = o.w.Write(proto.TypeData)
	}
	return ignoreGone(err)
}

func (o *openFile) write(payload []byte) error {
	off, data, err := offset(payload)
	if err != nil {
		return err
	}
	if off < 0 {
		_, err = o.f.Write(data)
	} else {
		_, err = o.f.WriteAt(data, off)
	}
	return o.reply(proto.Empty{}, err)
}

func (o *openFile) reply(v any, err error) error {
	if err != nil {
		return ignoreGone(o.w.WriteValue(proto.TypeError, wireError(err)))
	}
	return ignoreGone(o.w.WriteValue(proto.TypeReply, v))
}

func (o *openFile) other(payload []byte) (bool, error) {
	var call proto.FileCall
	if err := json.Unmarshal(payload, &call); err != nil {
		return false, fmt.Errorf("%w: %w", proto.ErrUnexpectedFrame, err)
	}
	switch call.Op {
	case "stat":
		fi, err := o.f.Stat()
		if err != nil {
			return true, o.reply(nil, err)
		}
		return true, o.reply(fileInfo(fi), nil)
	case "sync":
		return true, o.reply(proto.Empty{}, o.f.Sync())
	case "truncate":
		return true, o.reply(proto.Empty{}, o.f.Truncate(call.Size))
	case "close":
		return false, o.reply(proto.Empty{}, o.f.Close())
	}
	return false, fmt.Errorf("%w: call %q", proto.ErrUnexpectedFrame, call.Op)
}
