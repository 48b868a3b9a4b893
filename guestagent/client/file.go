package client

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"

	"github.com/forkvm/forkvm/guestagent/proto"
)

// fileChunk is how many bytes of a file one frame carries at most.
const fileChunk = 256 << 10

// File is an open file of the guest, in the shape of os.File. Its methods may
// be called by several goroutines, and take turns.
type File struct {
	name string
	info FileInfo // when it was opened
	// own says that the file keeps its own position: it is opened for
	// appending, or is nothing that can be read at an offset.
	own bool

	mu     sync.Mutex
	conn   *conn
	off    int64 // guarded by mu
	closed bool  // guarded by mu
	broken error // guarded by mu: the connection is of no more use
}

var (
	_ io.ReadWriteSeeker = (*File)(nil)
	_ io.ReaderAt        = (*File)(nil)
	_ io.WriterAt        = (*File)(nil)
	_ io.WriterTo        = (*File)(nil)
	_ io.ReaderFrom      = (*File)(nil)
	_ fs.File            = (*File)(nil)
)

func newFile(cn *conn, name string, flag int, info FileInfo) *File {
	m := info.Mode()
	seekable := m.IsRegular() || m&fs.ModeDevice != 0 && m&fs.ModeCharDevice == 0
	return &File{name: name, info: info, conn: cn, own: !seekable || flag&os.O_APPEND != 0}
}

// Name returns the name by which the file was opened.
func (f *File) Name() string { return f.name }

// ask sends one call and returns the answer's payload, nil at the end of the
// file. The payload is valid until the next call.
func (f *File) ask(op string, want proto.Type, t proto.Type, parts ...[]byte) ([]byte, error) {
	switch {
	case f.closed:
		return nil, pathError(op, f.name, fs.ErrClosed)
	case f.broken != nil:
		return nil, pathError(op, f.name, f.broken)
	}
	if err := f.conn.w.Write(t, parts...); err != nil {
		f.broken = f.conn.cause(fmt.Errorf("%w: %w", ErrDisconnected, err))
		return nil, pathError(op, f.name, f.broken)
	}
	got, payload, err := f.conn.next()
	if err == nil && got == proto.TypeEOF && want == proto.TypeData {
		return nil, io.EOF
	}
	if err == nil && got != want {
		err = unexpected(got)
	}
	if _, ok := err.(*AgentError); err != nil && !ok {
		f.broken = err
	}
	return payload, pathError(op, f.name, err)
}

func (f *File) readAt(b []byte, off int64) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	n := min(len(b), fileChunk)
	var call [12]byte
	binary.BigEndian.PutUint64(call[:], uint64(off))
	binary.BigEndian.PutUint32(call[8:], uint32(n))
	data, err := f.ask("read", proto.TypeData, proto.TypeReadAt, call[:])
	if err != nil {
		return 0, err
	}
	if len(data) > n {
		f.broken = fmt.Errorf("%w: %d bytes for a read of %d", ErrProtocol, len(data), n)
		return 0, pathError("read", f.name, f.broken)
	}
	return copy(b, data), nil
}

func (f *File) writeAt(b []byte, off int64) (int, error) {
	done := 0
	for {
		n := min(len(b)-done, fileChunk)
		var call [8]byte
		at := off
		if off >= 0 {
			at += int64(done)
		}
		binary.BigEndian.PutUint64(call[:], uint64(at))
		if _, err := f.ask("write", proto.TypeReply, proto.TypeWriteAt, call[:], b[done:done+n]); err != nil {
			return done, err
		}
		if done += n; done == len(b) {
			return done, nil
		}
	}
}

// position returns the offset for the next read or write.
func (f *File) position() int64 {
	if f.own {
		return -1
	}
	return f.off
}

// Read reads at the file's position.
func (f *File) Read(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.readAt(b, f.position())
	f.off += int64(n)
	return n, err
}

// Write writes at the file's position, or at its end if it was opened for
// appending.
func (f *File) Write(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(b) == 0 {
		return 0, nil
	}
	n, err := f.writeAt(b, f.position())
	f.off += int64(n)
	return n, err
}

// ReadAt implements io.ReaderAt.
func (f *File) ReadAt(b []byte, off int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if off < 0 {
		return 0, pathError("readat", f.name, fs.ErrInvalid)
	}
	done := 0
	for done < len(b) {
		n, err := f.readAt(b[done:], off+int64(done))
		done += n
		if err == nil && n == 0 {
			err = io.ErrNoProgress
		}
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

// WriteAt implements io.WriterAt. It fails on a file opened for appending.
func (f *File) WriteAt(b []byte, off int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if off < 0 || f.own {
		return 0, pathError("writeat", f.name, fs.ErrInvalid)
	}
	if len(b) == 0 {
		return 0, nil
	}
	return f.writeAt(b, off)
}

// Seek implements io.Seeker. It fails on a file without offsets, or opened for
// appending.
func (f *File) Seek(offset int64, whence int) (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var base int64
	switch {
	case f.own:
		return 0, pathError("seek", f.name, fs.ErrInvalid)
	case whence == io.SeekCurrent:
		base = f.off
	case whence == io.SeekEnd:
		info, err := f.stat()
		if err != nil {
			return 0, err
		}
		base = info.Size()
	case whence != io.SeekStart:
		return 0, pathError("seek", f.name, fs.ErrInvalid)
	}
	if base+offset < 0 {
		return 0, pathError("seek", f.name, fs.ErrInvalid)
	}
	f.off = base + offset
	return f.off, nil
}

// WriteTo implements io.WriterTo, so that io.Copy reads in large pieces.
func (f *File) WriteTo(w io.Writer) (int64, error) { return copyFile(w, struct{ io.Reader }{f}) }

// ReadFrom implements io.ReaderFrom, so that io.Copy writes in large pieces.
func (f *File) ReadFrom(r io.Reader) (int64, error) { return copyFile(struct{ io.Writer }{f}, r) }

func copyFile(w io.Writer, r io.Reader) (int64, error) {
	return io.CopyBuffer(struct{ io.Writer }{w}, r, make([]byte, fileChunk))
}

// Stat describes the file as it is now.
func (f *File) Stat() (fs.FileInfo, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	info, err := f.stat()
	if err != nil {
		return nil, err
	}
	return info, nil
}

func (f *File) stat() (FileInfo, error) {
	var info proto.FileInfo
	err := f.call(proto.FileCall{Op: "stat"}, &info)
	info.Name = f.info.info.Name
	return FileInfo{info}, err
}

// Sync has the guest write the file to its disk.
func (f *File) Sync() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.call(proto.FileCall{Op: "sync"}, nil)
}

// Truncate changes the file's size.
func (f *File) Truncate(size int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.call(proto.FileCall{Op: "truncate", Size: size}, nil)
}

// Close closes the file. Its error may be that of an earlier write.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.call(proto.FileCall{Op: "close"}, nil)
	if !f.closed {
		f.closed = true
		f.conn.close()
	}
	return err
}

func (f *File) call(call proto.FileCall, reply any) error {
	b, err := json.Marshal(call)
	if err != nil {
		return pathError(call.Op, f.name, err)
	}
	payload, err := f.ask(call.Op, proto.TypeReply, proto.TypeCall, b)
	if err != nil {
		return err
	}
	return pathError(call.Op, f.name, decode(payload, reply))
}
