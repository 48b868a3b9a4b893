package api

import (
	"context"
	"errors"
)

// With creates a sandbox, calls f with it, and destroys it when f has ended,
// however it ends.
func With(ctx context.Context, s Service, r CreateRequest, f func(*Sandbox) error) (err error) {
	b, err := s.Create(ctx, r)
	if err != nil {
		return err
	}
	defer func() {
		// A context that has ended does not keep the sandbox alive.
		err = errors.Join(err, s.Destroy(context.WithoutCancel(ctx), b.ID))
	}()
	return f(b)
}
