package agent

import (
	"encoding/binary"
	"os"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/guestagent/proto"
)

const watchedEvents = unix.IN_CREATE | unix.IN_CLOSE_WRITE | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_DELETE |
	unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF

// watch sends what happens to a file or in a directory, see inotify(7), until
// the client goes or the watched path itself does.
func (s *server) watch(c *conn, h proto.Handshake) error {
	req, err := decodePath(h)
	if err != nil {
		return err
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return os.NewSyscallError("inotify_init", err)
	}
	f := os.NewFile(uintptr(fd), "inotify")
	defer f.Close()
	path := s.path(req.Path)
	if _, err := unix.InotifyAddWatch(fd, path, watchedEvents); err != nil {
		return &os.PathError{Op: "watch", Path: path, Err: err}
	}
	if c.w.WriteValue(proto.TypeReply, proto.Empty{}) != nil {
		return nil
	}
	go func() {
		_, _, _ = c.r.Next() // a watching client says nothing until it goes
		f.Close()
	}()
	buf := make([]byte, 16<<10)
	for {
		n, err := f.Read(buf)
		if err != nil {
			return nil
		}
		if gone, err := sendEvents(c.w, buf[:n]); gone || err != nil {
			return nil
		}
	}
}

// sendEvents decodes struct inotify_event records and sends one item for each.
// It reports whether the watch has ended.
func sendEvents(w *proto.Writer, b []byte) (gone bool, err error) {
	for len(b) >= unix.SizeofInotifyEvent {
		mask := binary.NativeEndian.Uint32(b[4:])
		n := int(binary.NativeEndian.Uint32(b[12:]))
		name := unix.ByteSliceToString(b[unix.SizeofInotifyEvent : unix.SizeofInotifyEvent+n])
		b = b[unix.SizeofInotifyEvent+n:]
		if mask&unix.IN_IGNORED != 0 {
			return true, w.Write(proto.TypeEOF)
		}
		ev := proto.Event{Name: proto.Text(name), Op: eventName(mask), Dir: mask&unix.IN_ISDIR != 0}
		if err := w.WriteValue(proto.TypeItem, ev); err != nil {
			return false, err
		}
	}
	return false, nil
}

func eventName(mask uint32) string {
	switch {
	case mask&unix.IN_CREATE != 0:
		return "create"
	case mask&unix.IN_MODIFY != 0:
		return "write"
	case mask&unix.IN_CLOSE_WRITE != 0:
		return "close"
	case mask&unix.IN_ATTRIB != 0:
		return "attrib"
	case mask&unix.IN_DELETE != 0:
		return "remove"
	case mask&unix.IN_MOVED_FROM != 0:
		return "rename-from"
	case mask&unix.IN_MOVED_TO != 0:
		return "rename-to"
	case mask&unix.IN_Q_OVERFLOW != 0:
		return "overflow"
	}
	return "gone" // the watched path itself was removed or moved
}
