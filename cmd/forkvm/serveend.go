package main

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"time"
)

// serverEnd is about when a server ends, and who is to know.
type serverEnd struct {
	state string        // the directory
	after time.Duration // unused; 0: it goes on for ever
	idle  func() bool   // no sandbox runs
	stop  func()        // ends it as a signal does
	log   *slog.Logger
	usage *usage

	mu      sync.Mutex
	locks   []*os.File // which end with the process
	waiting []net.Conn // of those who asked it to stop
}

// handler counts requests, and takes those to stop.
func (e *serverEnd) handler(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer e.usage.begin()()
		if r.Method == http.MethodPost && r.URL.Path == stopPath && overUnix(r) {
			e.askedToStop(w)
			return
		}
		h.ServeHTTP(w, r)
	})
}

func overUnix(r *http.Request) bool {
	a, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return ok && a.Network() == "unix"
}

// askedToStop keeps the connection, which says how the server ended, and ends
// with its process.
func (e *serverEnd) askedToStop(w http.ResponseWriter) {
	c, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	e.mu.Lock()
	e.waiting = append(e.waiting, c)
	e.mu.Unlock()
	_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n") // it is stopped all the same
	e.stop()
}

// unused returns a channel that is closed when the server has not been used for
// so long that it is to end. It is then locked.
func (e *serverEnd) unused(ctx context.Context) <-chan struct{} {
	unused := make(chan struct{})
	if e.after == 0 {
		return unused
	}
	go func() {
		if e.usage.waitUnused(ctx, e.after, func() bool { return !e.idle() }, e.claim) {
			close(unused)
		}
	}()
	return unused
}

// claim takes useLock, with which no command asks this server any more.
func (e *serverEnd) claim() (giveBack func(), ok bool) {
	lock, err := tryLock(e.state, useLock)
	if err != nil {
		e.log.Error("cannot tell whether it is used", "error", err)
	}
	if lock == nil {
		return nil, false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.locks = append(e.locks, lock)
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.locks = e.locks[:len(e.locks)-1]
		lock.Close()
	}, true
}

// begins takes startLock before nobody listens any more. Who has it, if anybody
// does, starts a server.
func (e *serverEnd) begins() {
	lock, err := tryLock(e.state, startLock)
	if err != nil {
		e.log.Error("others will not wait for the end", "error", err)
	}
	if lock != nil {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.locks = append(e.locks, lock)
	}
}

// tell tells those who wait how the server ended. Their connections end with the
// process.
func (e *serverEnd) tell(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range e.waiting {
		said := saidStopped
		if err != nil {
			said = err.Error()
		}
		_, _ = io.WriteString(c, said) // if it is still there
	}
}
