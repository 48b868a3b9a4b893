package agent

import (
	"os"
	"runtime"
	"sync"
	"testing"
)

// TestNameFromAnyThread names the process from another thread than its first.
func TestNameFromAnyThread(t *testing.T) {
	was, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { setName(string(was[:len(was)-1])) })
	var all sync.WaitGroup
	for range 4 { // each on a thread of its own; at most one is the first
		all.Go(func() {
			runtime.LockOSThread()
			setName("renamed")
		})
	}
	all.Wait()
	if got, err := os.ReadFile("/proc/self/comm"); err != nil || string(got) != "renamed\n" {
		t.Errorf("the process is called %q, %v", got, err)
	}
}
