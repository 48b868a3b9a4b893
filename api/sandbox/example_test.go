package sandbox_test

import (
	"context"
	"fmt"
	"log"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/sandbox"
	"github.com/forkvm/forkvm/api/template"
)

// A program of its own has sandboxes without a server.
func Example() {
	ctx := context.Background()
	dir, err := template.DefaultDir()
	if err != nil {
		log.Fatal(err)
	}
	templates, err := template.Open(dir, template.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer templates.Close()
	engine, err := sandbox.Open(ctx, "/var/lib/mine", sandbox.Options{Templates: templates})
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close(ctx, sandbox.ClosePauses)
	request := api.CreateRequest{Template: "python"}
	err = api.With(ctx, engine.Team("mine"), request, func(s *api.Sandbox) error {
		result, err := engine.Team("mine").Exec(ctx, s.Access(), api.ExecRequest{
			Command: api.Command{Argv: []string{"python3", "-c", "print(6*7)"}},
		})
		if err != nil {
			return err
		}
		fmt.Printf("%s", result.Stdout)
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
}
