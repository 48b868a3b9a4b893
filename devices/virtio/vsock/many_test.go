package vsock

import (
	"hash/crc32"
	"io"
	"math/rand"
	"net"
	"sync"
	"testing"
)

// A thousand connections at once, half begun by each side, with random data
// both ways in pieces of random size.
func TestManyConnections(t *testing.T) {
	const each = 500
	g := newGuest(t, Config{Backlog: each})
	atGuest := g.listen(1024)
	atHost, err := g.dev.Listen(5000)
	if err != nil {
		t.Fatal(err)
	}
	var ends sync.WaitGroup
	for i := range int64(each) {
		ends.Go(func() {
			c, err := g.dev.Dial(t.Context(), 1024)
			if err != nil {
				t.Error(err)
				return
			}
			exchange(t, c, i)
		})
		ends.Go(func() {
			c, err := g.dial(5000)
			if err != nil {
				t.Error(err)
				return
			}
			exchange(t, c, -i)
		})
		ends.Go(func() { exchange(t, <-atGuest, 1000+i) })
		ends.Go(func() {
			c, err := atHost.Accept()
			if err != nil {
				t.Error(err)
				return
			}
			exchange(t, c, 2000+i)
		})
	}
	ends.Wait()
	for g.dev.Stats().Conns > 0 { // the last RSTs are on their way
		g.mu.Lock()
		g.interrupt()
		g.mu.Unlock()
	}
	s := g.dev.Stats()
	if s.Malformed != 0 || s.BytesFromGuest == 0 || s.BytesToGuest == 0 {
		t.Errorf("%+v", s)
	}
}

// exchange sends random data and its checksum, and checks what it gets.
func exchange(t *testing.T, c net.Conn, seed int64) {
	defer c.Close()
	rnd := rand.New(rand.NewSource(seed))
	var sides sync.WaitGroup
	sides.Go(func() {
		sum := crc32.NewIEEE()
		for left := rnd.Intn(60000); left > 0; {
			p := make([]byte, min(left, 1+rnd.Intn(9000)))
			rnd.Read(p)
			sum.Write(p)
			if _, err := c.Write(p); err != nil {
				t.Error(err)
				return
			}
			left -= len(p)
		}
		if _, err := c.Write(sum.Sum(nil)); err != nil {
			t.Error(err)
		}
		c.(interface{ CloseWrite() error }).CloseWrite()
	})
	got, err := io.ReadAll(c)
	if err != nil || len(got) < 4 {
		t.Errorf("read %d bytes, %v", len(got), err)
	} else {
		data, sum := got[:len(got)-4], crc32.NewIEEE()
		sum.Write(data)
		if string(sum.Sum(nil)) != string(got[len(data):]) {
			t.Errorf("checksum differs after %d bytes", len(data))
		}
	}
	sides.Wait()
}
