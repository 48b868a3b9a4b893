package vmm

import (
	"io"
	"sync"
)

const consoleTail = 64 << 10

// console passes the guest's serial output on and keeps its end.
type console struct {
	mu   sync.Mutex
	out  io.Writer
	ring []byte // guarded by mu; grows to consoleTail, then wraps
	at   int    // guarded by mu: where the oldest byte is once wrapped
}

func newConsole(out io.Writer) *console { return &console{out: out} }

// Write never fails: a guest is not stopped because nobody reads.
func (c *console) Write(p []byte) (int, error) {
	c.mu.Lock()
	for _, b := range p {
		if len(c.ring) < consoleTail {
			c.ring = append(c.ring, b)
			continue
		}
		c.ring[c.at] = b
		c.at = (c.at + 1) % consoleTail
	}
	c.mu.Unlock()
	c.out.Write(p)
	return len(p), nil
}

// clear forgets what was written.
func (c *console) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ring, c.at = nil, 0
}

// Bytes is a copy of the last 64 KiB.
func (c *console) Bytes() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append(append([]byte(nil), c.ring[c.at:]...), c.ring[:c.at]...)
}
