package server

import (
	"container/list"
	"context"
	"crypto/sha256"
	"sync"
	"time"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/internal/wire"
)

// What is kept of answers to requests with an idempotency key, for a team.
const (
	onceFor   = 24 * time.Hour
	onceCount = 1000
	onceBytes = 16 << 20
)

// once has each request of a key carried out once, and gives those that repeat
// it the answer of the first, if that is final. An answer is kept for a day; the
// oldest of a team go before if they are too many or too large.
type once struct {
	now func() time.Time

	mu    sync.Mutex
	teams map[string]*onceTeam // guarded by mu
}

type onceTeam struct {
	entries map[string]*onceEntry
	kept    list.List // of the keys of entries that have answers, oldest first
	bytes   int
}

// onceEntry is a request under way or answered.
type onceEntry struct {
	request [sha256.Size]byte
	done    chan struct{} // closed when it is no longer under way
	// The rest is guarded by mu.
	answered bool
	answer   answer
	until    time.Time
}

func newOnce() *once { return &once{now: time.Now, teams: make(map[string]*onceTeam)} }

// do returns the answer of f, or that of another call with the key.
func (o *once) do(ctx context.Context, team, key string, request [sha256.Size]byte, f func() answer) (answer, error) {
	for {
		e, mine := o.enter(team, key, request)
		if e.request != request {
			return answer{}, api.Errorf(api.Conflict, "%s: was used for another request", wire.IdempotencyKey)
		}
		if mine {
			return o.carryOut(team, key, e, f), nil
		}
		select {
		case <-e.done:
		case <-ctx.Done():
			return answer{}, ctx.Err()
		}
		o.mu.Lock()
		answered, a := e.answered, e.answer
		o.mu.Unlock()
		if answered {
			return a, nil
		}
		// The first has come to nothing. Try to be it.
	}
}

// enter returns the entry of a key, and whether it was made for this call.
func (o *once) enter(team, key string, request [sha256.Size]byte) (e *onceEntry, mine bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	t := o.teams[team]
	if t == nil {
		t = &onceTeam{entries: make(map[string]*onceEntry)}
		o.teams[team] = t
	}
	t.expire(o.now())
	if e := t.entries[key]; e != nil {
		return e, false
	}
	e = &onceEntry{request: request, done: make(chan struct{})}
	t.entries[key] = e
	return e, true
}

func (o *once) carryOut(team, key string, e *onceEntry, f func() answer) (a answer) {
	final := false
	defer func() { // also if f panics
		o.mu.Lock()
		defer o.mu.Unlock()
		t := o.teams[team]
		if final {
			e.answered, e.answer, e.until = true, a, o.now().Add(onceFor)
			t.kept.PushBack(key)
			t.bytes += len(a.body)
			t.trim()
		} else {
			delete(t.entries, key)
		}
		close(e.done)
	}()
	a = f()
	final = a.final()
	return a
}

func (t *onceTeam) expire(now time.Time) {
	for e := t.kept.Front(); e != nil && t.entries[e.Value.(string)].until.Before(now); e = t.kept.Front() {
		t.drop(e)
	}
}

func (t *onceTeam) trim() {
	for t.kept.Len() > onceCount || t.bytes > onceBytes {
		t.drop(t.kept.Front())
	}
}

func (t *onceTeam) drop(e *list.Element) {
	key := t.kept.Remove(e).(string)
	t.bytes -= len(t.entries[key].answer.body)
	delete(t.entries, key)
}
