// Package sandbox carries out what package api promises, in this process: an
// [Engine] keeps sandboxes and their snapshots, and each [Team] of it is an
// api.Service.
//
// # The life of a sandbox
//
//	                create, fork
//	                     │
//	                 creating ──── failure ───▶ (gone)
//	                     │
//	          ┌──────▶ running ◀──────────┐
//	          │          │ pause, timeout │ failure
//	      resuming       ▼                │
//	          ▲       pausing ────────────┘
//	          │          │
//	          └─────── paused
//	   resume, exec
//
//	running ── the machine ends ──▶ failed
//	any ── destroy, timeout, auto-delete ──▶ destroying ──▶ (gone)
//
// A failed sandbox is listed until it is destroyed. One that is gone never
// comes back.
//
// # Locks
//
// A sandbox has a turn, a channel of one, for what changes its machine: resume,
// pause, capture, destruction. [Engine].mu guards all records and everything
// that is counted, and is held for a moment only: nothing waits under it. Who
// needs both has the turn first. Whoever destroys a sandbox ends its context
// before waiting for the turn, so that who has it gives up; only the start of
// several machines at once is waited for, if not all of them are unwanted.
//
// A template is not removed while there is a sandbox or snapshot that goes back to
// one of its name, or while one is being made: who makes one is counted before it
// looks for the template, and until it has a record. While a template is being
// removed, they wait.
//
// # What is durable
//
// Records are in a bbolt database, written before a call returns; memory and
// disks of paused sandboxes and of snapshots are in a snapshot.Store, written
// before the record that names them. After a crash what no record names is
// swept, and sandboxes that ran have failed.
package sandbox
