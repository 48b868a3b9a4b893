package servicedemo

import (
	"context"
	"io"
	"testing"

	"github.com/forkvm/forkvm/api"
)

// broken makes sandboxes that cannot be written to.
type broken struct {
	api.Service
	destroyed []string
}

func (*broken) Create(context.Context, api.CreateRequest) (*api.Sandbox, error) {
	return &api.Sandbox{ID: "sb_1"}, nil
}

func (b *broken) Destroy(_ context.Context, id string) error {
	b.destroyed = append(b.destroyed, id)
	return nil
}

func (b *broken) WriteFile(ctx context.Context, _ api.Access, _ string, _ io.Reader, _ api.WriteOptions) (*api.FileInfo, error) {
	return nil, api.Errorf(api.NotEnoughSpace, "the disk is full")
}

// TestFailedStep: it is the last, it is told of, and nothing is left.
func TestFailedStep(t *testing.T) {
	b, told := &broken{}, 0
	r := Run(t.Context(), b, "base", func(Step) { told++ })
	if told != 2 || len(r.Steps) != 2 || !r.Steps[0].OK || r.Steps[1].OK {
		t.Errorf("%d steps: %+v", told, r.Steps)
	}
	if err := r.Err(); err == nil || err.Error() != "write a file: the disk is full" {
		t.Errorf("error %v", err)
	}
	if len(b.destroyed) != 1 || b.destroyed[0] != "sb_1" {
		t.Errorf("destroyed %q", b.destroyed)
	}
}
