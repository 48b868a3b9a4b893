package session

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// Libraries returns the shared libraries, and the loader, that a program of the host's needs: none
// if it is linked statically, is no ELF program or is a folder.
func Libraries(program string) ([]Copy, error) {
	loader, err := interpreter(program)
	if err != nil || loader == "" {
		return nil, err
	}
	// The loader itself knows best where it finds them.
	out, err := exec.Command(loader, "--list", program).Output()
	if err != nil {
		return nil, fmt.Errorf("session: libraries of %s: %w: %s", program, err, bytes.TrimSpace(out))
	}
	copies := []Copy{{Host: loader, Guest: loader}}
	for line := range strings.Lines(string(out)) {
		// "libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f…)"
		_, rest, ok := strings.Cut(line, " => ")
		if !ok {
			continue
		}
		path, _, _ := strings.Cut(rest, " (0x")
		if !filepath.IsAbs(path) {
			return nil, fmt.Errorf("session: libraries of %s: %s", program, strings.TrimSpace(line))
		}
		copies = append(copies, Copy{Host: path, Guest: path})
	}
	return copies, nil
}

func interpreter(program string) (string, error) {
	f, err := elf.Open(program)
	if bad := (*elf.FormatError)(nil); errors.As(err, &bad) || errors.Is(err, io.EOF) || errors.Is(err, syscall.EISDIR) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("session: %w", err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		b, err := io.ReadAll(p.Open())
		if err != nil {
			return "", fmt.Errorf("session: %s: %w", program, err)
		}
		return string(bytes.TrimRight(b, "\x00")), nil
	}
	return "", nil
}
