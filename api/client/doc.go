// Package client is the API of sandboxes as a server has it: an [api.Service]
// over HTTP.
//
//	c, err := client.New("unix:///run/user/1000/forkvm.sock", client.Options{})
//	…
//	sb, err := c.Create(ctx, api.CreateRequest{Template: "python"})
//	…
//	out, err := exec.Command(c, sb.Access(), "python3", "-V").Output()
//
// Requests that may be repeated are, if the connection failed before there was an
// answer: those that change nothing, or come to the same when they are carried
// out twice. Creating, forking and snapshotting have a key by which the server
// knows a repetition. Commands, builds and uploads are never repeated.
//
// Files, archives, output and events are streamed, and nothing is kept of them. A
// stream that is cut is an error, [ErrCut]; the command goes on.
package client
