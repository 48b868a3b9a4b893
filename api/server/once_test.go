package server_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/internal/apitest"
)

// TestX15_IdempotencyKeys creates with the same key again and again.
func TestX15_IdempotencyKeys(t *testing.T) {
	b := start(t)
	n := 0
	b.fake.Called = func(string, ...any) { n++ }
	create := func(key, body string) (int, string) {
		status, got, _ := b.ask("POST", "/v1/sandboxes", body, "Idempotency-Key: "+key)
		return status, got
	}
	status, first := create("k", `{"name":"a"}`)
	if status != http.StatusCreated {
		t.Fatalf("%d %s", status, first)
	}
	if status, again := create("k", `{"name":"a"}`); status != http.StatusCreated || again != first || n != 1 {
		t.Errorf("again: %d %s, and %d calls", status, again, n)
	}
	status, other := create("k", `{"name":"b"}`)
	wantError(t, "another body", status, other, api.Conflict, "Idempotency-Key")
	status, other, _ = b.ask("POST", b.sandbox("/fork"), `{"name":"a"}`, "Idempotency-Key: k")
	wantError(t, "another path", status, other, api.Conflict, "Idempotency-Key")
	if _, next := create("k2", `{"name":"a"}`); next == first || n != 2 {
		t.Errorf("another key: %s, and %d calls", next, n)
	}
	status, other = create(strings.Repeat("k", 256), `{}`)
	wantError(t, "a long key", status, other, api.BadRequest, "Idempotency-Key")
}

// TestX15_WhatIsKept: an answer that may be another next time is not kept.
func TestX15_WhatIsKept(t *testing.T) {
	b := start(t)
	for _, c := range []struct {
		code api.Code
		kept bool
	}{{api.BadRequest, true}, {api.OutOfCapacity, false}, {api.InternalError, false}, {api.TooManySandboxes, false}, {api.NotFound, false}} {
		b.fake.Fail = func(string) error { return api.Errorf(c.code, "no") }
		status, body, _ := b.ask("POST", "/v1/sandboxes", "", "Idempotency-Key: "+string(c.code))
		wantError(t, "the first", status, body, c.code, "no")
		b.fake.Fail = nil
		status, body, _ = b.ask("POST", "/v1/sandboxes", "", "Idempotency-Key: "+string(c.code))
		if kept := status != http.StatusCreated; kept != c.kept {
			t.Errorf("%s, and then %d %s", c.code, status, body)
		}
	}
}

// TestX15_RepeatsWaitForTheFirst sends many at once. One is carried out; if who
// sent it goes away, another one is.
func TestX15_RepeatsWaitForTheFirst(t *testing.T) {
	b := start(t)
	arrived, release := make(chan context.Context), make(chan struct{})
	b.fake.OnCreate = func(ctx context.Context, _ api.CreateRequest) (*api.Sandbox, error) {
		arrived <- ctx
		select {
		case <-release:
			return apitest.Sandbox(b.id), nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	post := func(ctx context.Context) error {
		req, _ := http.NewRequestWithContext(ctx, "POST", b.url+"/v1/sandboxes", strings.NewReader("{}"))
		req.Header.Set("X-API-Key", apitest.Key)
		req.Header.Set("Idempotency-Key", "k")
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusCreated {
			return fmt.Errorf("status %d", resp.StatusCode)
		}
		return nil
	}
	go func() { gone <- post(ctx) }()
	first := <-arrived
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if err := post(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	cancel()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	<-first.Done()
	<-arrived // one of the others
	close(release)
	wg.Wait()
	select {
	case <-arrived:
		t.Error("it was carried out again")
	default:
	}
}

// TestX15_ClientSendsKeys loses the answer of a create.
func TestX15_ClientSendsKeys(t *testing.T) {
	b := start(t)
	n := 0
	var made *api.Sandbox
	b.fake.OnCreate = func(context.Context, api.CreateRequest) (*api.Sandbox, error) {
		n++
		made = apitest.Sandbox(api.NewID(api.SandboxPrefix, apitest.Now))
		return made, nil
	}
	inner, lost := b.contract.next, false
	b.contract.next = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !lost {
			lost = true
			w = &discard{ResponseWriter: w, header: make(http.Header)}
			defer panic(http.ErrAbortHandler)
		}
		inner.ServeHTTP(w, r)
	})
	got, err := b.Create(t.Context(), api.CreateRequest{})
	if err != nil || n != 1 || got.ID != made.ID {
		t.Errorf("got %v, %v after %d calls", got, err, n)
	}
}

// discard drops an answer.
type discard struct {
	http.ResponseWriter
	header http.Header
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }
func (d *discard) WriteHeader(int)             {}
