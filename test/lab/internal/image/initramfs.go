package image

import (
	"bufio"
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/u-root/u-root/pkg/cpio"

	"github.com/forkvm/forkvm/initrd"
	"github.com/forkvm/forkvm/test/lab/internal/inside"
)

// packInitramfs writes an initramfs of this executable, its configuration and the kernel's modules.
func packInitramfs(path string, kernel *initrd.Kernel, mounts []inside.Mount) error {
	resolved, config, err := insideConfig(kernel, mounts)
	if err != nil {
		return err
	}
	program, err := thisProgram()
	if err != nil {
		return err
	}
	records := []cpio.Record{
		cpio.Directory("dev", 0o755),
		cpio.CharDev("dev/console", 0o600, 5, 1), // standard streams of the first process
		cpio.Directory(entry(inside.ModulesDir), 0o755),
		cpio.StaticFile(entry(inside.InitPath), string(program), 0o755),
		cpio.StaticFile(entry(inside.ConfigPath), string(config), 0o644),
	}
	for _, m := range resolved {
		name := filepath.Join(inside.ModulesDir, m.Name+".ko")
		records = append(records, cpio.StaticFile(entry(name), string(m.Data), 0o644))
	}
	return writeArchive(path, records)
}

// thisProgram reads the executable of this process, which is to be the machine's first one. That has
// no libraries.
func thisProgram() ([]byte, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("image: %w", err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("image: %w", err)
	}
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		return nil, fmt.Errorf("image: %s: %w", path, err)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return nil, fmt.Errorf("image: %s is linked dynamically: build it with CGO_ENABLED=0", path)
		}
	}
	return b, nil
}

// entry is how an archive names an absolute path.
func entry(path string) string { return strings.TrimPrefix(path, "/") }

func writeArchive(path string, records []cpio.Record) error {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("image: %w", err)
	}
	defer f.Close()
	buf := bufio.NewWriterSize(f, 1<<20)
	w := cpio.Newc.Writer(buf)
	if err := errors.Join(cpio.WriteRecords(w, records), cpio.WriteTrailer(w), buf.Flush(), f.Close()); err != nil {
		return fmt.Errorf("image: %s: %w", path, err)
	}
	return nil
}
