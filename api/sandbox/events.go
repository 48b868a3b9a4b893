package sandbox

import (
	"context"
	"sync"

	"github.com/forkvm/forkvm/api"
)

// keptEvents is how many of the last events are known, if their records do not
// come to more than keptBytes.
const (
	keptEvents = 4096
	keptBytes  = 16 << 20
)

// events is what has happened, the last of it. A watcher that is too slow loses
// some, and never holds anybody up.
type events struct {
	mu     sync.Mutex
	first  uint64 // Seq of the first in kept
	kept   []teamEvent
	bytes  int           // of kept, about
	more   chan struct{} // closed when there is another, and replaced
	closed bool
}

type teamEvent struct {
	team string
	api.Event
}

func newEvents() *events { return &events{first: 1, more: make(chan struct{})} }

func (h *events) add(team string, ev api.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	ev.Seq, ev.Time = h.first+uint64(len(h.kept)), now()
	h.kept, h.bytes = append(h.kept, teamEvent{team, ev}), h.bytes+sizeOf(ev)
	if len(h.kept) >= 2*keptEvents || h.bytes >= 2*keptBytes { // in bulk: to move them costs time
		h.forget()
	}
	close(h.more)
	h.more = make(chan struct{})
}

// forget drops the oldest events, but for as many as are to be kept and one at
// least. The caller has mu.
func (h *events) forget() {
	n := 0
	for ; len(h.kept)-n > 1 && (len(h.kept)-n > keptEvents || h.bytes > keptBytes); n++ {
		h.bytes -= sizeOf(h.kept[n].Event)
	}
	h.kept = append([]teamEvent(nil), h.kept[n:]...) // a watcher may be reading the old ones
	h.first += uint64(n)
}

// sizeOf is about how many bytes of memory an event takes. Metadata is what its
// owner can make large, and the reason of a failure what a guest can.
func sizeOf(ev api.Event) int {
	n := 1024
	if ev.Sandbox != nil {
		n += sizeOfMap(ev.Sandbox.Metadata) + len(ev.Sandbox.Reason)
	}
	if ev.Snapshot != nil {
		n += sizeOfMap(ev.Snapshot.Metadata)
	}
	return n
}

func sizeOfMap(m map[string]string) (n int) {
	for k, v := range m {
		n += len(k) + len(v)
	}
	return n
}

// close ends all watchers.
func (h *events) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed {
		h.closed = true
		close(h.more)
	}
}

// last is the Seq of the last event.
func (h *events) last() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.first + uint64(len(h.kept)) - 1
}

// after returns some events after seq, and otherwise a channel that is closed
// when there are more. It tells whether some are missing.
func (h *events) after(seq uint64) (list []teamEvent, more <-chan struct{}, lost, closed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if seq >= h.first+uint64(len(h.kept)) { // of an engine before this
		seq, lost = h.first-1, true
	}
	if seq+1 < h.first {
		seq, lost = h.first-1, true
	}
	from := int(seq + 1 - h.first)
	list = h.kept[from:min(len(h.kept), from+256)]
	return list[:len(list):len(list)], h.more, lost, h.closed
}

// Events implements [api.Service].
func (t *Team) Events(ctx context.Context, q api.EventQuery, ready func(), f func(api.Event) error) error {
	if q.SandboxID != "" {
		if err := api.CheckID(api.SandboxPrefix, q.SandboxID); err != nil {
			return err
		}
	}
	seq := q.After
	if seq == 0 {
		seq = t.events.last()
	}
	if ready != nil {
		ready()
	}
	for {
		list, more, lost, closed := t.events.after(seq)
		if lost {
			if err := f(api.Event{Type: api.EventsLost, Time: now()}); err != nil {
				return err
			}
		}
		for _, ev := range list {
			seq = ev.Seq
			if ev.team != t.name || q.SandboxID != "" && ev.SandboxID != q.SandboxID {
				continue
			}
			if err := f(ev.Event); err != nil {
				return err
			}
		}
		switch {
		case len(list) > 0:
			continue
		case lost: // nothing has happened yet in this engine
			seq = 0
		case closed:
			return errClosed
		}
		select {
		case <-more:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// emit tells of a sandbox. The caller has mu.
func (e *Engine) emit(b *box, what api.EventType) {
	s := b.listed()
	e.events.add(b.team, api.Event{Type: what, SandboxID: b.id, Sandbox: &s})
}

// emitForked tells of a sandbox that children were made of. The caller has mu.
func (e *Engine) emitForked(b *box, children []string) {
	s := b.listed()
	e.events.add(b.team, api.Event{Type: api.SandboxForked, SandboxID: b.id, Sandbox: &s, Children: children})
}

// emitSnapshot tells of a snapshot. The caller has mu.
func (e *Engine) emitSnapshot(s *snap, what api.EventType) {
	r := s.copy()
	e.events.add(s.rec.Team, api.Event{Type: what, SandboxID: r.SandboxID, SnapshotID: r.ID, Snapshot: r})
}
