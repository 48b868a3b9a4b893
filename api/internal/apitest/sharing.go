package apitest

import (
	"context"

	"github.com/forkvm/forkvm/api"
)

// Sharing has two sandboxes with something in common.
func (f *Fake) Sharing(_ context.Context, q api.SharingQuery) (*api.Sharing, error) {
	s := &api.Sharing{LeftOut: 1}
	var pair api.SharingPair
	for i := range pair.SandboxIDs {
		pair.SandboxIDs[i] = api.NewID(api.SandboxPrefix, Now)
		s.Sandboxes = append(s.Sandboxes, api.SandboxSharing{SandboxID: pair.SandboxIDs[i], MemoryBytes: 1 << 28, MemorySharedBytes: 1 << 20})
	}
	pair.MemoryBytes = 1 << 19
	s.Pairs = []api.SharingPair{pair}
	return result(f, s, "Sharing", q)
}
