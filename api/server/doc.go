// Package server serves the API of sandboxes over HTTP. The file openapi.yaml
// beside it, which the server hands out as /openapi.yaml, describes it.
//
// # Who may do what
//
// Requests for an account carry its key, as Authorization: Bearer KEY or
// X-API-Key: KEY, unless they come over a Unix socket whose access is enough
// ([Config.SocketTeam]). Those for the commands and files of a sandbox carry the
// token of the sandbox, as X-Access-Token, and nothing else opens them. Templates
// are built and deleted with the key of an administrator ([Config.Admin]), or over
// such a socket.
//
// # Streams
//
// What is streamed goes through as fast as the slower end takes it, and is kept
// nowhere: files, archives, output and events. A download that fails after it
// began ends with the connection, so that it is never taken for whole. A
// stream of a command has ended only after its last event, exit or error, and that
// of a build after template or error. A client is waited for, but for that of a
// build, of which there can be few: if it does not take a piece of the log within
// four times [Config.KeepAlive] it has gone. All end with the base context of the
// [http.Server]. It must have no ReadTimeout or WriteTimeout; ReadHeaderTimeout
// and IdleTimeout are fine.
//
// # Repeats
//
// Creating, forking and snapshotting take an Idempotency-Key: a request that
// repeats another of the same account gets its answer, once there is one,
// for a day. Answers are kept in memory, up to 1000 and 16 MiB of each account,
// if they say that something was made or that the request makes no sense.
package server
