package template

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const logSuffix = ".log"

// maxLog is how much of what a build prints is kept, in bytes.
const maxLog = 64 << 20

// buildLog is the log of one build. A log that cannot be written does not end
// the build, which says so at its end.
type buildLog struct {
	path string
	file *os.File
	also io.Writer // nil: nothing
	n    int64
	err  error
}

// logDir is where the logs of a name are.
func (s *Store) logDir(name string) string { return filepath.Join(s.path("logs"), name) }

// newLog begins the log of a build. Logs of one name sort by time.
func (s *Store) newLog(name string, also io.Writer) (*buildLog, error) {
	dir := s.logDir(name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, time.Now().UTC().Format("20060102T150405.000000000")+logSuffix)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	return &buildLog{path: path, file: f, also: also}, nil
}

func (l *buildLog) Write(p []byte) (int, error) {
	if l.also != nil {
		_, _ = l.also.Write(p) // whoever looks on may have left
	}
	if l.err != nil || l.n > maxLog {
		return len(p), nil
	}
	l.n += int64(len(p))
	if l.n > maxLog {
		_, l.err = fmt.Fprintf(l.file, "\n(more than %d bytes: the rest is left out)\n", maxLog)
		return len(p), nil
	}
	_, l.err = l.file.Write(p)
	return len(p), nil
}

// printf writes a line of ours to the log alone.
func (l *buildLog) printf(format string, args ...any) {
	if l.err == nil {
		_, l.err = fmt.Fprintf(l.file, format+"\n", args...)
	}
}

// drop removes the log itself: it is that of a build that did nothing.
func (l *buildLog) drop() { _ = os.Remove(l.path) }

// only removes the logs of builds before.
func (l *buildLog) only() {
	others, _ := filepath.Glob(filepath.Join(filepath.Dir(l.path), "*"+logSuffix)) // the pattern is good
	for _, o := range others {
		if o != l.path {
			_ = os.Remove(o) // the next build tries again
		}
	}
}

func (l *buildLog) close() error {
	if err := errors.Join(l.err, l.file.Close()); err != nil {
		return fmt.Errorf("log: %w", err)
	}
	return nil
}

// tail keeps the end of what is written to it.
type tail struct{ buf []byte }

// maxTail is how much of it an error repeats, in bytes.
const maxTail = 4 << 10

func (t *tail) Write(p []byte) (int, error) {
	p2 := p[max(0, len(p)-maxTail):]
	t.buf = append(t.buf, p2...)
	if over := len(t.buf) - maxTail; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(p), nil
}

// maxTailLines is how many lines an error repeats.
const maxTailLines = 20

// lines is the end of what was written, in whole lines.
func (t *tail) lines() string {
	text := string(t.buf)
	if len(t.buf) == maxTail {
		if _, after, ok := strings.Cut(text, "\n"); ok {
			text = after
		}
	}
	lines := strings.SplitAfter(strings.TrimRight(text, "\n"), "\n")
	lines = lines[max(0, len(lines)-maxTailLines):]
	text = strings.ToValidUTF8(strings.Join(lines, ""), "?")
	if text == "" {
		return ""
	}
	return text + "\n"
}
