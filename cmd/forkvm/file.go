package main

import (
	"bufio"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// stdStream as a name of a file is standard input or output.
const stdStream = "-"

// writeFile makes a file appear with all that fill writes, or not at all.
// What is no regular file, such as a pipe, is written to as it is.
func writeFile(name string, perm fs.FileMode, fill func(io.Writer) error) error {
	if name == stdStream {
		return writeTo(os.Stdout, fill)
	}
	if info, err := os.Stat(name); err == nil && !info.Mode().IsRegular() {
		f, err := os.OpenFile(name, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		return writeTo(f, fill)
	}
	return replaceFile(name, perm, fill)
}

func replaceFile(name string, perm fs.FileMode, fill func(io.Writer) error) error {
	tmp, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+"-")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) // fails once it was renamed
	defer tmp.Close()
	if err := writeTo(tmp, fill); err != nil {
		return err
	}
	if err := tmp.Chmod(perm); err != nil {
		return err
	}
	if err := tmp.Sync(); err != nil {
		return err
	}
	if err := tmp.Close(); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), name)
}

// writeTo writes what is no text, so not to a terminal.
func writeTo(f *os.File, fill func(io.Writer) error) error {
	if isTerminal(f) {
		return usageError("%s is a terminal, and what is to be written is no text", f.Name())
	}
	b := bufio.NewWriterSize(f, 1<<20)
	if err := fill(b); err != nil {
		return err
	}
	return b.Flush()
}

// openFile opens what is to be read and is no text, so not from a terminal.
func openFile(name string) (*os.File, error) {
	f := os.Stdin
	if name != stdStream {
		var err error
		if f, err = os.Open(name); err != nil {
			return nil, err
		}
	}
	if isTerminal(f) {
		f.Close()
		return nil, usageError("%s is a terminal, and what is to be read is no text", f.Name())
	}
	return f, nil
}
