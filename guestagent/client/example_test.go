package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"os"

	"github.com/forkvm/forkvm/guestagent/client"
)

// A client dials whatever leads to an agent: here a Unix socket.
func Example() {
	c := client.New(func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", "/run/agent.sock")
	})
	ctx := context.Background()

	out, err := c.CommandContext(ctx, "uname", "-r").Output()
	var exit *client.ExitError
	var start *client.StartError
	switch {
	case errors.As(err, &start):
		log.Fatalf("no uname there: %v", start)
	case errors.As(err, &exit):
		log.Fatalf("uname failed with %d: %s", exit.Code, exit.Stderr)
	case err != nil:
		log.Fatal(err)
	}
	fmt.Printf("kernel %s", out)

	err = c.FS().WithContext(ctx).WriteFile("/tmp/hello", []byte("hello\n"), 0o644)
	if errors.Is(err, os.ErrPermission) {
		log.Fatal("not allowed")
	}
}

// A command in the background outlives its client. Its output can be had
// later, by any client.
func ExampleClient_Attach() {
	var c *client.Client // as above
	ctx := context.Background()

	server := c.CommandContext(ctx, "server", "-v")
	server.Detach = true
	if err := server.Start(); err != nil {
		log.Fatal(err)
	}
	id := server.ProcessID()

	err := c.Attach(ctx, id, client.Attachment{Stdout: os.Stdout, Stderr: os.Stderr})
	fmt.Println("server ended:", err)
}
