package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"

	"github.com/forkvm/forkvm/guestagent/client"
)

// terminalSize is the size of the terminal we are at, or of a classic one.
func terminalSize() client.WinSize {
	for _, f := range []*os.File{os.Stdin, os.Stdout} {
		if w, h, err := term.GetSize(int(f.Fd())); err == nil && w > 0 && h > 0 {
			return client.WinSize{Cols: uint16(w), Rows: uint16(h)}
		}
	}
	return client.WinSize{Cols: 80, Rows: 24}
}

// rawTerminal passes keys on as they are if there is input to pass on, and the
// terminal's size with each change, until restore is called. Where there is no
// terminal it does nothing.
func rawTerminal(input bool, resize func(client.WinSize)) (restore func(), err error) {
	in := int(os.Stdin.Fd())
	if !input || !term.IsTerminal(in) {
		return func() {}, nil
	}
	old, err := term.MakeRaw(in)
	if err != nil {
		return nil, fmt.Errorf("raw terminal: %w", err)
	}
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGWINCH)
	go func() {
		for range changed {
			resize(terminalSize())
		}
	}()
	return func() {
		signal.Stop(changed)
		close(changed)
		_ = term.Restore(in, old)
	}, nil
}
