package vsock

import (
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"
)

// keptRig is a device with one connection, that of the guest's port 1, which is
// to live on.
func keptRig(t *testing.T) (*rig, *Conn) {
	t.Helper()
	r, c := lazyRig(t, time.Hour)
	c.Keep(true)
	r.converse(t, c, "hello")
	return r, c
}

// converse sends a text from the guest to the host and back.
func (r *rig) converse(t *testing.T, c *Conn, text string) {
	t.Helper()
	p := make([]byte, len(text))
	r.send(r.hdr(c), []byte(text))
	if _, err := io.ReadFull(c, p); err != nil || string(p) != text {
		t.Fatalf("host read %q, %v, want %q", p, err, text)
	}
	if _, err := c.Write(p); err != nil {
		t.Fatal(err)
	}
	if _, payload := r.want(t, opRW); string(payload) != text {
		t.Fatalf("guest read %q, want %q", payload, text)
	}
}

// hdr is the header of data from the guest, which has forwarded all it got.
func (r *rig) hdr(c *Conn) header {
	h := hdr(opRW, c.ports.guest, c.ports.host)
	r.dev.mu.Lock()
	defer r.dev.mu.Unlock()
	h.fwdCnt = c.txCnt
	return h
}

// TestIdleConnectionLivesOn forks a device whose only connection is idle and
// kept: it goes on in parent and child, each for itself, and in a grandchild.
func TestIdleConnectionLivesOn(t *testing.T) {
	r, c := keptRig(t)
	r.dev.Quiesce()
	child := r.fork(t)
	r.dev.Resume()
	child.dev.Resume()
	if _, _, ok := child.takeEvent(); ok {
		t.Error("the driver is to reset what lives on")
	}
	child.wantNone(t)
	inherited := child.dev.Inherited(1)
	if inherited == nil || child.dev.Inherited(1) != nil || child.dev.Inherited(2) != nil {
		t.Fatalf("inherited %v, or one too many", inherited)
	}
	r.converse(t, c, "parent")
	child.converse(t, inherited, "child")
	// Credit goes on from where it was: more than a buffer passes each way.
	long := strings.Repeat("x", 1000)
	for range 2 * child.dev.cfg.Buffer / len(long) {
		child.send(child.hdr(inherited), []byte(long))
		if _, err := io.ReadFull(inherited, make([]byte, len(long))); err != nil {
			t.Fatal(err)
		}
		for { // credit updates
			if _, _, ok := child.recv(); !ok {
				break
			}
		}
	}
	child.converse(t, inherited, "still there")
	child.dev.Quiesce()
	grandchild := child.fork(t)
	grandchild.dev.Resume()
	last := grandchild.dev.Inherited(1)
	if last == nil {
		t.Fatal("a grandchild inherits nothing")
	}
	grandchild.converse(t, last, "grandchild")
	if s := grandchild.dev.Stats(); s.Malformed != 0 || s.Conns != 1 {
		t.Errorf("%+v", s)
	}
}

// TestBusyConnectionsAreReset checks that nothing lives on that the two ends
// may not agree on, nor anything beside it.
func TestBusyConnectionsAreReset(t *testing.T) {
	for name, busy := range map[string]func(t *testing.T, r *rig, c *Conn){
		"not kept":    func(_ *testing.T, _ *rig, c *Conn) { c.Keep(false) },
		"unread data": func(_ *testing.T, r *rig, c *Conn) { r.send(r.hdr(c), []byte("data")) },
		"half closed": func(_ *testing.T, _ *rig, c *Conn) { c.CloseWrite() },
		"closed":      func(_ *testing.T, _ *rig, c *Conn) { c.Close() },
		"guest shut": func(_ *testing.T, r *rig, c *Conn) {
			h := r.hdr(c)
			h.op, h.flags = opShutdown, shutSend
			r.send(h, nil)
		},
		"another one": func(t *testing.T, r *rig, c *Conn) { r.send(hdr(opRequest, 2, 5000), nil); r.want(t, opResponse) },
		"a write under way": func(t *testing.T, r *rig, c *Conn) {
			h := r.hdr(c)
			h.op, h.bufAlloc = opCreditUpdate, 0
			r.send(h, nil)
			go c.Write([]byte("data"))
			for writing := false; !writing; {
				c.dev.mu.Lock()
				writing = c.writing
				c.dev.mu.Unlock()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, c := keptRig(t)
			busy(t, r, c)
			r.dev.Quiesce()
			child := r.fork(t)
			child.dev.Resume()
			if _, _, ok := child.takeEvent(); !ok {
				t.Error("the driver is not told to reset")
			}
			if child.dev.Inherited(1) != nil {
				t.Error("the connection lives on")
			}
		})
	}
}

func TestKeptStateIsPlainAndChecked(t *testing.T) {
	r, _ := keptRig(t)
	r.dev.Quiesce()
	st := r.dev.Save()
	b, err := json.Marshal(st)
	if err != nil {
		t.Fatal(err)
	}
	var again State
	if err := json.Unmarshal(b, &again); err != nil || !again.Intact || len(again.Kept) != 1 || again.Kept[0] != st.Kept[0] {
		t.Errorf("%s became %+v, %v", b, again, err)
	}
	again.Kept = append(again.Kept, again.Kept[0])
	if _, err := Restore(Config{}, again); err == nil {
		t.Error("a connection was restored twice")
	}
	again.Kept = make([]KeptConn, 10000)
	for i := range again.Kept {
		again.Kept[i].GuestPort = uint32(i)
	}
	if _, err := Restore(Config{}, again); err == nil {
		t.Error("more connections were restored than there may be")
	}
}
