// Package machine runs the lab's emulated computer: a QEMU process that emulates an AMD machine
// with SVM, so that the kernel booted in it has a genuine kvm-amd.
//
// It needs no virtualization and no privileges. The machine is described by plain files in one
// folder (state, console, heartbeat, monitor socket), so that a later process can find a machine
// that an earlier one left running ([Attach]).
//
// The kernel inside writes a byte to its second serial port about once a second, from a process
// that nothing else inside can outrank. That heartbeat tells a kernel that stopped from a program
// that merely does not end: see [Machine.Watch].
package machine
