// Package client lets a host program work inside a guest, by way of the agent
// that runs there.
//
// Commands have the shape of os/exec and files that of os and os.Root:
//
//	c := client.New(dial)
//	out, err := c.Command("uname", "-a").Output()
//	err = c.FS().WriteFile("/tmp/x", data, 0o644)
//
// Each call dials one connection, which the caller's [Dialer] makes: to a
// vsock port of a machine, or to any listener on which an agent serves.
//
// The guest is not trusted: what it sends is bounded and checked, and a guest
// that breaks the protocol yields an error that wraps [ErrProtocol].
package client
