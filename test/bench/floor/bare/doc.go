// Package bare forks a guest of a few instructions with the bare system calls,
// in the order that costs least, on one thread: what remains when a virtual
// machine monitor does nothing but what it must. It is the floor that ours is
// measured against.
//
// A fork here is all of a fork: the parent's whole state is read and written,
// its dirty pages are found and copied, and the child runs until it leaves the
// guest for the first time. Devices, identity and error reports are left out.
//
// Nothing in it is safe for concurrent use; the caller is locked to its thread.
package bare
