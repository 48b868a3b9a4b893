// Package blk is the virtio block device (section 5.2): a disk of 512-byte
// sectors whose bytes a [Backend] holds. [Memory] is a simple one; package
// snapshot/disk has the one for files, be it a read-only image or layers with
// what a machine has written on top.
//
// Data goes straight between guest memory and the backend. What the backend
// need not wait for, which it says itself if it is a [Trier], is served at once
// on the thread of the vCPU that asked, up to a limit. Everything else is served
// by goroutines that exist only while there is something to serve, up to eight
// at a time for one device, and is completed in whatever order the backend has
// done with it.
//
// What is promised about order is what section 5.2.6 asks for and no more.
// Requests that are in flight together may take effect in any order, those to
// the same sectors as well. A request that is made after another was completed
// finds what that one did. A flush covers all writes that were completed
// before it was made: the backend had done with them before the driver could
// know. A driver that did not accept VIRTIO_BLK_F_FLUSH has no way to flush, so
// that each of its writes is flushed before it is completed.
//
// What a hostile driver can do:
//
//	threat                              | answer
//	------------------------------------|------------------------------------
//	breaks the rules of a ring          | that queue is served no more until
//	                                    | the driver resets the device
//	leaves no room for a status         | the request goes back with nothing
//	                                    | written; refused and counted
//	splits a request in odd ways        | served: only the bytes count
//	names sectors that are not there,   | VIRTIO_BLK_S_IOERR; refused and
//	data that is not whole sectors      | counted
//	rewrites a header or a range that   | no effect: both are copied first
//	is being looked at                  |
//	rewrites data that is being written | its own data
//	makes huge requests                 | bounded by the chain, which is
//	                                    | bounded by the queue; discards and
//	                                    | zeroes as the configuration says
//	makes requests that the backend is  | eight in flight; the rest waits in
//	slow with                           | the ring
package blk
