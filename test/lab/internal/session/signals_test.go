package session

import (
	"os"
	"syscall"
	"testing"
)

// TestSignalsWhileOneIsPassedOn has a second signal come while the first is
// still on its way: both are the program's.
func TestSignalsWhileOneIsPassedOn(t *testing.T) {
	var s Signals
	if s.Pass(syscall.SIGTERM) {
		t.Error("a signal is passed on to no program")
	}
	sending, goOn, got := make(chan struct{}), make(chan struct{}), make(chan os.Signal)
	stop := s.Deliver(func(sig os.Signal) {
		if sig == syscall.SIGINT {
			close(sending)
			<-goOn
		}
		got <- sig
	})
	want := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	for _, sig := range want {
		if !s.Pass(sig) {
			t.Errorf("%v is not passed on", sig)
		}
		<-sending
	}
	close(goOn)
	for _, sig := range want {
		if sent := <-got; sent != sig {
			t.Errorf("%v is sent, want %v", sent, sig)
		}
	}
	stop()
	if s.Pass(syscall.SIGTERM) {
		t.Error("a signal is passed on to a program that has ended")
	}
	(*Signals)(nil).Deliver(nil)()
}
