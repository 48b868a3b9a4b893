// Package guest is the inside of a running sandbox: what [api.Commands] and
// [api.Files] promise, carried out by the agent of its machine.
//
// Its errors are those of package api. Requests are checked before anything is
// asked of the guest, and nothing in them is bent into shape; the Check functions
// do only that, for who would otherwise wake a sandbox for a bad request.
//
// The guest is not trusted: what it answers is bounded by package client, and
// what it says is wrong with a request ends in an error that is the client's.
package guest

import (
	"context"

	"github.com/forkvm/forkvm/guestagent/client"
)

// Guest is the inside of a running sandbox. It is safe for concurrent use as
// long as nobody changes it.
type Guest struct {
	Agent *client.Client
	// Env is the environment of commands, "K=V", on top of the agent's default.
	Env []string
	// Dir and User are where and as whom commands start unless they say; empty:
	// as the agent has it.
	Dir, User string
}

// files is the guest's tree, for calls that end with ctx.
func (g *Guest) files(ctx context.Context) *client.FS { return g.Agent.FS().WithContext(ctx) }
