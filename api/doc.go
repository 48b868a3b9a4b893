// Package api says what sandboxes promise: the records, requests and errors,
// and [Service], the verbs. Package api/sandbox carries them out in this
// process, and package api/client asks a server to, over HTTP.
//
// A sandbox is a machine with an id, a name, a life that may be bounded in
// time, and an environment for its commands. It is created from a template or
// a snapshot, which is a fork: nothing boots. It can be forked, snapshotted and
// paused while it runs.
//
// Identifiers are compared, and never interpreted, by clients. Times are UTC,
// sizes are bytes, and durations that clients set are whole seconds.
package api
